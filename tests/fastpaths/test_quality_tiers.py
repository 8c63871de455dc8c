"""Approximate sites: in force while a quality permits them, measured, and gone without a trace at lossless.

The CPU has no FP8 tensor cores and no tanh-GELU epilogue, so the two sites decline there by themselves. To run the real
machinery, their reasons are taken away and the two calls that the CPU does differently are stood in for; torch's
row-wise ``_scaled_mm`` exists on the CPU and runs as it is.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from diffusers import LongCatImageTransformer2DModel

from fuseproof.errors import UsageError
from fuseproof.fastpaths import mount, tiers
from fuseproof.fastpaths.approximation import ApproximateGate, Deviation, deviation_of
from fuseproof.fastpaths.gates import GateMode
from fuseproof.fastpaths.kernels import row_quantize
from fuseproof.fastpaths.matmuls import fp8_linear, linear_gelu
from fuseproof.fastpaths.sites import longcat_image

TEXT, IMAGE = 5, 11
APPROXIMATE = {"extra-high": "linear_gelu", "high": "fp8_linear"}


def make_pipe(dtype=torch.bfloat16):
    torch.manual_seed(0)
    transformer = LongCatImageTransformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=2, attention_head_dim=128, num_attention_heads=2,
        joint_attention_dim=16, pooled_projection_dim=16, axes_dims_rope=[16, 56, 56],
    ).eval()  # fmt: skip
    return SimpleNamespace(transformer=transformer.to(dtype))


def arguments(batch=1, seed=0, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(seed)
    return {
        "hidden_states": torch.randn(batch, IMAGE, 16, generator=generator).to(dtype),
        "encoder_hidden_states": torch.randn(batch, TEXT, 16, generator=generator).to(dtype),
        "timestep": torch.full((batch,), 0.7, dtype=dtype),
        "img_ids": torch.rand(IMAGE, 3, generator=generator),
        "txt_ids": torch.zeros(TEXT, 3),
        "return_dict": False,
    }


@torch.no_grad()
def velocity(pipe, batch=1, seed=0):
    return pipe.transformer(**arguments(batch, seed, pipe.transformer.dtype))[0]


def site(mounted, name):
    return mounted.report()["sites"][name]


def relative(candidate, expected):
    return float((candidate.float() - expected.float()).norm() / expected.float().norm())


def epilogue_on_a_cpu(x, weight, bias, out=None):
    """What the epilogue computes: GELU on the unrounded sum, one rounding."""
    result = F.gelu(F.linear(x.float(), weight.float(), bias.float()), approximate="tanh").to(x.dtype)
    return result if out is None else out.copy_(result)


@pytest.fixture
def able(monkeypatch):
    """Approximate sites that do not decline on this CPU; kernels do, so that exact sites run their references."""
    real = longcat_image.site_reasons

    def without_approximate(transformer):
        reasons = {name: reason for name, reason in real(transformer).items() if name not in APPROXIMATE.values()}
        return reasons | dict.fromkeys(longcat_image.KERNELS_OF_SITE, "kernels are left out here")

    monkeypatch.setattr(longcat_image, "site_reasons", without_approximate)
    monkeypatch.setattr(row_quantize, "fused", row_quantize.reference)
    monkeypatch.setattr(linear_gelu, "fused", epilogue_on_a_cpu)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("quality", "largest"), [("extra-high", 0.02), ("high", 0.2)])
def test_a_tier_runs_its_site_close_to_lossless_and_says_how_close(able, quality, largest, batch):
    pipe = make_pipe()
    eager = velocity(pipe, batch)
    with mount(pipe, quality=quality) as mounted:
        results = [velocity(pipe, batch) for _ in range(2)]
        report = site(mounted, APPROXIMATE[quality])
    assert "approximate" == report["state"]
    assert 2 * 3 == report["calls_fused"], "three blocks, two calls, the first sight's result included"
    assert 3 == report["verified_keys"]
    assert f"quality {quality}: " in report["reason"]
    assert {"differing_share", "largest_ulp", "relative_error", "error_of_result"} == set(report["deviation"])
    limit = longcat_image.LARGEST_ERROR_OF_SITE[APPROXIMATE[quality]]
    assert 0 < report["deviation"]["error_of_result"] < report["deviation"]["relative_error"] <= limit
    assert 0 < relative(results[0], eager) <= largest
    assert torch.equal(results[0].view(torch.int16), results[1].view(torch.int16)), "first sight returns the same form"
    assert (APPROXIMATE[quality],) == mounted.approximate_sites_that_ran()


def test_the_higher_tier_takes_over_the_lower_ones_matrices(able):
    pipe = make_pipe()
    with mount(pipe, quality="high") as mounted:
        velocity(pipe)
        assert "approximate" == site(mounted, "fp8_linear")["state"]
        taken_over = site(mounted, "linear_gelu")
        with mounted.at("extra-high"):
            velocity(pipe)
        assert "approximate" == site(mounted, "linear_gelu")["state"]
    assert ("off", "fp8_linear does its work at this quality") == (taken_over["state"], taken_over["reason"])
    assert 0 == taken_over["calls_fused"]


@pytest.mark.parametrize(("quality", "by"), [("extra-high", "linear_gelu"), ("high", "fp8_linear")])
def test_an_exact_kernel_whose_work_is_taken_over_is_off_and_not_missed(able, monkeypatch, quality, by):
    known = longcat_image.site_reasons
    monkeypatch.setattr(
        longcat_image, "site_reasons", lambda model: {k: v for k, v in known(model).items() if k != "gelu_tanh"}
    )
    pipe = make_pipe()
    with mount(pipe, quality=quality, gate="off", per_request=True) as mounted:
        for kernel in ("gelu_tanh", "attention_mlp_gelu"):  # their own bits are not what is tested
            monkeypatch.setattr(f"fuseproof.fastpaths.kernels.{kernel}.reject_reason", lambda *args, **out: "not here")
        with mounted.at(quality):
            velocity(pipe)
        found = site(mounted, "gelu_tanh")
        assert ("off", f"{by} does its work at this quality") == (found["state"], found["reason"])
        velocity(pipe)
        assert "off" != site(mounted, "gelu_tanh")["state"], "a lossless request called it"


def test_without_the_higher_site_the_lower_one_runs_at_the_higher_quality(able):
    pipe = make_pipe()
    with mount(pipe, quality="high", sites="linear_gelu") as mounted:
        velocity(pipe)
        assert "approximate" == site(mounted, "linear_gelu")["state"]
        assert ("off", "not requested") == tuple(site(mounted, "fp8_linear")[key] for key in ("state", "reason"))


@pytest.mark.parametrize("quality", APPROXIMATE)
def test_lossless_before_and_after_has_the_bits_of_lossless_alone(able, quality):
    pipe, alone = make_pipe(), make_pipe()
    with mount(alone):
        expected = [velocity(alone, seed=seed) for seed in range(2)]
    with mount(pipe, quality="high", per_request=True) as mounted:
        before = velocity(pipe, seed=0)
        with mounted.at(quality):
            other = velocity(pipe, seed=0)
        after = [velocity(pipe, seed=seed) for seed in range(2)]
        assert "fused" == site(mounted, "packed_blocks")["state"]
    assert torch.equal(expected[0], before)
    assert not torch.equal(expected[0], other)
    assert all(torch.equal(a, b) for a, b in zip(expected, after, strict=True))


def test_an_exception_ends_the_tier_too(able):
    pipe = make_pipe()
    with mount(pipe, quality="high", per_request=True) as mounted:
        expected = velocity(pipe)
        with pytest.raises(RuntimeError, match="interrupted"), mounted.at("high"):
            assert not torch.equal(expected, velocity(pipe))
            raise RuntimeError("interrupted")
        assert torch.equal(expected, velocity(pipe))


def test_tiers_nest_and_each_one_ends_with_its_block(able):
    pipe = make_pipe()
    with mount(pipe, quality="high") as mounted:
        high = velocity(pipe)
        with mounted.at("lossless"):
            lossless = velocity(pipe)
            with mounted.at("extra-high"):
                extra_high = velocity(pipe)
            assert torch.equal(lossless, velocity(pipe))
        assert torch.equal(high, velocity(pipe))
    assert torch.equal(lossless, velocity(pipe)), "which is eager"
    assert 3 == len({result.view(torch.int16).numpy().tobytes() for result in (high, extra_high, lossless)})


def test_a_request_at_high_does_not_reach_another_threads_lossless_one(able):
    pipe = make_pipe()
    with mount(pipe, quality="high", per_request=True) as mounted, ThreadPoolExecutor(1) as other_thread:
        lossless = velocity(pipe)
        with mounted.at("high"):
            high = velocity(pipe)
            assert torch.equal(lossless, other_thread.submit(velocity, pipe).result())
            assert torch.equal(high, velocity(pipe))


def test_a_mount_at_high_is_at_high_in_every_thread(able):
    pipe = make_pipe()
    with mount(pipe, quality="high"), ThreadPoolExecutor(1) as other_thread:
        assert torch.equal(velocity(pipe), other_thread.submit(velocity, pipe).result())


def test_the_epoch_tells_qualities_apart_and_stays_for_each(able):
    pipe = make_pipe()
    with mount(pipe, quality="high", per_request=True) as mounted:
        target = mounted.graph_target()
        seen = {}
        for quality in ("lossless", "extra-high", "high", "lossless", "extra-high", "high"):
            with mounted.at(quality):
                velocity(pipe)
                seen.setdefault(quality, set()).add((mounted.epoch, target.state()))
        assert {1} == {len(states) for states in seen.values()}, "a graph captured at warm-up serves the request"
        assert 3 == len({epoch for states in seen.values() for epoch, _ in states})
        assert 3 == len({state for states in seen.values() for _, state in states})


def test_weights_written_while_mounted_are_quantised_again_in_place(able):
    pipe, fresh = make_pipe(), make_pipe()
    new = {name: value * 1.5 for name, value in pipe.transformer.state_dict().items()}
    with mount(pipe, quality="high") as mounted:
        old = velocity(pipe)
        state = mounted.graph_target().state()
        pipe.transformer.load_state_dict(new, strict=True)
        again = velocity(pipe)
        assert state == mounted.graph_target().state()
    fresh.transformer.load_state_dict(new, strict=True)
    with mount(fresh, quality="high"):
        assert torch.equal(velocity(fresh), again)
    assert not torch.equal(old, again)


def test_quantised_weights_go_with_the_mount(able):
    pipe = make_pipe()
    mounted = mount(pipe, quality="high")
    velocity(pipe)
    kept = [part.installation for part in mounted._parts]
    mounted.unmount()
    assert [None] == [part.installation.choose for part in mounted._parts]
    assert kept[0].choose is not None
    assert "approximate" == site(mounted, "fp8_linear")["state"], "the report stays readable"
    with pytest.raises(UsageError, match="this mount has ended"):
        mounted.at("high")


def test_no_tier_is_entered_above_what_was_mounted_for(able):
    with mount(make_pipe(), quality="extra-high") as mounted:
        with pytest.raises(UsageError, match="quality high is above extra-high"), mounted.at("high"):
            pass
        with pytest.raises(UsageError, match="quality 'best' is not one of exact"), mounted.at("best"):
            pass
        with mounted.at("exact"):
            pass


def test_a_lossless_mount_knows_no_approximate_site(able):
    pipe = make_pipe()
    with mount(pipe) as mounted:
        velocity(pipe)
        assert not set(APPROXIMATE.values()) & set(mounted.report()["sites"])
        assert not set(APPROXIMATE.values()) & set(mounted.gates)
        assert () == mounted.approximate_sites_that_ran()


@pytest.mark.parametrize(
    ("expected", "dtype", "name"),
    [
        ("weights are on cpu; the tanh-GELU epilogue needs a CUDA device", torch.bfloat16, "linear_gelu"),
        ("weights are on cpu; FP8 matmuls need a CUDA device, sm_89 or newer", torch.bfloat16, "fp8_linear"),
        ("weights are on cpu; FP8 matmuls need a CUDA device, sm_89 or newer", torch.float32, "fp8_linear"),
        ("weights are on cpu; the tanh-GELU epilogue needs a CUDA device", torch.float32, "linear_gelu"),
    ],
    ids=["epilogue-cpu", "fp8-cpu", "fp8-cpu-fp32", "epilogue-cpu-fp32"],
)
def test_sites_decline_where_they_cannot_run_and_the_bits_are_those_of_eager(expected, dtype, name):
    pipe = make_pipe(dtype)
    eager = velocity(pipe)
    with mount(pipe, quality="high") as mounted:
        assert torch.equal(eager, velocity(pipe))
        report = site(mounted, name)
    assert ("declined", expected) == (report["state"], report["reason"])


def test_the_family_declines_fp8_for_one_odd_matrix_and_names_its_shape(monkeypatch):
    monkeypatch.setattr(fp8_linear, "reject_reason", lambda weight: "odd" if weight.shape[1] == 1280 else None)
    monkeypatch.setattr(linear_gelu, "reject_reason", lambda weight: None)
    assert {"fp8_linear": "odd"} == longcat_image._approximate_reasons(make_pipe().transformer)


FAMILY = SimpleNamespace(
    SITES=("exact_one", "first", "second", "third"),
    QUALITY_OF_SITE={"exact_one": "lossless", "first": "high", "second": "high", "third": "extra-high"},
)


@pytest.mark.parametrize(
    ("expected", "chosen", "declined"),
    [
        ({}, FAMILY.SITES, {}),
        ({"second": "first, of the same tier high, declines: no"}, FAMILY.SITES, {"first": "no"}),
        ({}, FAMILY.SITES, {"third": "no"}),
        ({}, FAMILY.SITES, {"exact_one": "no"}),
        ({}, ("exact_one", "second"), {"first": "not asked for, so no part of what is mounted"}),
        ({}, FAMILY.SITES, {"first": "no", "second": "neither"}),
    ],
    ids=["all-able", "one-declines", "alone-in-its-tier", "exact-is-no-tier", "not-chosen", "all-decline"],
)
def test_a_tier_is_mounted_whole_or_not_at_all(expected, chosen, declined):
    assert expected == tiers.tier_reasons(FAMILY, chosen, declined)


def test_one_declining_site_takes_its_whole_tier_out(able, monkeypatch):
    monkeypatch.setattr(longcat_image, "QUALITY_OF_SITE", longcat_image.QUALITY_OF_SITE | {"linear_gelu": "high"})
    declines = longcat_image.site_reasons
    monkeypatch.setattr(longcat_image, "site_reasons", lambda model: declines(model) | {"fp8_linear": "no such card"})
    pipe = make_pipe()
    eager = velocity(pipe)
    with mount(pipe, quality="high") as mounted:
        assert torch.equal(eager, velocity(pipe))
        found = {name: site(mounted, name)["reason"] for name in ("linear_gelu", "fp8_linear")}
        assert "fused" == site(mounted, "packed_blocks")["state"], "lossless sites stay"
    expected = "fp8_linear, of the same tier high, declines: no such card"
    assert {"linear_gelu": expected, "fp8_linear": "no such card"} == found


BREAKS = {
    "not-finite": (lambda *args, **out: fused(*args, **out).fill_(math.nan), "the approximate result is not finite"),
    "too-far": (
        lambda *args, **out: fused(*args, **out).neg_(),
        "too far from the exact form: relative error",
    ),
    "raises": (lambda *args, **out: 1 / 0, "ZeroDivisionError at first sight: division by zero"),
}
fused = fp8_linear.fused


@pytest.mark.parametrize("name", BREAKS)
def test_what_is_no_approximation_is_rejected_and_lossless_runs(able, monkeypatch, name):
    broken, expected = BREAKS[name]
    pipe = make_pipe()
    eager = velocity(pipe)
    monkeypatch.setattr(fp8_linear, "fused", broken)
    with mount(pipe, quality="high") as mounted:
        assert torch.equal(eager, velocity(pipe))
        assert torch.equal(eager, velocity(pipe)), "and again, without a first sight"
        report = site(mounted, "fp8_linear")
        assert "fused" == site(mounted, "packed_blocks")["state"], "the verdict on lossless is not touched"
    assert "rejected" == report["state"]
    assert expected in report["reason"]
    assert 0 == report["calls_fused"]


def test_gate_off_trusts_and_says_that_nothing_was_compared(able):
    pipe = make_pipe()
    with mount(pipe, quality="high", gate="off") as mounted:
        velocity(pipe)
        report = site(mounted, "fp8_linear")
    assert ("approximate", "quality high: not compared (gate off)") == (report["state"], report["reason"])
    assert None is report["deviation"]


def test_gradients_run_eager(able):
    pipe = make_pipe()
    with mount(pipe, quality="high") as mounted:
        with torch.enable_grad():
            pipe.transformer(**arguments())[0].sum().backward()
        assert 0 == site(mounted, "fp8_linear")["calls_fused"]
    assert pipe.transformer.proj_out.weight.grad is not None


def test_names_and_values_of_the_state_dict_stay(able):
    pipe = make_pipe()
    before = {name: value.clone() for name, value in pipe.transformer.state_dict().items()}
    with mount(pipe, quality="high"):
        velocity(pipe)
        mounted = pipe.transformer.state_dict()
        assert list(before) == list(mounted)
        assert all(torch.equal(before[name], mounted[name]) for name in before)


def gate(mode=GateMode.ENFORCE, largest_error=0.5):
    return ApproximateGate("site", mode, quality="high", largest_error=largest_error)


def run(subject, candidate, expected, key="key"):
    with torch.no_grad():
        return subject.run(key, lambda: torch.tensor(candidate), lambda: torch.tensor(expected))


def test_the_gate_keeps_the_worst_deviation_and_returns_the_approximate_result():
    subject = gate()
    assert [3.0, 5.0] == run(subject, [3.0, 5.0], [3.0, 4.0]).tolist()
    run(subject, [3.5, 4.0], [3.0, 4.0], key="another")
    assert Deviation(0.5, 2**21, 0.2, 0.2) == subject.deviation
    assert (2, 0, 2) == (subject.calls_fused, subject.calls_eager, subject.verified_keys())
    assert frozenset() == subject.verified_key_texts(), "no certificate ever vouches for it"


def test_equal_bits_are_no_deviation():
    subject = gate()
    run(subject, [1.0], [1.0])
    assert None is subject.deviation
    assert 1 == subject.verified_keys()


def test_observe_measures_every_call_and_enforces_nothing():
    subject = gate(GateMode.OBSERVE, largest_error=0.01)
    for candidate in ([9.0], [math.nan]):
        run(subject, candidate, [1.0])
    assert (2, 0, 2) == (subject.calls_fused, subject.verified_keys(), subject.first_sights)
    assert None is subject.deviation.to_json()["relative_error"], "strict JSON has no NaN"


def test_another_layout_is_rejected():
    subject = gate()
    assert [1.0, 2.0] == run(subject, [1.0], [1.0, 2.0]).tolist()
    assert "layout differs" in subject.rejections["key"].reason


@pytest.mark.parametrize(
    ("expected", "dtype"), [(0, torch.float32), (1, torch.bfloat16)], ids=["visible", "below-a-step-of-bf16"]
)
def test_an_error_below_the_resolution_of_the_result_is_never_too_far(expected, dtype):
    """A large stream in bf16: an update that is smaller than its steps is rounded away or not, whoever computes it."""
    subject, stream = gate(largest_error=0.1), torch.full((64,), 256.0, dtype=dtype)
    exact, approximate = stream.clone(), stream.clone()
    exact[0] += 2
    approximate[1] += 2
    with torch.no_grad():
        subject.run("key", lambda: stream.copy_(approximate), lambda: exact, writes=(stream,))
    assert (expected, 1 - expected) == (subject.verified_keys(), len(subject.rejections))


@pytest.mark.parametrize(
    ("expected", "candidate", "exact", "before"),
    [
        (0.2, [3.0, 5.0], [3.0, 4.0], None),
        (0.5, [1001.5], [1001.0], [1000.0]),
        (0.0, [0.0], [0.0], None),
        (math.inf, [1.0], [0.0], None),
        (math.inf, [2.0], [1.0], [1.0]),
    ],
    ids=["of-the-result", "of-the-change", "zeros", "of-zero", "of-no-change"],
)
def test_relative_error_is_of_what_was_computed(expected, candidate, exact, before):
    saved = [] if before is None else [torch.tensor(before)]
    found = deviation_of(torch.tensor(candidate), torch.tensor(exact), saved)
    assert expected == pytest.approx(found.relative_error)
