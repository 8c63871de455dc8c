"""The Wan VAE at ``extra-high`` and ``high``: close to lossless, named in the report, and never there at lossless."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fuseproof.fastpaths import mount
from fuseproof.fastpaths.kernels import norm_silu_conv_input
from fuseproof.fastpaths.sites import autoencoder_kl_wan
from tests.fastpaths.kernels.conftest import exact_rounding  # noqa: F401 - a fixture: the interpreter rounds exactly
from tests.fastpaths.kernels.wan_models import bits
from tests.fastpaths.small_wan_vae import (
    as_cuda,  # noqa: F401 - a fixture
    decode,
    encode,
    few_channels,  # noqa: F401 - a fixture
    large_tiles,  # noqa: F401 - a fixture
    latents,
    make_vae,
    video,
)

pytestmark = pytest.mark.timeout(300)
ONE_PASS, BF16 = autoencoder_kl_wan.APPROXIMATE_SITES
QUALITY = {ONE_PASS: "extra-high", BF16: "high"}
CASES = {  # geometry, dtype of the weights, autocast, what runs, site -> decibels: what was reached here, less three
    "decode-one-pass-fp32": ("wan-2.2", torch.float32, False, "decode", ONE_PASS, 133.0),
    "decode-one-pass-autocast": ("wan-2.2", torch.float32, True, "decode", ONE_PASS, 45.0),
    "decode-one-pass-bf16": ("wan-2.1", torch.bfloat16, False, "decode", ONE_PASS, 36.0),
    "decode-bf16-of-fp32": ("wan-2.2", torch.float32, False, "decode", BF16, 45.0),
    "encode-one-pass-fp32": ("wan-2.2", torch.float32, False, "encode", ONE_PASS, 143.0),
    "encode-bf16-of-fp32": ("wan-2.1", torch.float32, False, "encode", BF16, 55.0),
}


@pytest.fixture(autouse=True)
def on_a_card(monkeypatch, as_cuda):  # noqa: F811
    """The sites mount on a model that lies on a CPU; the kernels are interpreted."""
    monkeypatch.setattr(autoencoder_kl_wan, "_device_reason", lambda vae: None)


def pipe_of(vae):
    return SimpleNamespace(transformer=nn.Linear(1, 1), vae=vae)


def decibels(expected, actual):
    """PSNR over the range that the expected values have."""
    expected, actual = expected.double(), actual.double()
    error = float((expected - actual).square().sum()) / expected.numel()
    return math.inf if error == 0 else 10 * math.log10(float(expected.max() - expected.min()) ** 2 / error)


@pytest.mark.parametrize(("geometry", "dtype", "autocast", "what", "site", "floor"), CASES.values(), ids=CASES)
def test_tiers_are_close_and_named(geometry, dtype, autocast, what, site, floor):
    vae = make_vae(geometry, dtype)
    run, argument = (encode, video(dtype=dtype)) if what == "encode" else (decode, latents(dtype=dtype))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        eager = run(vae, argument)
        with mount(pipe_of(vae), quality=QUALITY[site], per_request=True) as mounted:
            with mounted.at(QUALITY[site]):
                close = run(vae, argument)
            assert (site,) == mounted.approximate_sites_that_ran()
        report = mounted.report()["sites"][site]
    assert (eager.dtype, eager.shape) == (close.dtype, close.shape)
    assert decibels(eager, close) >= floor
    assert "approximate" == report["state"]
    assert report["deviation"]["relative_error"] <= autoencoder_kl_wan.LARGEST_ERROR_OF_SITE[site]


def test_lossless_stays_lossless_around_a_tier():
    vae, z = make_vae(), latents(frames=1)
    eager = decode(vae, z)
    with mount(pipe_of(vae), quality="high", per_request=True) as mounted:
        assert torch.equal(bits(eager), bits(decode(vae, z)))
        assert () == mounted.approximate_sites_that_ran()
        with mounted.at("high"):
            assert torch.equal(bits(decode(vae, z)), bits(decode(vae, z)))
        mounted.restart_counting()
        assert torch.equal(bits(eager), bits(decode(vae, z)))
        assert [] == [name for name, gate in mounted.gates.items() if gate.rejections]
        assert () == mounted.approximate_sites_that_ran()
    assert [] == [name for name, module in vae.named_modules() if "forward" in vars(module)]


def test_high_takes_over_from_extra_high_and_lossless_has_neither():
    vae = make_vae()
    with mount(pipe_of(vae), quality="high") as mounted:
        decode(vae, latents(frames=1))
        assert (BF16,) == mounted.approximate_sites_that_ran()
    sites = mounted.report()["sites"]
    assert f"{BF16} does its work at this quality" == sites[ONE_PASS]["reason"]
    with mount(pipe_of(vae), quality="lossless") as mounted:
        decode(vae, latents(frames=1))
    assert set(autoencoder_kl_wan.EXACT_SITES) == set(mounted.report()["sites"])


def test_a_wrong_form_is_rejected_and_the_exact_one_runs(monkeypatch):
    vae, z = make_vae(), latents(frames=2)
    eager, right = decode(vae, z), norm_silu_conv_input.fused
    monkeypatch.setattr(norm_silu_conv_input, "fused", lambda x, *rest: right(x.flip(1), *rest))
    with mount(pipe_of(vae), quality="extra-high") as mounted:
        assert torch.equal(bits(eager), bits(decode(vae, z)))
    report = mounted.report()["sites"][ONE_PASS]
    assert "rejected" == report["state"]
    assert "too far from the exact form" in report["reason"]


def test_where_a_kernel_declines_the_exact_form_runs_and_the_report_says_why(monkeypatch):
    vae, z = make_vae(), latents(frames=1)
    eager = decode(vae, z)
    monkeypatch.setattr(norm_silu_conv_input, "MOST_CHANNELS", 1)
    with mount(pipe_of(vae), quality="extra-high") as mounted:
        assert torch.equal(bits(eager), bits(decode(vae, z)))
    report = mounted.report()["sites"][ONE_PASS]
    assert "rejected" == report["state"]
    assert "the kernel needs at most 1" in report["reason"]


def test_an_exception_leaves_neither_weights_nor_the_tier_behind(monkeypatch):
    vae, z = make_vae(), latents(frames=1)
    eager = decode(vae, z)
    with mount(pipe_of(vae), quality="high", per_request=True) as mounted:
        held = mounted._parts[0].installation.held[0]
        with monkeypatch.context() as patch:

            def failing(*_, **__):
                raise RuntimeError("out of memory")

            with mounted.at("high"):
                decode(vae, z)
            patch.setattr(norm_silu_conv_input, "fused", failing)
            with pytest.raises(RuntimeError, match="out of memory"), mounted.at("high"):
                decode(vae, z)
        assert 0 == len(held)
        assert torch.equal(bits(eager), bits(decode(vae, z)))
