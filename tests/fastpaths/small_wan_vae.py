"""Small real AutoencoderKLWans, the sites in them, and torch functions that round as CUDA does."""

import functools

import pytest
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.kernels import (
    average_downsample_add,
    bordered_frames,
    causal_conv_input,
    duplicate_upsample_add,
    nearest_upsample,
)
from fuseproof.fastpaths.sites import autoencoder_kl_wan
from fuseproof.fastpaths.sites.autoencoder_kl import layouts
from tests.fastpaths.kernels import wan_models

NORMS, BLOCKS, UPSAMPLING, DOWNSAMPLING = autoencoder_kl_wan.EXACT_SITES
GEOMETRIES = {
    "wan-2.1": {"dim_mult": [1, 2], "temperal_downsample": [True], "scale_factor_spatial": 2},
    "wan-2.2": {
        "dim_mult": [2, 2], "temperal_downsample": [True], "is_residual": True, "decoder_base_dim": 6,
        "in_channels": 12, "out_channels": 12, "patch_size": 2, "scale_factor_spatial": 4,
    },
}  # fmt: skip


DEEPER = {
    **GEOMETRIES["wan-2.2"], "dim_mult": [1, 2, 2], "temperal_downsample": [False, True], "scale_factor_spatial": 8
}  # fmt: skip
"""Halved in space alone as well."""


def make_vae(geometry="wan-2.2", dtype=torch.bfloat16):
    torch.manual_seed(0)
    vae = AutoencoderKLWan(
        base_dim=4,
        z_dim=4,
        num_res_blocks=1,
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
        **(GEOMETRIES | {"deeper": DEEPER})[geometry],
    )
    with torch.no_grad():
        for parameter in vae.parameters():  # biases and norms away from 0 and 1
            parameter.add_(0.1 * torch.randn_like(parameter))
    return vae.eval().to(dtype)


@pytest.fixture(autouse=True)
def few_channels(monkeypatch):
    """These convolutions are narrow, and a CPU's models of cuDNN sum them in one order whatever the layout."""
    monkeypatch.setattr(layouts, "WIDE_ENOUGH", 1)
    monkeypatch.setattr(layouts, "CHANNELS_OF_A_VECTOR", 1)


@pytest.fixture(autouse=True)
def large_tiles(monkeypatch):
    """The interpreter's time goes by programs, whatever their size."""
    monkeypatch.setattr(causal_conv_input, "tile_of", lambda channels: (512, 16))
    monkeypatch.setattr(duplicate_upsample_add, "POSITIONS", 512)
    for kernel in (nearest_upsample, bordered_frames, average_downsample_add):
        monkeypatch.setattr(kernel, "POSITIONS", 512)


def norm(x, p, dim, keepdim):
    """What CUDA sums for so few channels: four accumulators of one thread in planes, and others channels-last."""
    assert (2, 1, True) == (p, dim, keepdim)
    is_last = not x.is_contiguous() and x.movedim(1, -1).is_contiguous()
    return wan_models.norm(x.contiguous().flip(1) if is_last else x.contiguous(), 1, 1)


def convolution(plain, x, weight, bias=None, *options):
    """torch's cuDNN convolution: one rounding before the bias and one after it, the same sums in either layout."""
    if torch.is_autocast_enabled("cpu"):
        x, weight = x.bfloat16(), weight.bfloat16()
    output = plain(x.contiguous(), weight.contiguous(), None, *options)
    if bias is not None:
        output = output + bias.to(output.dtype).view(-1, *(1,) * (x.ndim - 2))
    is_turned = not x.is_contiguous() and x.movedim(1, -1).is_contiguous()
    return wan_models.in_layout(output, is_turned)


@pytest.fixture
def as_cuda(monkeypatch):
    """torch's functions round as on CUDA."""
    monkeypatch.setattr(F, "silu", wan_models.silu)
    monkeypatch.setattr(torch.Tensor, "norm", norm)
    monkeypatch.setattr(torch.Tensor, "mean", wan_models.mean)
    for name in ("conv2d", "conv3d"):
        monkeypatch.setattr(F, name, functools.partial(convolution, getattr(torch, name)))


class Installed:
    """The sites in a VAE, without the pipeline around it."""

    def __init__(self, vae, sites=autoencoder_kl_wan.EXACT_SITES, prepare=lambda gates: None):
        self.gates = {name: Gate(name) for name in sites}
        prepare(self.gates)
        self.installation = autoencoder_kl_wan.install(vae, self.gates)

    def __enter__(self):
        return self.gates

    def __exit__(self, *_):
        self.installation.take_off()


def latents(seed=0, frames=2, samples=1, height=2, width=2, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, 4, frames, height, width, generator=generator).to(dtype)


def video(frames=5, size=8, dtype=torch.bfloat16, samples=1, seed=0):
    return torch.randn(samples, 3, frames, size, size, generator=torch.Generator().manual_seed(seed)).to(dtype)


@torch.no_grad()
def decode(vae, z):
    return vae.decode(z, return_dict=False)[0]


@torch.no_grad()
def encode(vae, x):
    return vae.encode(x).latent_dist.parameters
