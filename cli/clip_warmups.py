"""The size and frames of a clip's warm-up: what would leave the timed request without one, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fuseproof.errors import UsageError
from fuseproof.pipelines.clip_lengths import lengths_rule, nearest_lengths

if TYPE_CHECKING:
    from fuseproof.cli.generate_options import GenerateOptions
    from fuseproof.pipelines.family import Family
    from fuseproof.pipelines.requests import GenerationRequest

FLAG = "--warmup-num-frames"


def with_frames(options: GenerateOptions, request: GenerationRequest, family: Family) -> GenerationRequest:
    """The warm-up ``request`` with as many frames as ``--warmup-num-frames`` says; its own without the flag.

    Raises :class:`UsageError` for a number that ``family`` cannot make, and for another number than the request's where
    graphs are captured or code is compiled: the timed request would meet neither.
    """
    frames = options.warmup_num_frames
    if frames is None or request.num_frames is None or frames == request.num_frames:
        return request
    nearest = nearest_lengths(frames, family)
    if frames not in nearest:
        raise UsageError(
            f"{FLAG} is {frames}, and {family.title} makes {lengths_rule(family)}.",
            next_step=f"Use {FLAG} {nearest[-1]}, or drop it to warm the request's own {request.num_frames}.",
        )
    for is_on, flag, what in (
        (options.enable_torch_compile, "--enable-torch-compile", "compile inside the timed request"),
        (options.enable_breakable_cuda_graph, "--enable-breakable-cuda-graph", "miss every graph in the timed request"),
    ):
        if is_on:
            raise UsageError(
                f"{FLAG} is {frames} and the request has {request.num_frames} frames, so {flag} would {what}.",
                next_step=f"Drop {FLAG}.",
            )
    return replace(request, num_frames=frames)


def other_geometry(
    request: GenerationRequest, warmups: Sequence[GenerationRequest], steps: int | None
) -> list[dict[str, int | None]]:
    """What was warmed, JSON-ready, where none of it has the timed ``request``'s own size and number of frames.

    ``steps`` were run of each. Empty where the request's own was among them, and without a warm-up.
    """
    own = (request.width, request.height, request.num_frames)
    if own in [(one.width, one.height, one.num_frames) for one in warmups]:
        return []
    return [
        {"width": one.width, "height": one.height, "num_frames": one.num_frames, "num_inference_steps": steps}
        for one in warmups
    ]


def other_geometry_warning(request: GenerationRequest, warmed: Sequence[Mapping[str, int | None]]) -> str | None:
    """What to say of a warm-up that had another size, or other frames, than the timed ``request``; None for none."""
    if not warmed:
        return None
    shapes = ", ".join(
        "{width}x{height} with {num_frames} frames and {num_inference_steps} steps".format(**one) for one in warmed
    )
    return (
        f"the warm-up was {shapes}, and the request is {request.width}x{request.height} with {request.num_frames} "
        f"frames and {request.num_inference_steps} steps: what depends on the shape was cold when it was timed"
    )
