"""A small real AutoencoderKL, the sites in it, and torch functions that round as CUDA does."""

import pytest
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.kernels import group_norm_statistics
from fuseproof.fastpaths.sites import autoencoder_kl
from fuseproof.fastpaths.sites.autoencoder_kl import layouts
from tests.fastpaths.kernels import cuda_order

NORMS, CONVOLUTIONS = autoencoder_kl.SITES
RESIDUAL_BLOCKS = 2 + 2 * 2  # in the middle, and two for each of two levels


def make_vae(kind=AutoencoderKL):
    torch.manual_seed(0)
    arguments = {
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
        "block_out_channels": (4, 8),
        "layers_per_block": 1,
        "latent_channels": 8,
        "norm_num_groups": 2,
        "sample_size": 8,
        "use_quant_conv": False,
        "use_post_quant_conv": False,
    }
    vae = kind(**arguments).eval()
    with torch.no_grad():
        for parameter in vae.parameters():  # biases and norms away from 0 and 1
            parameter.add_(0.1 * torch.randn_like(parameter))
    return vae.to(torch.bfloat16)


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(group_norm_statistics, "STEPS", 2)


@pytest.fixture(autouse=True)
def few_channels(monkeypatch):
    """These convolutions are narrow, and a CPU's models of cuDNN sum them in one order whatever the layout."""
    monkeypatch.setattr(layouts, "WIDE_ENOUGH", 4)
    monkeypatch.setattr(layouts, "CHANNELS_OF_A_VECTOR", 4)


@pytest.fixture
def as_cuda(monkeypatch):
    """torch's functions round as on CUDA."""
    for name in ("group_norm", "silu", "conv2d"):
        monkeypatch.setattr(F, name, getattr(cuda_order, name))


class Installed:
    """The sites in a VAE, without the pipeline around it."""

    def __init__(self, vae, sites=autoencoder_kl.SITES, prepare=lambda gates: None):
        self.gates = {name: Gate(name) for name in sites}
        prepare(self.gates)
        self.installation = autoencoder_kl.install(vae, self.gates)

    def __enter__(self):
        return self.gates

    def __exit__(self, *_):
        for replacement in reversed(self.installation.replacements):
            replacement.take_off()


def latents(seed=0):
    return torch.randn(1, 8, 4, 4, generator=torch.Generator().manual_seed(seed)).bfloat16()


def image():
    return torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)).bfloat16()


def bits(tensor):
    return tensor.contiguous().view(torch.int16)


@torch.no_grad()
def decode(vae, z=None):
    return vae.decode(latents() if z is None else z, return_dict=False)[0]


@torch.no_grad()
def encode(vae):
    return vae.encode(image()).latent_dist.parameters
