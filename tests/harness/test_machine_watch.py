"""What others used of the machine while something ran in this process."""

from __future__ import annotations

import pytest

from fuseproof.harness.machine import watch
from fuseproof.harness.machine.usage import MachineUse


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Two cores, no quota; the test says what each clock shows."""
    now = {"wall": 0.0, "own": 0.0, "busy": 0.0}
    monkeypatch.setattr(watch.time, "perf_counter", lambda: now["wall"])
    monkeypatch.setattr(watch, "own_cpu_s", lambda: now["own"])
    monkeypatch.setattr(watch, "machine_use", lambda: MachineUse(now["busy"], 0.0))
    monkeypatch.setattr(watch, "usable_cores", lambda: [0, 1])
    monkeypatch.setattr(watch, "capacity_cores", float)
    return now


@pytest.mark.parametrize(
    "wall_s, own_s, busy_s, share, is_busy",
    [(4.0, 4.0, 4.1, 0.0125, False), (4.0, 4.0, 7.0, 0.375, True), (0.01, 0.01, 0.02, None, False)],
    ids=["quiet", "busy", "too short to tell"],
)
def test_what_is_not_ours_is_others(clocks, wall_s, own_s, busy_s, share, is_busy):
    seen = watch.MachineWatch()
    for part in (0.25, 1.0):  # two stretches are one
        seen.begin()
        clocks.update(wall=part * wall_s, own=part * own_s, busy=part * busy_s)
        seen.end()
        seen.end()
    assert (share, is_busy) == (seen.others_share(), seen.is_busy())
