"""The VAE's sites on a small real AutoencoderKL: what the gates decide, and that every bit stays.

A CPU rounds norms and convolutions in ways of its own. Where a test is to see the fused forms accepted, torch's
functions are replaced by models that round as CUDA does; the kernels themselves are interpreted.
"""

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLFlux2
from torch import nn

from fuseproof.fastpaths import mount
from fuseproof.fastpaths.families import family_of
from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.kernels import conv_bias_residual, group_norm_silu
from fuseproof.fastpaths.sites import autoencoder_kl
from fuseproof.fastpaths.sites.autoencoder_kl import layouts
from tests.fastpaths.kernels import cuda_order
from tests.fastpaths.kernels.conftest import exact_rounding  # noqa: F401 - a fixture: the interpreter rounds exactly
from tests.fastpaths.small_vae import (
    CONVOLUTIONS,
    NORMS,
    RESIDUAL_BLOCKS,
    Installed,
    as_cuda,  # noqa: F401 - a fixture
    bits,
    decode,
    encode,
    few_channels,  # noqa: F401 - a fixture
    few_steps,  # noqa: F401 - a fixture
    latents,
    make_vae,
)


@pytest.fixture
def vae():
    return make_vae()


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
def test_the_class_of_flux2_has_the_same_coders():
    vae = make_vae(AutoencoderKLFlux2)
    eager = decode(vae)
    with Installed(vae) as gates:
        assert torch.equal(bits(eager), bits(decode(vae)))
    assert {} == gates[NORMS].rejections | gates[CONVOLUTIONS].rejections
    assert (1, 0) == (gates[NORMS].calls_fused, gates[NORMS].calls_eager)
    assert (RESIDUAL_BLOCKS + 3, 0) == (gates[CONVOLUTIONS].calls_fused, gates[CONVOLUTIONS].calls_eager)
    assert autoencoder_kl is family_of(vae)


@pytest.mark.usefixtures("as_cuda")
def test_encoding_runs_fused(vae):
    eager = encode(vae)
    with Installed(vae) as gates:
        assert torch.equal(bits(eager), bits(encode(vae)))
    assert {} == gates[NORMS].rejections | gates[CONVOLUTIONS].rejections
    assert (1, 0) == (gates[NORMS].calls_fused, gates[NORMS].calls_eager)
    assert (2 + 2 + 2, 1) == (gates[CONVOLUTIONS].calls_fused, gates[CONVOLUTIONS].calls_eager)
    assert ["a first convolution of 3 channels has other bits channels-last; it needs 4 or more"] == list(
        gates[CONVOLUTIONS].declined
    )


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


def doubled_channels_last(x, weight, bias=None, *options):
    """A convolution whose bits depend on the layout."""
    is_turned = not x.is_contiguous() and weight.shape[2] == 3
    return cuda_order.conv2d(x, weight, bias, *options) * (1.5 if is_turned else 1)


@pytest.mark.usefixtures("as_cuda")
def test_narrow_convolutions_stay_contiguous_and_nothing_is_rejected(vae, monkeypatch):
    monkeypatch.setattr(layouts, "WIDE_ENOUGH", 64)
    monkeypatch.setattr(F, "conv2d", doubled_channels_last)
    eager = decode(vae)
    with Installed(vae) as gates:
        assert torch.equal(bits(eager), bits(decode(vae)))
    assert {} == gates[NORMS].rejections | gates[CONVOLUTIONS].rejections
    needs = "channels may have other bits channels-last; it needs 64 or more on one side"
    assert {f"a convolution of {a} to {b} {needs}" for a, b in ((8, 8), (8, 4), (4, 4), (4, 3))} == set(
        gates[CONVOLUTIONS].declined
    )
    assert (RESIDUAL_BLOCKS, 2) == (gates[CONVOLUTIONS].calls_fused, gates[CONVOLUTIONS].calls_eager)
    assert 2 * RESIDUAL_BLOCKS + 2 == gates[NORMS].calls_fused


@pytest.mark.usefixtures("as_cuda")
def test_where_channels_last_is_rejected_the_epilogue_remains(vae, monkeypatch):
    monkeypatch.setattr(F, "conv2d", doubled_channels_last)
    eager = decode(vae)
    with Installed(vae) as gates:
        assert torch.equal(bits(eager), bits(decode(vae)))
        rejected = {key[:2][-1][0] for key in gates[CONVOLUTIONS].rejections}
        assert {"convolution", "residual", "upsampler", "norm-convolution"} == rejected
        tried = [gate.first_sights for gate in gates.values()]
        for gate in gates.values():
            gate.restart_counting()
        assert torch.equal(bits(eager), bits(decode(vae)))
        assert tried == [gate.first_sights for gate in gates.values()]  # what took over had its turn before
    assert (2 * RESIDUAL_BLOCKS + 2, 0) == (gates[NORMS].calls_fused, gates[NORMS].calls_eager)
    assert RESIDUAL_BLOCKS == gates[CONVOLUTIONS].calls_fused
    assert 2 == gates[CONVOLUTIONS].calls_eager  # the first convolution and the upsampler


@pytest.mark.usefixtures("as_cuda")
def test_observers_see_the_kernels_inside_a_block(vae):
    seen = {name: set() for name in autoencoder_kl.SITES}

    def prepare(gates):
        for name, gate in gates.items():
            gate.call_observer = lambda operation, arguments, outputs, name=name: seen[name].add(operation.name)

    with Installed(vae, prepare=prepare):
        decode(vae)
    assert {NORMS: {"group_norm_silu"}, CONVOLUTIONS: {"conv_bias_residual", "channels_last_copy"}} == seen


@pytest.mark.usefixtures("as_cuda")
def test_a_kernel_of_the_users_keeps_its_own_gate_inside_a_block(vae):
    own = Gate("mine")
    kernel = SimpleNamespace(
        reject_reason=lambda *_: None, fused=lambda *arguments: group_norm_silu.fused(*arguments).neg_().neg_()
    )

    def prepare(gates):
        gates[NORMS].stand_ins["group_norm_silu"] = (kernel, own)

    eager = decode(vae)
    with Installed(vae, prepare=prepare) as gates:
        assert torch.equal(bits(eager), bits(decode(vae)))
    assert 2 * RESIDUAL_BLOCKS + 2 == own.calls_fused
    assert {} == own.rejections | gates[CONVOLUTIONS].rejections


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
    monkeypatch.setattr(autoencoder_kl, "site_reasons", lambda vae: {})  # as on a card: here kernels are interpreted
    eager = decode(vae)
    with mount(SimpleNamespace(transformer=nn.Linear(2, 2), vae=vae)) as mounted:
        assert torch.equal(bits(eager), bits(decode(vae)))
    states = {name: site["state"] for name, site in mounted.report()["sites"].items()}
    assert {NORMS: "fused", CONVOLUTIONS: "fused"} == states
