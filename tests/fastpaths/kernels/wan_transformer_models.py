"""What CUDA computes in a Wan block's norms, step by step, and the arguments that its kernels are tested with.

:func:`norms_of_cuda` puts the models in the place of ``F.layer_norm`` and ``F.rms_norm``: then diffusers' own modules,
and the references of the kernels, give a card's bits on a CPU, whose other operations in fp32 and bf16 are a card's.
"""

import numpy as np
import torch
import torch.nn.functional as F

from tests.fastpaths.kernels.row_models import EPS, exact_fma, fuse_interpreted_fma, normal, statistics

SHIFT, SCALE, GATE, SHIFT_FFN, SCALE_FFN, GATE_FFN = range(6)
THREADS, LANES, VECTOR = 128, 32, 4


def layer_norm(x, _shape, weight=None, bias=None, eps=EPS):
    """aten's vectorized CUDA kernel: fp32 rows in, fp32 rows out; with weights it contracts them."""
    assert torch.float32 == x.dtype
    rows = x.reshape(-1, x.shape[-1]).numpy()
    mean, rstd = statistics(rows, eps)
    with np.errstate(all="ignore"):
        normalized = rstd * (rows - mean)
    if weight is not None:
        normalized = exact_fma(weight.detach().numpy(), normalized, bias.detach().numpy())
    return torch.from_numpy(normalized).reshape(x.shape)


def rms_norm(x, _shape, weight, eps, *, ascending=False, weight_first=False):
    """The same kernel's other form: bf16 rows in, bf16 rows out, one rounding.

    ``ascending`` folds lanes 1, 2, 4, 8, 16 apart, ``weight_first`` multiplies the weight with rstd: other orders.
    """
    assert torch.bfloat16 == x.dtype == weight.dtype
    rows = x.detach().float().reshape(-1, x.shape[-1]).numpy()
    total = sum_of_squares(rows, ascending=ascending)
    with np.errstate(all="ignore"):
        rstd = np.float32(1) / np.sqrt(total / np.float32(rows.shape[1]) + np.float32(eps))
        weights = weight.detach().float().numpy()
        normed = (weights * rstd) * rows if weight_first else weights * (rstd * rows)
    return torch.from_numpy(normed).bfloat16().reshape(x.shape)


def sum_of_squares(rows, *, ascending=False):
    """fp32 [R, 1] of [R, D]: 128 threads of four neighbours, lanes 16, 8, 4, 2, 1 apart, then warps 2 and 1 apart."""
    count, width = rows.shape
    padded = np.zeros((count, -(-width // (THREADS * VECTOR)) * THREADS * VECTOR), np.float32)
    padded[:, :width] = rows
    vectors = padded.reshape(count, -1, THREADS, VECTOR)
    sums = np.zeros((count, THREADS), np.float32)
    for part in range(vectors.shape[1]):
        for element in range(VECTOR):
            value = vectors[:, part, :, element]
            sums = exact_fma(value, value, sums)
    lanes = sums.reshape(count, THREADS // LANES, LANES)
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., 0::2] + lanes[..., 1::2] if ascending else lanes[..., :half] + lanes[..., half:]
    warps = lanes[..., 0]
    warps = warps[:, :2] + warps[:, 2:]
    return warps[:, :1] + warps[:, 1:]


def norms_of_cuda(monkeypatch):
    """From now on torch's norms, and the interpreter's fma, give a card's bits."""
    fuse_interpreted_fma(monkeypatch)
    monkeypatch.setattr(F, "layer_norm", layer_norm)
    monkeypatch.setattr(F, "rms_norm", rms_norm)


def modulation(seed, batch, rows, width, *, embeddings=1, vectors=6, temb_dtype=torch.bfloat16):
    """Table [1, vectors, D] fp32, embedding [B, R, vectors, D] and, for several rows of it, the row of each token."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(1, vectors, width, generator=generator)
    temb = torch.randn(batch, embeddings, vectors, width, generator=generator).to(temb_dtype)
    if embeddings == 1:
        return table, temb, None
    return table, temb, (torch.arange(rows).flip(0) % embeddings).to(torch.int32)


def affine(seed, width):
    """Weight and bias [D] of norm2, which stays in fp32."""
    generator = torch.Generator().manual_seed(seed)
    return 1 + 0.2 * torch.randn(width, generator=generator), torch.randn(width, generator=generator)


def arguments(name, batch, rows, width, embeddings=1, temb_dtype=torch.bfloat16):
    """The positional arguments of a kernel over a block's rows; every tensor has values of its own."""
    hidden, update = normal(0, batch, rows, width), normal(1, batch, rows, width)
    of_block = modulation(2, batch, rows, width, embeddings=embeddings, temb_dtype=temb_dtype)
    of_next, _, _ = modulation(3, batch, rows, width)
    return {
        "table_layernorm_modulate": (hidden, *of_block, SHIFT, SCALE, EPS),
        "table_gated_residual": (hidden, update, *of_block, GATE_FFN),
        "table_gated_residual_layernorm": (hidden, update, *of_block, GATE, *affine(4, width), EPS),
        "residual_table_layernorm_modulate": (hidden, update, *of_block, SHIFT_FFN, SCALE_FFN, EPS),
        "table_gated_residual_table_layernorm_modulate": (
            hidden, update, *of_block, GATE_FFN, of_next, of_block[1], SHIFT, SCALE, EPS
        ),
    }[name]  # fmt: skip
