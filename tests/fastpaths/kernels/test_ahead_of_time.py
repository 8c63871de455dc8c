"""Every kernel compiles to cubin for sm_80, sm_90 and sm_100, without a GPU."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fuseproof.fastpaths import kernels
from tests.fastpaths.kernels.compile_kernels import CAPABILITIES

ROOT = Path(__file__).resolve().parents[3]
MODULES = [module.name for module in pkgutil.iter_modules(kernels.__path__)]
BROKEN = "tests.fastpaths.kernels.broken_kernel"
Records = list[dict[str, Any]]
pytestmark = pytest.mark.timeout(900)  # about a minute of one core; the first test waits for all of it


@pytest.fixture(autouse=True)
def exact_rounding() -> None:
    """In place of the interpreter's fixture of this name: another process compiles, with a GPU or without."""


@pytest.fixture(scope="module")
def compilations() -> Records:
    """All records of one process: Triton cannot compile where it interprets."""
    names = [f"{kernels.__name__}.{module}" for module in MODULES]
    command = [sys.executable, "-m", "tests.fastpaths.kernels.compile_kernels", *names, BROKEN]
    result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    records: Records = json.loads(result.stdout)
    return records


def of_module(compilations: Records, name: str) -> Records:
    return [record for record in compilations if record["module"].endswith(f".{name}")]


@pytest.mark.parametrize("module", MODULES)
def test_every_case_compiles(module: str, compilations: Records) -> None:
    found = of_module(compilations, module)
    failed = {f"{record['kernel']} {record['case']} sm_{record['capability']}": record["error"] for record in found}
    assert {} == {case: error for case, error in failed.items() if error is not None}
    assert [] == [record["kernel"] for record in found if not record["states_fp_fusion"]]


def test_every_card_is_compiled_for(compilations: Records) -> None:
    for module in ("layernorm_modulate", "gated_residual", "gated_residual_layernorm_modulate"):
        assert set(CAPABILITIES) == {record["capability"] for record in of_module(compilations, module)}


def test_a_broken_kernel_is_named(compilations: Records) -> None:
    found = of_module(compilations, "broken_kernel")
    assert [("_broken_kernel", 90), ("_broken_kernel", 100)] == [(each["kernel"], each["capability"]) for each in found]
    assert all("nowhere_defined" in record["error"] for record in found)
