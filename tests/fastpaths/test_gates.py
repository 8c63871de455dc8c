import functools
import logging

import pytest
import torch

from fuseproof.fastpaths import Gate, GateMode
from fuseproof.fastpaths.operations import signature
from fuseproof.fastpaths.reports import site_report

KEY = ("shape", (4,))
ONE_ULP = "25.0000% of the values differ, by at most 1 ulp and 2.4e-07 in value; relative error 6.4e-08"


def eager():
    return torch.arange(4, dtype=torch.float32)


def one_ulp_off():
    return (eager().view(torch.int32) + torch.tensor([0, 0, 0, 1], dtype=torch.int32)).view(torch.float32)


def broken():
    raise ValueError("no such block size")


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def test_an_equal_key_runs_fused_from_then_on_without_the_reference():
    gate = Gate("site")
    gate.run(KEY, eager, eager)
    result = gate.run(KEY, eager, broken)  # a reference call would raise
    assert torch.equal(eager(), result)
    assert (2, 0, 1) == (gate.calls_fused, gate.calls_eager, gate.verified_keys())
    assert gate.first_sight_ms > 0


@pytest.mark.parametrize(
    ("expected_reason", "fused"),
    [
        (f"not bit-exact: {ONE_ULP}", one_ulp_off),
        ("ValueError at first sight: no such block size", broken),
        ("layout differs from eager: dtype torch.bfloat16 against torch.float32", lambda: eager().bfloat16()),
        (
            "not bit-exact: 25.0000% of the values differ, by at most 0 ulp and 0 in value; relative error 0",
            lambda: torch.tensor([-0.0, 1, 2, 3]),
        ),
        (
            "not bit-exact: 75.0000% of the values differ, by more than a million ulp (where eager has 3) and 6 in "
            "value; relative error 2",
            lambda: -eager() + 0.0,
        ),
    ],
    ids=["one-ulp", "exception", "dtype", "minus-zero", "far"],
)
def test_a_different_key_is_rejected_with_its_reason_and_eager_is_returned(expected_reason, fused, caplog):
    gate = Gate("site")
    with caplog.at_level(logging.WARNING):
        first = gate.run(KEY, fused, eager)
    second = gate.run(KEY, broken, eager)  # rejected for good: fused is not even tried
    assert torch.equal(eager(), first)
    assert torch.equal(eager(), second)
    assert expected_reason == gate.rejections[KEY].reason
    assert expected_reason in caplog.text
    assert (0, 2, 0) == (gate.calls_fused, gate.calls_eager, gate.verified_keys())


def test_one_rejected_key_leaves_the_others_alone():
    gate = Gate("site")
    gate.run("bad", one_ulp_off, eager)
    gate.run("good", eager, eager)
    assert {"bad"} == set(gate.rejections)
    assert 1 == gate.verified_keys()


def test_gradients_leave_a_key_undecided():
    gate = Gate("site")
    with torch.enable_grad():
        gate.run(KEY, broken, eager)
    assert (0, 1, 0, {}) == (gate.calls_fused, gate.calls_eager, gate.verified_keys(), gate.rejections)


def test_tracing_leaves_a_key_undecided():
    gate = Gate("site")
    traced = torch.compile(lambda: gate.run(KEY, broken, eager), backend="eager")
    assert torch.equal(eager(), traced())
    assert (0, {}) == (gate.verified_keys(), gate.rejections)


def test_an_exception_after_verification_fails_the_request():
    gate = Gate("site")
    gate.run(KEY, eager, eager)
    with pytest.raises(ValueError, match="no such block size"):
        gate.run(KEY, broken, eager)


def test_a_cuda_error_is_never_swallowed():
    def device_fault():
        raise torch.AcceleratorError("illegal memory access")

    with pytest.raises(torch.AcceleratorError):
        Gate("site").run(KEY, device_fault, eager)


def turning(first, *others):
    """A computation that is another one at each call."""
    forms = iter((first, *others))

    def turn():
        return next(forms)()

    return turn


@pytest.mark.parametrize("candidate", [eager, one_ulp_off], ids=["equal", "other bits"])
def test_a_decision_about_what_was_computed_anyway_counts_no_call(candidate):
    gate = Gate("site")
    gate.decide(KEY, candidate(), eager)
    assert (0, 0, 0) == (gate.calls_fused, gate.calls_eager, gate.calls_verified)
    assert gate.is_decided(KEY)


def test_observe_runs_the_different_result_and_measures_it():
    gate = Gate("site", GateMode.OBSERVE)
    result = gate.run(KEY, one_ulp_off, eager)
    assert torch.equal(one_ulp_off(), result)
    assert (0.25, 1) == (gate.observed.differing_share, gate.observed.largest_ulp)
    assert {} == gate.rejections


