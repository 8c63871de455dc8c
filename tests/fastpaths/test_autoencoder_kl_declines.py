"""When the VAE's sites decline, at mount and call by call, and that a declined call is eager to the last bit."""

import pytest
import torch
from torch import nn

from fuseproof.fastpaths.sites import autoencoder_kl
from fuseproof.fastpaths.sites.autoencoder_kl import modules
from tests.fastpaths.kernels.conftest import exact_rounding  # noqa: F401 - a fixture: the interpreter rounds exactly
from tests.fastpaths.small_vae import (
    CONVOLUTIONS,
    NORMS,
    Installed,
    as_cuda,  # noqa: F401 - a fixture
    bits,
    decode,
    few_channels,  # noqa: F401 - a fixture
    few_steps,  # noqa: F401 - a fixture
    latents,
    make_vae,
)

ON_CPU = "the model is on cpu; Triton kernels need a CUDA device"


@pytest.fixture
def vae():
    return make_vae()


def test_a_mount_on_a_cpu_declines(vae):
    assert {NORMS: ON_CPU, CONVOLUTIONS: ON_CPU} == autoencoder_kl.site_reasons(vae)


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
CONV1 = "mid_block.resnets.0.conv1"
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
}


@pytest.mark.parametrize(("expected_reason", "change"), REASONS.values(), ids=REASONS)
def test_reject_reasons(expected_reason, change, vae):
    assert modules.reject_reason(vae) is None
    change(vae)
    assert expected_reason == modules.reject_reason(vae)


@pytest.mark.parametrize("change", [lambda vae: vae.float(), hook], ids=["fp32", "hook"])
def test_the_device_is_named_before_any_lesser_obstacle(change, vae):
    change(vae)
    assert ON_CPU == autoencoder_kl.reject_reason(vae)


def test_another_class_is_not_asked_further():
    assert "vae is Linear, the sites need AutoencoderKL or AutoencoderKLFlux2" == autoencoder_kl.reject_reason(
        nn.Linear(2, 2)
    )


def upcast(vae):
    vae.float()
    return latents().float()


CALLS = {
    "fp32-activations": ("activations are torch.float32; the kernels need torch.bfloat16", upcast),
    "a-hook-since-mounting": (f"decoder: {CONV1} has a hook or another forward since the mount", hook),
    "training": ("called with a time embedding or training mode", lambda vae: vae.train() and None),
    "strides": (
        "activations have strides [128, 16, 1, 4]; the kernels need them contiguous or channels-last",
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
