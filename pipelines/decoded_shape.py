"""Is what was decoded as large and as long as was asked for? A VAE decides that, and no pipeline looks again.

Another size is never kept, cut or resized: it is an error, before anything is encoded or written.
"""

from __future__ import annotations

from typing import Any

from fuseproof.errors import FuseproofError
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.wan import frames_made

COLOURS = 3


def refuse_another_shape(found: tuple[int, ...], pipe: Any, request: GenerationRequest) -> None:
    """Raise a FuseproofError unless ``found`` is [H, W, 3] of the request, or [T, H, W, 3] of its clip.

    T is what diffusers makes of the request's number of frames, which is said where it is another one.
    """
    expected: tuple[int, ...] = (request.height, request.width, COLOURS)
    if request.num_frames is not None:
        expected = (frames_made(request.num_frames, pipe.vae_scale_factor_temporal), *expected)
    refuse_unequal_shapes(found, expected)


def refuse_unequal_shapes(found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Raise a FuseproofError unless the decoded shape ``found`` is ``expected``; both as [H, W, C] or [T, H, W, C]."""
    if tuple(found) != expected:
        raise FuseproofError(
            f"The VAE decoded {_told(found)}; {_told(expected)} was expected.",
            next_step="Check the VAE's config: what it says of its scales must be what its blocks do.",
        )


def _told(shape: tuple[int, ...]) -> str:
    if len(shape) not in (COLOURS, COLOURS + 1):
        return f"an array of shape {list(shape)}"
    *frames, height, width, channels = shape
    picture = f"{width}x{height} pixels of {channels} channels"
    return picture if not frames else f"{frames[0]} frames of {picture}"
