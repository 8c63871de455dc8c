"""How many frames a family's clips can have, and the nearest number to any other. Pure; torch-free."""

from __future__ import annotations

from fuseproof.errors import UsageError
from fuseproof.pipelines.families import Family


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
            f"{family.title} cannot make {num_frames} frames: they must be a multiple of {family.frame_multiple} and "
            f"one, up to {family.maximum_frames}, and the nearest {'are' if len(nearest) > 1 else 'is'} "
            f"{' and '.join(map(str, nearest))}.",
            next_step=f"Use --num-frames {nearest[-1]}.",
        )


def nearest_lengths(num_frames: int, family: Family) -> tuple[int, ...]:
    """The valid numbers of frames next to ``num_frames``: itself where it is one, else one or two, ascending."""
    below = (num_frames - 1) // family.frame_multiple * family.frame_multiple + 1
    found = (below,) if below == num_frames else (below, below + family.frame_multiple)
    return tuple(sorted({min(max(frames, 1), family.maximum_frames) for frames in found}))
