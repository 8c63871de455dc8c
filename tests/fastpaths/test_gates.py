import logging

import pytest
import torch

from fuseproof.fastpaths import Gate, GateMode

KEY = ("shape", (4,))


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
        ("not bit-exact: 25.0000% of the values differ, by at most 1 ulp", one_ulp_off),
        ("ValueError at first sight: no such block size", broken),
        ("layout differs from eager: dtype torch.bfloat16 against torch.float32", lambda: eager().bfloat16()),
        ("not bit-exact: 25.0000% of the values differ, by at most 0 ulp", lambda: torch.tensor([-0.0, 1, 2, 3])),
    ],
    ids=["one-ulp", "exception", "dtype", "minus-zero"],
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


def test_observe_runs_the_different_result_and_measures_it():
    gate = Gate("site", GateMode.OBSERVE)
    result = gate.run(KEY, one_ulp_off, eager)
    assert torch.equal(one_ulp_off(), result)
    assert (0.25, 1) == (gate.observed.differing_share, gate.observed.largest_ulp)
    assert {} == gate.rejections


def test_off_trusts():
    gate = Gate("site", GateMode.OFF)
    assert torch.equal(one_ulp_off(), gate.run(KEY, one_ulp_off, broken))
    assert 0 == gate.first_sight_ms
