"""Settings that decide whether a run gives the same bits twice, as its dump's ``environment`` records them.

Variables are compared where both dumps record their variables at all: then one that is missing was not set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuseproof.harness.perf.dump import PerfDump

VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "SGLANG_ENABLE_DETERMINISTIC_INFERENCE",
)
HASH_SEED = "PYTHONHASHSEED"
SWITCHES = ("deterministic_algorithms", "cudnn_deterministic", "cudnn_benchmark")
"""torch's own, where a dump states them at the top of its ``environment``; ours stand in ``numerics``."""
NOT_SET = "not set"


def variable(dump: PerfDump, name: str) -> str | None:
    """The value of an environment variable, ``not set``, or None where the dump records no variables."""
    recorded = dump.environment.get("environment_variables")
    return str(recorded.get(name, NOT_SET)) if isinstance(recorded, Mapping) else None


def switch(dump: PerfDump, name: str) -> Any:
    """The value of one of torch's switches; None where the dump does not state it."""
    return dump.environment.get(name)


def hash_seed(dump: PerfDump) -> Any:
    """Python's hash seed, wherever the dump states it; None where it does not."""
    stated = dump.environment.get("python_hash_seed")
    return stated if stated is not None else variable(dump, HASH_SEED)


def recorded_by_one(first: PerfDump, other: PerfDump) -> tuple[str, ...]:
    """Determinism settings that one run records as set and the other does not record at all."""
    mine, theirs = _recorded(first), _recorded(other)
    alone = [name for name in mine if name not in theirs and mine[name]]
    return tuple(sorted([*alone, *(name for name in theirs if name not in mine and theirs[name])]))


def _recorded(dump: PerfDump) -> dict[str, bool]:
    """Setting → whether it is set, for every setting that the dump records."""
    variables = {name: value != NOT_SET for name in VARIABLES if (value := variable(dump, name)) is not None}
    switches = {name: bool(dump.environment[name]) for name in SWITCHES if dump.environment.get(name) is not None}
    return variables | switches
