"""Frames with a border of zeros below and on the right, in channels-last memory, for a convolution that halves them.

Formula: ``out[b, c, t, i, j] = x[b, c, t, i, j]``, and 0 in the last ``border`` rows and columns.

Shapes: x [B, C, T, H, W] bf16 or fp32, of any strides; border 0 or more. The result is [B, C, T, H + border,
W + border] with its channels last in memory, which is also [B T, C, H + border, W + border] in channels-last memory.

Rounds: nothing; bits are moved.

Replaces: ``permute`` and ``reshape`` to pictures, ``ZeroPad2d((0, 1, 0, 1))`` of ``WanResample`` (diffusers 0.42.1),
and the conversion of their result inside cuDNN.

Exact: yes, by construction.

Declines: other dtypes, a negative border, 2^31 elements a sample of the result or more; CPU tensors.

Bytes: x in once, the result out once: 4 per bf16 element, where eager moves 12.

Check first: if the trace shows ``constant_pad`` in an encode, check whether ``wan_vae_downsampling`` was rejected or
declined.

Source: our own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels import wan_norm_silu
from fuseproof.fastpaths.kernels.arguments import first_of
from fuseproof.fastpaths.kernels.launching import CompileCase, device_reason, on_device_of

POSITIONS, WIDEST_TILE = 64, 64
LARGEST_SAMPLE = 2**31


def reference(x: torch.Tensor, border: int) -> torch.Tensor:
    """diffusers' padding, turned by torch."""
    return F.pad(x, (0, border, 0, border)).contiguous(memory_format=torch.channels_last_3d)


@triton.jit(do_not_specialize=["frames", "height", "width"])
def _bordered_frames_kernel(  # type: ignore[no-untyped-def]
    x_ptr, out_ptr, channels, frames, height, width, x_b, x_c, x_t, x_h, x_w,
    BORDER: tl.constexpr, POSITIONS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """A tile of positions and channels of the result."""
    sample = tl.program_id(2).to(tl.int64)
    out_width = width + BORDER
    plane = (height + BORDER) * out_width
    position = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    mask = (position < frames * plane)[:, None] & (channel < channels)[None, :]
    frame = position // plane
    row = (position % plane) // out_width
    column = position % out_width
    is_picture = ((row < height) & (column < width))[:, None]
    place = frame.to(tl.int64) * x_t + row.to(tl.int64) * x_h + column * x_w
    pointers = x_ptr + sample * x_b + place[:, None] + channel[None, :] * x_c
    x = tl.load(pointers, mask=mask & is_picture, other=0.0)
    target = (sample * frames * plane + position)[:, None] * channels + channel[None, :]
    tl.store(out_ptr + target, x, mask=mask)


def reject_reason(x: torch.Tensor, border: int) -> str | None:
    """Why the kernel cannot take these arguments, or None."""
    if x.ndim != 5 or x.numel() == 0:
        return f"x has shape {list(x.shape)}; the kernel needs [B, C, T, H, W] with at least one element"
    elements = x[0, :, :, 0, 0].numel() * (x.shape[3] + border) * (x.shape[4] + border)
    return first_of(
        device_reason("x", x),
        wan_norm_silu.dtype_reason("x", x.dtype),
        f"border is {border}; the kernel needs 0 or more" if border < 0 else None,
        f"a sample of the result has {elements} elements; the kernel needs fewer than {LARGEST_SAMPLE}"
        if elements >= LARGEST_SAMPLE
        else None,
    )


def fused(x: torch.Tensor, border: int) -> torch.Tensor:
    """``x`` with its border, in channels-last memory."""
    samples, channels, frames, height, width = x.shape
    shape = (samples, channels, frames, height + border, width + border)
    out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last_3d)
    tile_width = min(WIDEST_TILE, triton.next_power_of_2(channels))
    positions = frames * shape[3] * shape[4]
    with on_device_of(x):
        _bordered_frames_kernel[(triton.cdiv(positions, POSITIONS), triton.cdiv(channels, tile_width), samples)](
            x, out, channels, frames, height, width, *x.stride(),
            BORDER=border, POSITIONS=POSITIONS, WIDTH=tile_width, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return out


def traffic_bytes(x: torch.Tensor, border: int) -> int:
    """Fewest bytes: the input once, the result once."""
    samples, channels, frames, height, width = x.shape
    return x.nbytes + samples * channels * frames * (height + border) * (width + border) * x.element_size()


def compile_cases() -> list[CompileCase]:
    """Both dtypes."""
    sizes = ("channels", "frames", "height", "width", "x_b", "x_c", "x_t", "x_h", "x_w")
    constants = {"BORDER": 1, "POSITIONS": POSITIONS, "WIDTH": WIDEST_TILE}
    return [
        CompileCase(
            _bordered_frames_kernel,
            {"x_ptr": f"*{kind}", "out_ptr": f"*{kind}", **dict.fromkeys(sizes, "i32")},
            constants,
            {"num_warps": 4, "enable_fp_fusion": False},
        )
        for kind in ("bf16", "fp32")
    ]


@torch.library.custom_op("fuseproof::bordered_frames", mutates_args=())
def bordered_frames(x: torch.Tensor, border: int) -> torch.Tensor:
    """:func:`fused` as an operator that ``torch.compile`` can carry."""
    return fused(x, border)


@bordered_frames.register_fake
def _fake(x: torch.Tensor, border: int) -> torch.Tensor:
    samples, channels, frames, height, width = x.shape
    shape = (samples, channels, frames, height + border, width + border)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last_3d)
