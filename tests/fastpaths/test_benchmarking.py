"""What surrounds the stopwatch: bits first, rotation, and what is counted as traffic. Times are real on a card only."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fuseproof.fastpaths import UserSite
from fuseproof.fastpaths.benchmarking import CudaStopwatch, made, measure, rotation_for, traffic_bytes
from fuseproof.fastpaths.call_layouts import layout_of
from fuseproof.fastpaths.check_values import filler
from fuseproof.fastpaths.kernels import gated_residual
from fuseproof.fastpaths.tracing import SiteCall
from fuseproof.fastpaths.verification import Case, State, check
from tests.fastpaths.test_verification import exact, own, residual_call

CPU = torch.device("cpu")
MIB = 1024 * 1024


class FakeStopwatch:
    """Calls everything once for each set, and says what each of three forms takes, round after round."""

    def __init__(self, *milliseconds: float) -> None:
        self.milliseconds_of = iter(milliseconds)
        self.rotations: list[int] = []

    def milliseconds(self, call, rotation):
        for index in range(rotation):
            call(index)
        self.rotations.append(rotation)
        middle = next(self.milliseconds_of)
        return [middle * 2, middle, middle / 2]


def values(index):
    return filler("random", index, CPU)


def outcome_of(call):
    return check(Case(call, "odd", "random"), CPU)


def test_medians_extremes_and_ratios():
    call = residual_call(own(exact), "mine")
    stopwatch = FakeStopwatch(0.090, 0.030, 0.020)
    measured = measure(call, outcome_of(call), CPU, values, stopwatch, rounds=1)
    assert (90.0, 45.0, 180.0, 3, (90.0,)) == dataclasses.astuple(measured.eager)
    assert (30.0, 20.0) == (measured.fused.median_us, measured.floor.median_us)
    assert 3.0 == pytest.approx(measured.speedup)
    assert 1.5 == pytest.approx(measured.times_floor)
    assert 1 == len(set(stopwatch.rotations))


def test_rounds_take_the_forms_by_turns_and_keep_their_medians():
    call = residual_call(own(exact), "mine")
    stopwatch = FakeStopwatch(0.090, 0.030, 0.020, 0.092, 0.031, 0.021, 0.091, 0.032, 0.022)
    measured = measure(call, outcome_of(call), CPU, values, stopwatch, rounds=3)
    assert pytest.approx((90.0, 92.0, 91.0)) == measured.eager.rounds_us
    assert pytest.approx((30.0, 31.0, 32.0)) == measured.fused.rounds_us
    assert (31.0, 9) == (pytest.approx(measured.fused.median_us), measured.fused.samples)


@pytest.mark.parametrize("fused", [lambda *_, **__: 1 / 0, lambda residual, *_, **__: residual * 2])
def test_no_time_is_taken_where_bits_differ(fused):
    call = residual_call(own(fused), "mine")
    measured = measure(call, outcome_of(call), CPU, values, FakeStopwatch())
    assert State.DIFFERS == measured.outcome.state
    assert (None, None, None, None) == (measured.eager, measured.fused, measured.speedup, measured.times_floor)


def test_traffic_is_the_kernels_own_count():
    arguments, outputs = residual_call().layout.make(CPU, values(0))
    assert gated_residual.traffic_bytes(*arguments, **outputs) == traffic_bytes(residual_call(), CPU, values)


@pytest.mark.parametrize("has_bias", [False, True], ids=["alone", "behind-a-bias"])
def test_norms_that_a_kernel_is_given_are_those_of_its_input(has_bias):
    x, bias = torch.empty(1, 8, 2, 3, 4, dtype=torch.bfloat16), torch.empty(8)
    gamma, norm = torch.empty(8, 1, 1, 1), torch.empty(1, 1, 2, 3, 4)
    arguments = (x, gamma, bias, None, norm, 1.0, True, 2, 1, 1, True) if has_bias else (x, norm, gamma, None, 1.0)
    operation = "causal_conv_input" if has_bias else "wan_norm_silu"
    (x, *rest), _ = made(SiteCall("wan_vae_norms", layout_of(operation, arguments, {})), CPU, values(0))
    hidden = x + rest[1].bfloat16().view(-1, 1, 1, 1) if has_bias else x
    assert torch.equal(hidden.float().norm(2, 1, keepdim=True).clamp_min(1e-12), rest[3 if has_bias else 0])


@pytest.mark.parametrize(
    ("sets", "bytes_moved"),
    [
        pytest.param(2, 300 * MIB, id="larger than the rotation"),
        pytest.param(3, 100 * MIB, id="three make it"),
        pytest.param(64, 1, id="at most 64"),
        pytest.param(64, 0, id="nothing"),
    ],
)
def test_inputs_rotate_over_more_than_the_cache_holds(sets, bytes_moved):
    assert sets == rotation_for(bytes_moved)


@pytest.mark.gpu
def test_a_kernel_is_exact_and_timed_on_a_card():
    device = torch.device("cuda", 0)
    call = residual_call()
    outcome = check(Case(call, "odd", "random"), device)
    assert State.EQUAL == outcome.state, outcome.reason
    measured = measure(call, outcome, device, lambda index: filler("random", index, device), CudaStopwatch(device))
    assert measured.eager.median_us > 0
    assert measured.floor.minimum_us <= measured.floor.median_us <= measured.floor.maximum_us


@pytest.mark.gpu
def test_a_wrong_site_of_ones_own_gets_no_time_on_a_card():
    device = torch.device("cuda", 0)
    site = UserSite("mine", fused=lambda residual, *_, **__: residual * 2, replaces="gated_residual")
    call = residual_call(site, "mine")
    outcome = check(Case(call, "odd", "random"), device)
    measured = measure(call, outcome, device, lambda index: filler("random", index, device), CudaStopwatch(device))
    assert measured.fused is None
