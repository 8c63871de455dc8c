"""How many frames a warm-up has, and which numbers would leave the timed request without one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fuseproof.errors import UsageError
from fuseproof.pipelines.clip_lengths import nearest_lengths

if TYPE_CHECKING:
    from fuseproof.cli.generate_options import GenerateOptions
    from fuseproof.pipelines.families import Family
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
            f"{FLAG} is {frames}, and {family.title} makes a multiple of {family.frame_multiple} and one.",
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
