"""The VAE's sites on a small real AutoencoderKL: what the gates decide, and when the sites decline.

A CPU rounds norms and convolutions in ways of its own. Where a test is to see the fused forms accepted, torch's
functions are replaced by models that round as CUDA does; the kernels themselves are interpreted.
"""

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL
from torch import nn
from triton import knobs

from fuseproof.fastpaths import families, mount
from fuseproof.fastpaths.gates import Gate, GateMode
from fuseproof.fastpaths.kernels import conv_bias_residual, group_norm_statistics
from fuseproof.fastpaths.sites import autoencoder_kl
from tests.fastpaths.kernels import cuda_order
from tests.fastpaths.kernels.conftest import exact_rounding  # noqa: F401 - a fixture: the interpreter rounds exactly

NORMS, CONVOLUTIONS = autoencoder_kl.SITES
RESIDUAL_BLOCKS = 2 + 2 * 2  # in the middle, and two for each of two levels


def make_vae(dtype=torch.bfloat16, **changes):
    torch.manual_seed(0)
    arguments = {
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
        "block_out_channels": (4, 8),
        "layers_per_block": 1,
        "latent_channels": 2,
        "norm_num_groups": 2,
        "sample_size": 8,
        "use_quant_conv": False,
        "use_post_quant_conv": False,
    }
    vae = AutoencoderKL(**{**arguments, **changes}).eval()
    with torch.no_grad():
        for parameter in vae.parameters():  # biases and norms away from 0 and 1
            parameter.add_(0.1 * torch.randn_like(parameter))
    return vae.to(dtype)


@pytest.fixture
def vae():
    return make_vae()


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(group_norm_statistics, "STEPS", 2)


@pytest.fixture
def as_cuda(monkeypatch):
    """torch's functions round as on CUDA."""
    for name in ("group_norm", "silu", "conv2d"):
        monkeypatch.setattr(F, name, getattr(cuda_order, name))


class Installed:
    """The sites in a VAE, without the pipeline around it."""

    def __init__(self, vae, sites=autoencoder_kl.SITES, mode=GateMode.ENFORCE):
        self.gates = {name: Gate(name, mode) for name in sites}
        self.installation = autoencoder_kl.install(vae, self.gates)

    def __enter__(self):
        return self.gates

    def __exit__(self, *_):
        for replacement in reversed(self.installation.replacements):
            replacement.take_off()


def latents(seed=0):
    return torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(seed)).bfloat16()


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


@pytest.mark.usefixtures("as_cuda")
def test_decoding_runs_fused_from_the_first_call_on(vae):
    eager = decode(vae)
    with Installed(vae) as gates:
        assert torch.equal(bits(eager), bits(decode(vae)))
        assert {} == gates[NORMS].rejections | gates[CONVOLUTIONS].rejections
        assert (1, 0) == (gates[NORMS].calls_fused, gates[NORMS].calls_eager)  # the attention's
        assert (RESIDUAL_BLOCKS + 3, 0) == (gates[CONVOLUTIONS].calls_fused, gates[CONVOLUTIONS].calls_eager)
        first_sights = gates[CONVOLUTIONS].first_sights
        assert 0 < first_sights < RESIDUAL_BLOCKS + 3  # blocks of one geometry share a key
        other = latents(seed=1)
        again = decode(vae, other)
        assert first_sights == gates[CONVOLUTIONS].first_sights
    assert torch.equal(bits(decode(vae, other)), bits(again))


@pytest.mark.usefixtures("as_cuda")
def test_encoding_runs_fused(vae):
    eager = encode(vae)
    with Installed(vae) as gates:
        assert torch.equal(bits(eager), bits(encode(vae)))
    assert {} == gates[NORMS].rejections | gates[CONVOLUTIONS].rejections
    assert (1, 0) == (gates[NORMS].calls_fused, gates[NORMS].calls_eager)
    assert (2 + 2 + 3, 0) == (gates[CONVOLUTIONS].calls_fused, gates[CONVOLUTIONS].calls_eager)


@pytest.mark.usefixtures("as_cuda")
def test_norms_alone(vae):
    eager = decode(vae)
    with Installed(vae, (NORMS,)) as gates:
        assert torch.equal(bits(eager), bits(decode(vae)))
    assert {} == gates[NORMS].rejections
    assert (2 * RESIDUAL_BLOCKS + 2, 0) == (gates[NORMS].calls_fused, gates[NORMS].calls_eager)


@pytest.mark.usefixtures("as_cuda")
def test_convolutions_alone(vae):
    eager = decode(vae)
    with Installed(vae, (CONVOLUTIONS,)) as gates:
        assert torch.equal(bits(eager), bits(decode(vae)))
    assert {} == gates[CONVOLUTIONS].rejections


