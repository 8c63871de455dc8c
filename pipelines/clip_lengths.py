"""How many frames a family's clips can have, and the nearest number to any other. Pure; torch-free."""

from __future__ import annotations

from fuseproof.errors import UsageError
from fuseproof.pipelines.family import Family


def refuse_frames(num_frames: int | None, family: Family) -> None:
    """Raise a UsageError for a number of frames that ``family`` cannot make, with those next to it.

    ``num_frames`` is None, and nothing else, for a family that makes single images. diffusers rounds other numbers with
    a word in its log.
    """
    if not family.makes_video:
        if num_frames is not None:
            raise UsageError(
                f"{family.title} makes single images, and {num_frames} frames were asked for.",
                next_step="Leave --num-frames out, or choose a model that makes videos.",
            )
        return
    if num_frames is None:
        raise UsageError(f"{family.title} makes clips, and no number of frames was given.")
    nearest = nearest_lengths(num_frames, family)
    if num_frames not in nearest:
        raise UsageError(
            f"{family.title} cannot make {num_frames} frames: they must be {lengths_rule(family)}, up to "
            f"{family.maximum_frames}, and the nearest {'are' if len(nearest) > 1 else 'is'} "
            f"{' and '.join(map(str, nearest))}.",
            next_step=f"Use --num-frames {min(nearest, key=lambda frames: abs(frames - num_frames))}.",
        )


def nearest_lengths(num_frames: int, family: Family) -> tuple[int, ...]:
    """The valid numbers of frames next to ``num_frames``: itself where it is one, else one or two, ascending."""
    shortest = family.frame_remainder
    below = (num_frames - shortest) // family.frame_multiple * family.frame_multiple + shortest
    found = (below,) if below == num_frames else (below, below + family.frame_multiple)
    return tuple(sorted({min(max(frames, shortest), family.maximum_frames) for frames in found}))


def lengths_rule(family: Family) -> str:
    """Which numbers of frames the family's clips have: ``a multiple of 4 and one``."""
    if family.frame_remainder == 1:
        return f"a multiple of {family.frame_multiple} and one"
    return f"{family.frame_remainder} and a multiple of {family.frame_multiple} more"
