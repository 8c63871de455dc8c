"""The Wan VAE's sites on small real AutoencoderKLWans: what the gates decide, and that every bit and stride stays.

A CPU rounds norms and convolutions in ways of its own. Where a test is to see the fused forms accepted, torch's
functions are replaced by models that round as CUDA does; the kernels themselves are interpreted.
"""

import copy
import pickle

import pytest
import torch
from torch import nn

from fuseproof.fastpaths.kernels import channel_norms, duplicate_upsample_add
from fuseproof.fastpaths.sites import autoencoder_kl_wan
from tests.fastpaths.kernels.conftest import exact_rounding  # noqa: F401 - a fixture: the interpreter rounds exactly
from tests.fastpaths.kernels.wan_models import bits
from tests.fastpaths.small_wan_vae import (
    BLOCKS,
    DOWNSAMPLING,
    GEOMETRIES,
    NORMS,
    UPSAMPLING,
    Installed,
    as_cuda,  # noqa: F401 - a fixture
    decode,
    few_channels,  # noqa: F401 - a fixture
    large_tiles,  # noqa: F401 - a fixture
    latents,
    make_vae,
)

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def vae():
    return make_vae()


def assert_same(expected, actual):
    assert (expected.dtype, expected.stride()) == (actual.dtype, actual.stride())
    assert torch.equal(bits(expected), bits(actual))


def rejected(gates):
    return {key: one.reason for gate in gates.values() for key, one in gate.rejections.items()}


@pytest.mark.usefixtures("as_cuda")
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_decoding_runs_fused_from_the_first_call_on(geometry):
    vae = make_vae(geometry)
    z, other = latents(frames=3), latents(seed=1, frames=3)
    eager = decode(vae, z), decode(vae, other)
    with Installed(vae) as gates:
        assert_same(eager[0], decode(vae, z))
        assert {} == rejected(gates)
        first_sights = gates[BLOCKS].first_sights
        assert_same(eager[1], decode(vae, other))
        assert first_sights == gates[BLOCKS].first_sights
        assert [0, 0, 0, 0] == [gate.calls_eager for gate in gates.values()]
        assert {BLOCKS: 2 * 3 * 8, UPSAMPLING: 2 * 3, DOWNSAMPLING: 0, NORMS: 2 * 3} == {
            name: gate.calls_fused for name, gate in gates.items()
        }


