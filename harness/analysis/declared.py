"""What the plan itself says the arms differ in: flags, other programs, and variables that decide a recorded setting.

A difference between runs is the experiment only where the plan declares it. A flag declares its setting when the arms
give it different values; a variable declares what it is known to decide, and nothing else: an arm's ``env`` is no
licence for another library.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from fuseproof.harness.perf import determinism
from fuseproof.harness.perf.parallelism import PARALLEL_FLAGS
from fuseproof.schedules.plan import Arm

PROGRAM_KEYS = ("command", "ref", "repo", "setup", "python", "imports")
"""Arms that differ in one of these are other programs: their software may differ in anything."""
VERSION_VARIABLES = frozenset(
    {"PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH"}
)
TF32_VARIABLES = frozenset({"NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"})
SETTING_VARIABLES = {
    "torch threads": frozenset({"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}),
    "TF32 policy": TF32_VARIABLES,
    "rounding policy": TF32_VARIABLES
    | {"CUBLAS_WORKSPACE_CONFIG", "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"},
    **{name: frozenset({name}) for name in (determinism.HASH_SEED, *determinism.VARIABLES)},
    "GPUs": frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"}),
}
"""A recorded setting → the variables that decide it."""
CARD_FLAGS = frozenset({"device", "base_gpu_id", *PARALLEL_FLAGS})
"""Flags that decide which cards an arm works on, and how many."""
NO_FLAG = "words before any flag"
SWITCHED_ON = frozenset({"", "true", "on"})


def flag_values(text: str) -> dict[str, str]:
    """``--flag`` → value, the last one where a flag is repeated, as ``generate`` itself takes it.

    A flag without a value is on, as ``--flag=true`` is; words without a flag belong to the one before.
    """
    return flags_of(shlex.split(text))


def flags_of(words: Iterable[str]) -> dict[str, str]:
    """:func:`flag_values` of a command that is split into words already."""
    found: dict[str, str] = {}
    name = NO_FLAG
    for word in words:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            found[name] = value
        else:
            found[name] = f"{found.get(name, '')} {word}".strip()
    return {flag: "on" if value in SWITCHED_ON else value for flag, value in found.items()}


def declared_settings(arm: Arm) -> dict[str, str]:
    """The settings that an arm's own flags or command name, as config keys (``enable_torch_compile``), with values."""
    flags = flag_values(arm.flags) | flag_values(arm.command or "")
    return {flag.removeprefix("--").replace("-", "_"): value for flag, value in flags.items() if flag != NO_FLAG}


def differing_settings(baseline: Arm, candidate: Arm) -> set[str]:
    """The settings to which the arms' own flags give different values, or that one of them names alone."""
    before, after = declared_settings(baseline), declared_settings(candidate)
    return {name for name in {*before, *after} if before.get(name) != after.get(name)}


def are_other_programs(baseline: Arm, candidate: Arm) -> bool:
    """Whether the arms run different programs by the plan; an environment does not make another program."""
    return any(getattr(baseline, key) != getattr(candidate, key) for key in PROGRAM_KEYS)


def declares_software(baseline: Arm, candidate: Arm, field: str) -> bool:
    """Whether the plan declares a difference in ``field``: ``torch version``, ``TF32 policy`` and the like.

    A variable that decides determinism is declared by itself alone: another program is no licence for another one.
    """
    if field in (determinism.HASH_SEED, *determinism.VARIABLES):
        return field in differing_variables(baseline, candidate)
    variables = VERSION_VARIABLES if field.endswith(" version") else SETTING_VARIABLES.get(field, frozenset())
    return are_other_programs(baseline, candidate) or bool(variables & differing_variables(baseline, candidate))


def declares_cards(baseline: Arm, candidate: Arm) -> bool:
    """Whether the plan declares that the arms work on different GPUs: by a flag or a variable, not by a command."""
    has_variable = bool(SETTING_VARIABLES["GPUs"] & differing_variables(baseline, candidate))
    return has_variable or bool(CARD_FLAGS & differing_settings(baseline, candidate))


def differing_variables(baseline: Arm, candidate: Arm) -> set[str]:
    """The environment variables that the arms set differently."""
    names = {*baseline.env, *candidate.env}
    return {name for name in names if baseline.env.get(name) != candidate.env.get(name)}