def test_observe_compares_every_call_and_keeps_the_worst():
    gate = Gate("site", GateMode.OBSERVE)
    fused = turning(eager, eager, one_ulp_off, eager)
    for _ in range(4):
        gate.run(KEY, fused, eager)
    assert (4, 4, 0) == (gate.calls_compared, gate.calls_fused, gate.verified_keys())
    assert ("observed", f"4 call(s) compared: up to {ONE_ULP}") == state(gate)


def test_observe_says_so_where_nothing_differs():
    gate = Gate("site", GateMode.OBSERVE)
    for _ in range(2):
        gate.run(KEY, eager, eager)
    assert ("observed", "2 call(s) compared, no bit differs") == state(gate)
    assert 1 == gate.verified_keys()


def test_off_trusts_and_says_that_it_compared_nothing():
    gate = Gate("site", GateMode.OFF)
    for _ in range(2):
        assert torch.equal(one_ulp_off(), gate.run(KEY, one_ulp_off, broken))
    assert ("unchecked", "gate off: nothing was compared") == state(gate)
    assert (2, 0, 0, frozenset()) == (
        gate.calls_fused,
        gate.first_sight_ms,
        gate.verified_keys(),
        gate.verified_key_texts(),
    )


@pytest.mark.parametrize(
    ("expected_reason", "later"),
    [
        ("ValueError when checked again: no such block size", broken),
        (f"not bit-exact when checked again: {ONE_ULP}", one_ulp_off),
        ("layout differs from eager when checked again: shape torch.Size([1]) ", lambda: torch.ones(1)),
    ],
    ids=["exception", "one-ulp", "shape"],
)
def test_a_key_rejected_when_checked_again_is_verified_no_more(expected_reason, later):
    gate = Gate("site", verifies_every_call=True)
    fused = turning(eager, later)
    for _ in range(2):
        assert torch.equal(eager(), gate.run(KEY, fused, eager))
    assert gate.rejections[KEY].reason.startswith(expected_reason)
    assert (0, frozenset()) == (gate.verified_keys(), gate.verified_key_texts())


def test_the_state_eager_tells_the_true_cause():
    gate = Gate("site")
    with torch.enable_grad():
        gate.run(KEY, eager, eager)
        gate.run(KEY, eager, eager)
    gate.run_eager(eager, "nothing was held")
    assert ("eager", "gradients are recorded (2 call(s)); nothing was held (1 call(s))") == state(gate)
    gate.restart_counting()
    assert "unreached" == state(gate)[0]


def test_a_rejection_is_one_readable_line(caplog):
    with caplog.at_level(logging.WARNING):
        Gate("mine").run(("norm", signature(torch.ones(1, 7, 256).bfloat16()), 1e-06), one_ulp_off, eager)
    assert [f"fast path mine rejected for norm, 1x7x256 bfloat16, 1e-06: not bit-exact: {ONE_ULP}"] == caplog.messages


def test_several_rejections_are_told_by_the_worst_and_kept_one_by_one():
    gate = Gate("site")
    gate.run("a", one_ulp_off, eager)
    gate.run("b", lambda: eager() + torch.tensor([0.0, 0.5, 0.0, 0.0]), eager)
    gate.run("c", broken, eager)
    report = site_report("site", gate, None)
    assert (
        "3 key(s): not bit-exact: up to 25.0000% of the values differ, by more than a million ulp (where eager has 1) "
        "and 0.5 in value; relative error 0.13; ValueError at first sight: no such block size"
    ) == report["reason"]
    assert ["a", "b", "c"] == [one["key"] for one in report["rejections"]]
    assert f"not bit-exact: {ONE_ULP}" == report["rejections"][0]["reason"]
    assert (0.25, 0.5) == (report["difference"]["differing_share"], report["difference"]["largest_absolute"])


def test_many_kinds_of_rejections_are_counted_after_the_first_few():
    gate = Gate("site")
    for number in range(6):
        gate.run(number, functools.partial(raising, number), eager)
    expected = "; ".join(f"ValueError at first sight: {number}" for number in range(4))
    assert f"6 key(s): {expected}; and 2 more reasons" == site_report("site", gate, None)["reason"]


def raising(number):
    raise ValueError(number)


def test_comparisons_in_warm_ups_are_told_apart_from_those_that_are_counted():
    gate = Gate("site", GateMode.OBSERVE)
    gate.run(KEY, eager, eager)
    gate.restart_counting()
    for _ in range(2):
        gate.run(KEY, eager, eager)
    assert ("observed", "3 call(s) compared (1 in warm-ups), no bit differs") == state(gate)
    assert (2, 3) == (gate.calls_fused, site_report("site", gate, None)["calls_compared"])


def state(gate):
    report = site_report("site", gate, None)
    return report["state"], report["reason"]
