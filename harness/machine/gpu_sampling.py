"""A side process that samples cards through NVML while something else is measured; it never changes a setting.

``python -m fuseproof.harness.machine.gpu_sampling UUID...`` writes JSON lines to stdout until its stdin ends, which it
does when the starting program closes it or dies. A process of its own, because a call into a hanging driver cannot be
ended from within. Its interval grows until its own processor time is below 0.5 % of the usable cores' time, or of the
container's CPU quota where that is less.
With ``--once`` it looks once, names the processes too, and ends.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from fuseproof.harness.machine.host import read_cpu_quota
from fuseproof.harness.machine.nvml import Nvml, NvmlError

INTERVAL_S = 0.2
LARGEST_CPU_SHARE = 0.005
"""Of the processor time of all usable cores; where a sample costs more, the next one comes later."""
LONGEST_INTERVAL_S = 5.0
COST_SMOOTHING = 0.2
ONCE = "--once"


def main(arguments: Sequence[str] | None = None, module: Any = None, out: TextIO | None = None) -> int:
    """Sample the cards named by UUID; a machine without NVML gets one line with the reason."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    stream = sys.stdout if out is None else out
    uuids = [word for word in words if word != ONCE]
    try:
        nvml = Nvml.open(module)
        for uuid in uuids:
            nvml.find(uuid)
    except NvmlError as error:
        _write(stream, {"reason": str(error)})
        return 0
    if ONCE in words:
        _look_once(nvml, uuids, stream)
    else:
        _watch(nvml, uuids, stream, input_has_ended)
    nvml.close()
    return 0


def input_has_ended(timeout_s: float) -> bool:
    """Wait so long for stdin to end; it is the sampler's clock and its leash in one."""
    readable, _, _ = select.select([sys.stdin], [], [], timeout_s)
    return bool(readable)


def _capacity_cores() -> float:
    """The cores' worth of time that may be used here: those of this process, or the container's quota below that."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    quota = read_cpu_quota()
    return cores if quota is None else min(cores, quota)


def next_interval_s(cost_s: float, cores: float) -> float:
    """How long to wait between samples that cost ``cost_s`` seconds of processor time each."""
    return min(LONGEST_INTERVAL_S, max(INTERVAL_S, cost_s / (LARGEST_CPU_SHARE * cores)))


def _watch(nvml: Nvml, uuids: Sequence[str], stream: TextIO, has_ended: Callable[[float], bool]) -> None:
    cores = _capacity_cores()
    start_cpu_s, began_s = time.process_time(), time.monotonic()
    cost_s, longest_s, rounds = 0.0, INTERVAL_S, 0
    while True:
        before_s, now_s = time.process_time(), time.monotonic()
        for uuid in uuids:
            sample = dataclasses.asdict(nvml.sample(uuid))
            _write(stream, {"monotonic_s": round(now_s, 4), "gpu": sample.pop("uuid"), **sample})
        rounds += 1
        spent_s = time.process_time() - before_s
        cost_s = spent_s if rounds == 1 else cost_s + COST_SMOOTHING * (spent_s - cost_s)
        interval_s = next_interval_s(cost_s, cores)
        longest_s = max(longest_s, interval_s)
        if has_ended(max(0.0, interval_s - (time.monotonic() - now_s))):
            break
    used_s, wall_s = time.process_time() - start_cpu_s, time.monotonic() - began_s
    cost = {"cpu_s": round(used_s, 4), "wall_s": round(wall_s, 4), "start_cpu_s": round(start_cpu_s, 4)}
    _write(stream, {"cost": {**cost, "cores": cores, "rounds": rounds, "longest_interval_s": round(longest_s, 3)}})


def _look_once(nvml: Nvml, uuids: Sequence[str], stream: TextIO) -> None:
    for uuid in uuids:
        processes = nvml.processes(uuid)
        found = None if processes is None else [dataclasses.asdict(process) for process in processes]
        _write(stream, {"gpu": uuid, "memory_used_mib": nvml.memory_used_mib(uuid), "processes": found})


def _write(stream: TextIO, values: dict[str, Any]) -> None:
    stream.write(json.dumps(values, allow_nan=False) + "\n")
    stream.flush()


if __name__ == "__main__":
    raise SystemExit(main())
