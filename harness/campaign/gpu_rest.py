"""After a slot: have its GPUs let go of everything, and does nobody else use them?

A worker that outlives its slot, or a neighbour that has arrived, would be measured with the next slot. So the cards'
memory is looked at until it is back at what was in use before the campaign, for a limited time. What that took, what
was left and who was there is recorded; nothing is ended and no setting is changed.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fuseproof
from fuseproof.harness.campaign.gpu_records import CardsAtRest
from fuseproof.harness.campaign.gpu_telemetry import PROGRAM, GpuSampler
from fuseproof.harness.machine.gpu_check import IDLE_MEMORY_MIB
from fuseproof.harness.machine.gpu_sampling import ONCE
from fuseproof.harness.machine.nvml import MPS_SERVER

LOOK_LIMIT_S = 10.0
REST_LIMIT_S = 30.0
POLL_S = 0.5
MOST_NAMED = 3


@dataclass(frozen=True)
class CardsLook:
    """One look at the cards: memory in use (MiB) and compute processes, by UUID; or why there is none."""

    used_mib: Mapping[str, float] = field(default_factory=dict)
    processes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    reason: str | None = None
    mps: tuple[str, ...] = ()
    """CUDA's own servers, which are nobody's work: ``MPS server 77 on GPU-...``; not among ``processes``."""


def look_at_cards(uuids: Sequence[str], program: Sequence[str] = PROGRAM, limit_s: float = LOOK_LIMIT_S) -> CardsLook:
    """Ask NVML once, in a process that is left behind when it hangs."""
    try:
        process = subprocess.Popen(
            [*program, ONCE, *uuids],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=Path(fuseproof.__file__).parent.parent,
            start_new_session=True,
        )
    except OSError as error:
        return CardsLook(reason=f"the GPUs could not be looked at: {error.strerror or error}")
    try:
        text, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        if process.stdout:
            process.stdout.close()
        return CardsLook(reason=f"NVML did not answer within {limit_s:g} s: the driver may be hanging")
    return read_look(text.decode("utf-8", errors="replace"))


def read_look(text: str) -> CardsLook:
    """The lines of the side program's single look; lines that say nothing usable are left out."""
    used: dict[str, float] = {}
    processes: dict[str, tuple[int, ...]] = {}
    mps: list[str] = []
    reason = None
    for line in text.splitlines():
        try:
            values: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        reason = values.get("reason", reason)
        uuid = str(values.get("gpu"))
        if isinstance(values.get("memory_used_mib"), int | float):
            used[uuid] = float(values["memory_used_mib"])
        found = values.get("processes")
        if isinstance(found, list):
            servers = [int(one["pid"]) for one in found if MPS_SERVER in str(one.get("name"))]
            processes[uuid] = tuple(int(one["pid"]) for one in found if int(one["pid"]) not in servers)
            mps += [f"MPS server {pid} on {uuid}" for pid in servers]
    reason = reason or (None if used else "NVML does not tell how much memory is in use")
    return CardsLook(used, processes, reason, tuple(mps))


@dataclass
class GpuWatch:
    """The cards of a campaign, named by UUID; without any there is nothing to watch.

    ``look`` and ``sleep`` and ``now_s`` are the machine's own outside of tests.
    """

    uuids: tuple[str, ...] = ()
    look: Callable[[Sequence[str]], CardsLook] = look_at_cards
    sleep: Callable[[float], None] = time.sleep
    now_s: Callable[[], float] = time.monotonic
    limit_s: float = REST_LIMIT_S
    _baseline: CardsLook | None = None

    @classmethod
    def of(cls, environment: Mapping[str, Any]) -> GpuWatch:
        """The cards that ``environment`` (of :func:`fuseproof.harness.machine.environment.describe`) calls visible."""
        return cls(tuple(str(uuid) for uuid in environment.get("visible_gpu_uuids") or () if uuid))

    def note_baseline(self) -> None:
        """Look at the cards once, before the first slot of a session."""
        if self.uuids and self._baseline is None:
            self._baseline = self.look(self.uuids)

    def sampler(self) -> GpuSampler:
        """A sampler for the next slot."""
        return GpuSampler(self.uuids)

    def wait_for_rest(self, is_cancelled: Callable[[], bool] = lambda: False) -> CardsAtRest | None:
        """Wait until the cards' memory is back at the baseline, at most ``limit_s``; None where there is no card.

        A wait that was cancelled decides nothing: what it saw may be the slot's own processes, ending.

        Processes that were there before the campaign are named and not waited for.
        """
        if not self.uuids:
            return None
        baseline = self._baseline or CardsLook()
        began_s = self.now_s()
        while True:
            seen = self.look(self.uuids)
            waited_s = self.now_s() - began_s
            is_at_rest, is_too_late = _is_at_rest(seen, baseline), is_cancelled()
            if is_at_rest is not False or waited_s >= self.limit_s or is_too_late:
                return CardsAtRest(
                    waited_s=round(waited_s, 3),
                    is_at_rest=None if is_too_late else is_at_rest,
                    used_mib=dict(seen.used_mib),
                    baseline_mib=dict(baseline.used_mib),
                    foreign=() if is_too_late else _holders(seen),
                    reason=seen.reason or baseline.reason,
                    mps=seen.mps,
                )
            self.sleep(POLL_S)


def _is_at_rest(seen: CardsLook, baseline: CardsLook) -> bool | None:
    """None where nobody can tell, so that nothing is waited for."""
    known = [uuid for uuid in seen.used_mib if uuid in baseline.used_mib]
    if not known:
        return None
    is_empty = all(seen.used_mib[uuid] <= baseline.used_mib[uuid] + IDLE_MEMORY_MIB for uuid in known)
    newcomers = [set(pids) - set(baseline.processes.get(uuid, ())) for uuid, pids in seen.processes.items()]
    return is_empty and not any(newcomers)


def _holders(look: CardsLook) -> tuple[str, ...]:
    named = [f"process {pid} on {uuid}" for uuid, pids in look.processes.items() for pid in pids]
    return tuple(named[:MOST_NAMED]) + ((f"{len(named) - MOST_NAMED} more",) if len(named) > MOST_NAMED else ())
