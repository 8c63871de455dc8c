"""Reading a card through NVML: values, what a card does not tell, and machines without any."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from fuseproof.harness.machine import gpu_sampling
from fuseproof.harness.machine.gpu_sampling import INTERVAL_S, LONGEST_INTERVAL_S, next_interval_s
from fuseproof.harness.machine.nvml import CardSample, Nvml, NvmlError, reason_names
from tests.harness.fake_nvml import H200, UUID, FakeNvml, FakeNvmlError

NOT_SUPPORTED = FakeNvmlError(3)
LOST = FakeNvmlError(15)


def opened(**answers: Any) -> tuple[Nvml, FakeNvml]:
    fake = FakeNvml({**H200, **answers})
    nvml = Nvml.open(fake)
    nvml.find(UUID)
    return nvml, fake


def test_a_card_that_tells_everything() -> None:
    expected = CardSample(UUID, 1980.0, 3201.0, 350.5, 41.0, 47.0, 97.0, 40 * 1024.0, 0)
    assert expected == opened()[0].sample(UUID)


@pytest.mark.parametrize(
    ("key", "attribute"),
    [
        ("sm", "sm_clock_mhz"),
        ("memory", "memory_clock_mhz"),
        ("power_mw", "power_w"),
        ("temperature", "temperature_c"),
        ("memory_temperature", "memory_temperature_c"),
        ("utilization", "utilization_percent"),
        ("used_bytes", "memory_used_mib"),
        ("reasons", "event_reasons"),
    ],
)
@pytest.mark.parametrize("answer", [NOT_SUPPORTED, LOST, None, "[N/A]"], ids=["refused", "lost", "none", "text"])
def test_what_a_card_does_not_tell_is_null_and_the_rest_is_kept(key: str, attribute: str, answer: Any) -> None:
    values = vars(opened(**{key: answer})[0].sample(UUID))
    assert [attribute] == [name for name, value in values.items() if value is None]


def test_a_question_refused_for_good_is_not_asked_again() -> None:
    nvml, fake = opened(temperature=NOT_SUPPORTED, power_mw=LOST)
    for _ in range(3):
        nvml.sample(UUID)
    assert (1, 3) == (fake.asked["temperature"], fake.asked["power"])


def test_older_drivers_call_the_reasons_otherwise() -> None:
    nvml, fake = opened(reasons=FakeNvmlError(13))
    fake.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: 0x44  # type: ignore[attr-defined]
    assert 0x44 == nvml.sample(UUID).event_reasons


@pytest.mark.parametrize(
    ("fake", "uuid", "reason"),
    [
        (FakeNvml(starts=False), UUID, "could not be started: code 9"),
        (FakeNvml(), "GPU-other", "does not find GPU-other: code 6"),
    ],
    ids=["no-driver", "no-such-card"],
)
def test_no_card_is_a_reason(fake: FakeNvml, uuid: str, reason: str) -> None:
    with pytest.raises(NvmlError, match=reason):
        Nvml.open(fake).find(uuid)


def test_the_module_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlError, match="nvidia-ml-py is not installed"):
        Nvml.open()


def test_event_reasons_have_names_and_unknown_ones_their_bit() -> None:
    assert ("idle", "SW power cap", "HW thermal slowdown", "0x400") == reason_names(0x1 | 0x4 | 0x40 | 0x400)
    assert () == reason_names(0)


@pytest.mark.parametrize(
    ("cost_s", "cores", "interval_s"),
    [(0.0005, 2, INTERVAL_S), (0.004, 2, 0.4), (0.004, 16, INTERVAL_S), (9.0, 1, LONGEST_INTERVAL_S)],
)
def test_sampling_slows_down_before_it_costs_half_a_percent(cost_s: float, cores: int, interval_s: float) -> None:
    assert pytest.approx(interval_s) == next_interval_s(cost_s, cores)


def lines_of(monkeypatch: pytest.MonkeyPatch, fake: FakeNvml, *words: str, rounds: int = 3) -> list[dict[str, Any]]:
    left = iter([False] * (rounds - 1) + [True])
    monkeypatch.setattr(gpu_sampling, "input_has_ended", lambda timeout_s: next(left))
    out = io.StringIO()
    assert 0 == gpu_sampling.main([*words, UUID], fake, out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_the_side_program_writes_samples_and_what_it_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    *samples, last = lines_of(monkeypatch, FakeNvml())
    assert [UUID] * 3 == [sample["gpu"] for sample in samples]
    assert {"monotonic_s", "sm_clock_mhz", "power_w", "event_reasons"} <= samples[0].keys()
    assert 3 == last["cost"]["rounds"]


def test_the_side_program_looks_once_and_names_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml({**H200, "pids": (4711,), "used_bytes": 3 * 2**20})
    (look,) = lines_of(monkeypatch, fake, gpu_sampling.ONCE)
    assert {
        "gpu": UUID,
        "memory_used_mib": 3.0,
        "processes": [{"pid": 4711, "memory_used_mib": 1024.0, "name": None}],
    } == look


def test_without_nvml_the_side_program_says_why_and_ends_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = lines_of(monkeypatch, FakeNvml(starts=False))
    assert {"reason": "NVML could not be started: code 9"} == line
