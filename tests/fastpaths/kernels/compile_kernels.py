"""``python -m tests.fastpaths.kernels.compile_kernels MODULE...``: compile every case of these modules to cubin.

No GPU is needed, but a process in which Triton does not interpret. Writes one JSON list: module, kernel, case,
compute capability, and the error or null.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fuseproof.fastpaths.kernels.launching import CompileCase

CAPABILITIES = (80, 90, 100)


def compiled(case: CompileCase, capability: int) -> str | None:
    """The first line of what went wrong, or None."""
    names = case.kernel.arg_names
    signature = {name: "constexpr" if name in case.constexprs else case.signature[name] for name in names}
    constants = {(names.index(name),): value for name, value in case.constexprs.items()}
    # What a launch finds out by itself: addresses and strides of real models are multiples of 16.
    aligned = (name for name in names if signature[name].startswith("*") or name.endswith("_stride"))
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(case.kernel, signature, constants, attributes)
    try:
        result = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(case.options))
    except Exception as error:  # noqa: BLE001 - whatever the compiler raises is the finding
        return f"{type(error).__name__}: {error}"
    return None if result.asm.get("cubin") else "no cubin"


def tasks(module_name: str) -> Iterator[tuple[str, int, int]]:
    """Module, index of the case and capability, of all that this module wants compiled."""
    for index, case in enumerate(cases_of(module_name)):
        lowest = case.lowest_capability
        yield from ((module_name, index, capability) for capability in CAPABILITIES if capability >= lowest)


def cases_of(module_name: str) -> list[CompileCase]:
    """The cases of a module; none where it has no kernel."""
    module = importlib.import_module(module_name)
    cases: list[CompileCase] = module.compile_cases() if hasattr(module, "compile_cases") else []
    return cases


def record(task: tuple[str, int, int]) -> dict[str, Any]:
    """Do one task."""
    module_name, index, capability = task
    case = cases_of(module_name)[index]
    return {
        "module": module_name,
        "kernel": case.kernel.__name__,
        "case": {name: str(value) for name, value in case.constexprs.items()},
        "capability": capability,
        "states_fp_fusion": "enable_fp_fusion" in case.options,
        "error": compiled(case, capability),
    }


if __name__ == "__main__":
    all_tasks = [task for name in sys.argv[1:] for task in tasks(name)]
    # Forked, so that torch is imported once; nothing here computes with it.
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("fork")) as pool:
        json.dump(list(pool.map(record, all_tasks)), sys.stdout)