@pytest.mark.usefixtures("as_cuda")
def test_where_channels_last_is_rejected_the_epilogue_remains(vae, monkeypatch):
    def by_layout(x, weight, bias=None, *options):
        is_turned = not x.is_contiguous() and weight.shape[2] == 3
        return cuda_order.conv2d(x, weight, bias, *options) * (1.5 if is_turned else 1)

    monkeypatch.setattr(F, "conv2d", by_layout)
    eager = decode(vae)
    with Installed(vae) as gates:
        assert torch.equal(bits(eager), bits(decode(vae)))
        rejected = {key[:2][-1][0] for key in gates[CONVOLUTIONS].rejections}
        assert {"convolution", "residual", "upsampler", "norm-convolution"} == rejected
        for gate in gates.values():
            gate.restart_counting()
        assert torch.equal(bits(eager), bits(decode(vae)))
    assert (2 * RESIDUAL_BLOCKS + 2, 0) == (gates[NORMS].calls_fused, gates[NORMS].calls_eager)
    assert RESIDUAL_BLOCKS == gates[CONVOLUTIONS].calls_fused
    assert 2 == gates[CONVOLUTIONS].calls_eager  # the first convolution and the upsampler


@pytest.mark.usefixtures("as_cuda")
def test_wrong_bits_are_rejected(vae, monkeypatch):
    eager = decode(vae)
    right = conv_bias_residual.fused
    monkeypatch.setattr(conv_bias_residual, "fused", lambda *a, **k: right(*a, **k).add_(0.25))
    with Installed(vae) as gates:
        assert torch.equal(bits(eager), bits(decode(vae)))
        assert torch.equal(bits(eager), bits(decode(vae)))
    assert 0 == gates[CONVOLUTIONS].calls_fused
    assert all("not bit-exact" in rejection.reason for rejection in gates[CONVOLUTIONS].rejections.values())


def test_a_cpu_of_its_own_arithmetic_is_decided_by_the_gates(vae):
    eager = decode(vae), encode(vae)
    with Installed(vae) as gates:
        assert torch.equal(bits(eager[0]), bits(decode(vae)))
        assert torch.equal(bits(eager[1]), bits(encode(vae)))
        assert 0 < sum(gate.first_sights for gate in gates.values())


@pytest.mark.usefixtures("as_cuda")
def test_tiling_and_slicing_use_the_same_modules(vae):
    z = torch.cat([torch.cat([latents(0), latents(1)], dim=3), torch.cat([latents(2), latents(3)], dim=3)])
    vae.enable_tiling()
    vae.tile_overlap_factor = 0.0
    vae.enable_slicing()
    eager = decode(vae, z)
    with Installed(vae) as gates:
        assert torch.equal(bits(eager), bits(decode(vae, z)))
    assert {} == gates[NORMS].rejections | gates[CONVOLUTIONS].rejections
    assert 0 < gates[CONVOLUTIONS].calls_fused


def test_taking_off_restores_every_forward(vae):
    before = dict(vae.state_dict())
    with Installed(vae):
        assert 0 < sum("forward" in vars(module) for module in vae.modules())
        assert list(before) == list(vae.state_dict())
        copied = copy.deepcopy(vae)
    assert [] == [name for name, module in vae.named_modules() if "forward" in vars(module)]
    assert autoencoder_kl.reject_reason(copied) is None
    assert torch.equal(bits(decode(vae)), bits(decode(copied)))
    assert all(before[name] is tensor or torch.equal(before[name], tensor) for name, tensor in vae.state_dict().items())


@pytest.mark.usefixtures("as_cuda")
def test_mounted_by_class_name(vae, monkeypatch):
    monkeypatch.setitem(families.FAMILIES, "AutoencoderKL", autoencoder_kl.__name__)
    eager = decode(vae)
    with mount(SimpleNamespace(transformer=nn.Linear(2, 2), vae=vae)) as mounted:
        assert torch.equal(bits(eager), bits(decode(vae)))
    states = {name: site["state"] for name, site in mounted.report()["sites"].items()}
    assert {NORMS: "fused", CONVOLUTIONS: "fused"} == states


def test_without_the_interpreter_a_cpu_declines(vae, monkeypatch):
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    reason = "the model is on cpu; the kernel needs a CUDA device"
    assert {NORMS: reason, CONVOLUTIONS: reason} == autoencoder_kl.site_reasons(vae)


def hook(vae):
    vae.decoder.mid_block.resnets[0].conv1.register_forward_hook(lambda *_: None)


def wrap(vae):
    vae.decoder.mid_block.resnets[0].forward = lambda *_: None


def adapt(vae):
    class LoraConv(nn.Conv2d):
        pass

    vae.encoder.mid_block.resnets[0].conv1.__class__ = LoraConv


def quantise(vae):
    class Quantised(torch.Tensor):
        pass

    convolution = vae.decoder.conv_out
    convolution.weight = nn.Parameter(convolution.weight.detach().as_subclass(Quantised))