@pytest.mark.usefixtures("as_cuda")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["without", "with-autocast"])
def test_fp32_weights_without_and_with_autocast(dtype):
    vae, z = make_vae(dtype=torch.float32), latents(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
        eager = decode(vae, z)
        with Installed(vae) as gates:
            assert_same(eager, decode(vae, z))
    assert {} == rejected(gates)
    assert 0 < gates[BLOCKS].calls_fused
    assert dtype is eager.dtype


@pytest.mark.usefixtures("as_cuda")
@pytest.mark.parametrize("site", [NORMS, BLOCKS, UPSAMPLING])
def test_each_site_alone(vae, site):
    eager = decode(vae, latents())
    with Installed(vae, (site,)) as gates:
        assert_same(eager, decode(vae, latents()))
    assert {} == rejected(gates)
    assert 0 < gates[site].calls_fused


@pytest.mark.usefixtures("as_cuda")
def test_where_torchs_order_is_unknown_torch_sums(vae, monkeypatch):
    monkeypatch.setattr(channel_norms, "order_on", lambda x, last: None)
    eager = decode(vae, latents())
    with Installed(vae) as gates:
        assert_same(eager, decode(vae, latents()))
    assert {} == rejected(gates)


@pytest.mark.usefixtures("as_cuda")
def test_a_form_that_was_rejected_gives_way_to_the_next(monkeypatch):
    monkeypatch.setattr(channel_norms, "order_on", lambda x, last: channel_norms.Order(4, 1))  # not what torch does
    vae, z = make_vae(dtype=torch.float32), latents(frames=1, dtype=torch.float32)  # bf16 would hide some orders
    eager = decode(vae, z)
    with Installed(vae) as gates:
        assert_same(eager, decode(vae, z))
        assert {(True, True)} == {tuple(key[0]) for key in gates[BLOCKS].rejections}
        tried = gates[BLOCKS].first_sights
        gates[BLOCKS].restart_counting()
        assert_same(eager, decode(vae, z))
        assert (0, tried) == (
            gates[BLOCKS].calls_eager,
            gates[BLOCKS].first_sights,
        )  # it had its turn before


@pytest.mark.usefixtures("as_cuda")
def test_batches_slices_and_tiles(vae):
    z = latents(samples=2, height=4, frames=1)
    for prepare in (lambda: None, vae.enable_slicing, lambda: vae.enable_tiling(8, 8, 8, 8)):
        prepare()
        eager = decode(vae, z)
        with Installed(vae) as gates:
            assert_same(eager, decode(vae, z))
        assert {} == rejected(gates)
        assert 0 < gates[BLOCKS].calls_fused


def test_a_cpu_of_its_own_arithmetic_is_decided_by_the_gates(vae):
    eager = decode(vae, latents())
    with Installed(vae):
        assert_same(eager, decode(vae, latents()))


@pytest.mark.usefixtures("as_cuda")
def test_wrong_bits_are_rejected(vae, monkeypatch):
    z = latents(frames=1)
    eager = decode(vae, z)
    right = duplicate_upsample_add.fused
    monkeypatch.setattr(duplicate_upsample_add, "fused", lambda *call: right(*call).add_(0.25))
    with Installed(vae) as gates:
        assert_same(eager, decode(vae, z))
    assert 0 == gates[BLOCKS].calls_fused
    assert all("not bit-exact" in reason for reason in rejected(gates).values())


@pytest.mark.usefixtures("as_cuda")
def test_turned_weights_are_dropped_after_every_decode_also_on_an_exception(vae, monkeypatch):
    z = latents(frames=1)
    eager = decode(vae, z)
    installed = Installed(vae)
    with installed:
        held = installed.installation.held[0]
        sizes = []
        decode(vae, z)
        assert 0 == len(held)
        with monkeypatch.context() as patch:

            def failing(*_, **__):
                sizes.append(len(held))
                raise RuntimeError("out of memory")

            patch.setattr(installed.gates[NORMS], "run", failing)  # the attention's, behind two blocks
            with pytest.raises(RuntimeError, match="out of memory"):
                decode(vae, z)
        assert (0, 1) == (len(held), len(sizes))
        assert 0 < sizes[0]
        assert_same(eager, decode(vae, z))


def test_gradients_and_a_changed_model_are_left_to_eager(vae):
    z = latents(frames=1)
    eager = decode(vae, z)
    with Installed(vae) as gates:
        assert vae.decode(z.clone().requires_grad_()).sample.requires_grad
        assert ["gradients are recorded"] == list(gates[BLOCKS].declined)
        vae.decoder.norm_out.scale *= 2
        changed = decode(vae, z)
        assert "decoder: norm_out.scale changed since the mount" in gates[BLOCKS].declined
        assert 0 == gates[BLOCKS].calls_fused
        vae.decoder.norm_out.scale /= 2
    assert not torch.equal(eager, changed)


def test_taking_off_restores_everything(vae):
    before = dict(vae.state_dict())
    with Installed(vae):
        assert {"_decode", "_encode"} <= set(vars(vae))
        copied = copy.deepcopy(vae)
        with pytest.raises(pickle.PicklingError, match="unmount them"):
            pickle.dumps(vae)
    assert [] == [name for name, module in vae.named_modules() if "forward" in vars(module)]
    assert set() == {"_decode", "_encode"} & set(vars(vae))
    assert autoencoder_kl_wan.reject_reason(copied) is None
    assert_same(decode(vae, latents(frames=1)), decode(copied, latents(frames=1)))
    assert list(before) == list(vae.state_dict())


REASONS = {
    "class": ("vae is Linear, the sites need AutoencoderKLWan", lambda _: nn.Linear(2, 2)),
    "mixed": (
        "convolutions are bfloat16, float32; the kernels need bfloat16 or float32 throughout",
        lambda vae: vae.decoder.conv_in.float() and vae,
    ),
    "fp16": (
        "encoder.conv_in: WanCausalConv3d.weight is torch.float16; the kernels need torch.bfloat16 or torch.float32",
        lambda vae: vae.half(),
    ),
    "hook": (
        "decoder.conv_in has a hook or another forward, which the sites would pass by",
        lambda vae: vae.decoder.conv_in.register_forward_hook(lambda *_: None) and vae,
    ),
    "activation": (
        "decoder.norm_out is GELU, which the sites do not know",
        lambda vae: setattr(vae.decoder, "norm_out", nn.GELU()) or vae,
    ),
    "method": (
        "vae is one of which _decode was replaced",
        lambda vae: setattr(vae, "_decode", lambda *_: None) or vae,
    ),
}


@pytest.mark.parametrize(("expected_reason", "change"), REASONS.values(), ids=REASONS)
def test_reject_reasons(vae, expected_reason, change):
    model = change(vae)
    reason = autoencoder_kl_wan.reject_reason(model)
    if isinstance(model, nn.Linear):
        assert expected_reason == reason
    else:
        assert "the model is on cpu; Triton kernels need a CUDA device" == reason
        assert expected_reason == autoencoder_kl_wan.modules.reject_reason(model)


def test_a_model_on_a_cpu_says_so(vae):
    assert autoencoder_kl_wan.reject_reason(vae) is None
    sites = autoencoder_kl_wan.SITES
    assert dict.fromkeys(sites, "the model is on cpu; Triton kernels need a CUDA device") == (
        autoencoder_kl_wan.site_reasons(vae)
    )