BLOCK = "decoder.mid_block.resnets.0"
PLAIN = "is not a plain Conv2d, GroupNorm, SiLU or Dropout (an adapter or a quantised layer?)"
REASONS = {
    "fp32": ("weights are float32; the kernels need bfloat16 throughout", lambda vae: vae.float()),
    "mixed": (
        "weights are bfloat16, float32; the kernels need bfloat16 throughout",
        lambda vae: vae.decoder.conv_in.float(),
    ),
    "hook": (f"{BLOCK}: Conv2d has a hook or another forward", hook),
    "forward": (f"{BLOCK} has a hook or another forward, which the sites would pass by", wrap),
    "adapter": (f"encoder.mid_block.resnets.0: LoraConv {PLAIN}", adapt),
    "quantised": ("decoder: Conv2d.weight is a Quantised (a quantised layer?)", quantise),
    "activation": (
        f"encoder.down_blocks.0.resnets.0: GELU {PLAIN}",
        lambda vae: setattr(vae.encoder.down_blocks[0].resnets[0], "nonlinearity", nn.GELU()),
    ),
    "dropout": (
        "encoder.down_blocks.0.resnets.0: dropout is 0.5, the site needs 0",
        lambda vae: setattr(vae.encoder.down_blocks[0].resnets[0].dropout, "p", 0.5),
    ),
    "padding": (
        "decoder: a convolution without bias, or with a padding other than zeros",
        lambda vae: setattr(vae.decoder.conv_in, "padding_mode", "reflect"),
    ),
    "class": ("vae is Linear, the sites need AutoencoderKL", lambda _: nn.Linear(2, 2)),
}


@pytest.mark.parametrize(("expected_reason", "change"), REASONS.values(), ids=REASONS)
def test_reject_reasons(expected_reason, change, vae):
    assert autoencoder_kl.reject_reason(vae) is None
    changed = change(vae)
    assert expected_reason == autoencoder_kl.reject_reason(changed if isinstance(changed, nn.Linear) else vae)


def upcast(vae):
    vae.float()
    return latents().float()


CALLS = {
    "fp32-activations": ("activations are torch.float32; the kernels need torch.bfloat16", upcast),
    "a-hook-since-mounting": ("Conv2d has a hook or another forward", hook),
    "training": ("called with a time embedding or training mode", lambda vae: vae.train() and None),
    "strides": (
        "activations have strides [32, 16, 1, 4]; the kernels need them contiguous or channels-last",
        lambda _: latents().transpose(2, 3),
    ),
}


@pytest.mark.usefixtures("as_cuda")
@pytest.mark.parametrize(("expected_reason", "change"), CALLS.values(), ids=CALLS)
def test_calls_decline(expected_reason, change, vae, monkeypatch):
    with Installed(vae) as gates:
        z = change(vae)
        if z is not None and z.dtype == torch.float32:
            monkeypatch.undo()  # the models are for bf16
        fused = decode(vae, z)
        assert expected_reason in gates[CONVOLUTIONS].declined
    assert torch.equal(decode(vae, z), fused)


def test_autocast_declines(vae):
    with Installed(vae) as gates, torch.autocast("cpu", dtype=torch.bfloat16):
        decode(vae)
    assert {"autocast is on"} == set(gates[CONVOLUTIONS].declined)


def test_gradients_are_those_of_eager_after_the_gates_have_decided(vae):
    def gradient():
        z = latents().requires_grad_()
        vae.decode(z, return_dict=False)[0].float().square().sum().backward()
        return z.grad

    eager = gradient()
    with Installed(vae) as gates:
        decode(vae)
        for gate in gates.values():
            gate.restart_counting()
        assert torch.equal(bits(eager), bits(gradient()))
        assert 0 == gates[NORMS].calls_fused + gates[CONVOLUTIONS].calls_fused


def test_first_seen_with_gradients_is_declined(vae):
    with Installed(vae) as gates:
        vae.decode(latents())
    assert 0 == gates[NORMS].first_sights + gates[CONVOLUTIONS].first_sights
    assert 0 < gates[CONVOLUTIONS].calls_eager


@pytest.mark.usefixtures("as_cuda")
@pytest.mark.parametrize(
    ("declined", "make_latents"),
    [
        pytest.param(2, lambda: latents().contiguous(memory_format=torch.channels_last), id="channels-last"),
        pytest.param(1, lambda: torch.cat([latents(0), latents(1)]), id="two-samples-from-the-attention-on"),
    ],
)
def test_what_eager_convolves_in_channels_last_is_left_to_it(declined, make_latents, vae):
    z = make_latents()
    eager = decode(vae, z)
    with Installed(vae) as gates:
        fused = decode(vae, z)
    assert eager.stride() == fused.stride()
    assert torch.equal(bits(eager), bits(fused))
    assert {} == gates[CONVOLUTIONS].rejections
    assert {"eager convolves this tensor in channels-last already": declined} == gates[CONVOLUTIONS].declined
