"""The shape of the code: which room may import which, what stays unloaded, how fast help is, how large a file gets."""

from __future__ import annotations

import ast
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("schedules", "harness", "fastpaths", "pipelines", "cli")
# The arrow never points back. `fuseproof.errors` and the version belong to no room and are open to all.
MAY_IMPORT = {
    "schedules": {"schedules"},
    "harness": {"harness", "schedules"},
    "fastpaths": {"fastpaths"},
    "pipelines": {"pipelines", "fastpaths"},
    "cli": set(ROOMS),
}
# Inside the harness, too; the files beside its packages (atomic_files, escape, number_format) are open to all of it.
HARNESS_MAY_IMPORT = {
    "machine": set(),
    "statistics": set(),
    "counters": set(),
    "kernel_times": set(),
    "media": {"machine"},
    "perf": {"machine", "statistics"},
    "campaign": {"kernel_times", "machine", "media", "perf"},
    "analysis": {"campaign", "kernel_times", "media", "perf", "statistics"},
    "report": {"analysis", "campaign", "machine", "media", "perf", "statistics"},
    "profiles": {"analysis", "campaign", "perf", "report", "statistics"},
    "importing": {"analysis", "campaign", "machine", "media", "perf"},
}
MODEL_LIBRARIES = {"torch", "torchvision", "triton", "diffusers", "transformers", "accelerate"}
# What makes `--help` slow; commands import these inside their functions.
SLOW_LIBRARIES = MODEL_LIBRARIES | {"numpy", "scipy", "skimage", "pydantic", "imageio", "av", "PIL", "huggingface_hub"}
LONGEST_FILE_LINES = 500
MEANINGLESS_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
HELP_LIMIT_S = 0.3


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported_names(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything a file imports, inside functions and ``TYPE_CHECKING`` too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            is_package = module == "fuseproof"
            yield from ((node.lineno, f"{module}.{alias.name}" if is_package else module) for alias in node.names)


def trouble_with(room: str, name: str) -> str | None:
    """Why a file of ``room`` may not import ``name``."""
    top, _, rest = name.partition(".")
    target = rest.partition(".")[0]
    if name.startswith("."):
        return "relative import"
    if top in ROOMS:
        return f"write fuseproof.{top}"
    if top == "fuseproof" and target in ROOMS and target not in MAY_IMPORT[room]:
        return f"{room} may not import {target}"
    if room in ("harness", "schedules") and top in MODEL_LIBRARIES:
        return f"{room} never imports {top}, not even lazily"
    if room == "schedules" and top not in {"fuseproof", "pydantic", "pydantic_core", *sys.stdlib_module_names}:
        return "schedules uses pydantic and the standard library only"
    return None


@pytest.mark.parametrize("package", HARNESS_MAY_IMPORT)
def test_the_harness_is_no_tangle(package: str) -> None:
    targets = {
        name.split(".")[2]
        for path in sources(f"harness/{package}")
        for _, name in imported_names(path)
        if name.startswith("fuseproof.harness.")
    }
    packages = targets & set(HARNESS_MAY_IMPORT)
    assert packages <= HARNESS_MAY_IMPORT[package] | {package}


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_the_right_way(room: str) -> None:
    found = [
        f"{relative(path)}:{line} imports {name}: {trouble}"
        for path in sources(room)
        for line, name in imported_names(path)
        if (trouble := trouble_with(room, name))
    ]
    assert [] == found


@pytest.mark.parametrize(
    ("is_allowed", "room", "name"),
    [
        (True, "harness", "fuseproof.schedules.plan"),
        (True, "harness", "fuseproof.errors"),
        (True, "pipelines", "fuseproof.fastpaths"),
        (True, "cli", "fuseproof.pipelines.session"),
        (True, "fastpaths", "torch"),
        (False, "harness", "fuseproof.pipelines.families"),
        (False, "harness", "torch.cuda"),
        (False, "schedules", "fuseproof.harness"),
        (False, "schedules", "numpy"),
        (False, "fastpaths", "fuseproof.pipelines"),
        (False, "pipelines", "fuseproof.cli.main"),
        (False, "cli", "harness.verdict"),
        (False, "cli", ".options"),
    ],
)
def test_the_rule_itself_can_fail(is_allowed: bool, room: str, name: str) -> None:
    assert is_allowed is (trouble_with(room, name) is None)


def loaded_after(code: str, names: set[str]) -> set[str]:
    """Which of ``names`` a fresh interpreter holds after ``code``."""
    program = f"{code}\nimport sys\nsys.stdout.write(' '.join(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True)
    return {module for module in result.stdout.split() if module in names}


IMPORT_EVERY_MODULE = """
import importlib, pkgutil
for room in ("harness", "schedules"):
    package = importlib.import_module("fuseproof." + room)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
"""
IMPORT_EVERY_COMMAND = """
import click
from fuseproof.cli.main import cli
context = click.Context(cli)
for name in cli.list_commands(context):
    command = cli.get_command(context, name)
    command.get_help(click.Context(command, parent=context, info_name=name))
"""


@pytest.mark.parametrize(
    ("code", "names"),
    [
        pytest.param("import fuseproof.harness", MODEL_LIBRARIES, id="import fuseproof.harness"),
        pytest.param(IMPORT_EVERY_MODULE, MODEL_LIBRARIES, id="every module of harness and schedules"),
        pytest.param(IMPORT_EVERY_COMMAND, SLOW_LIBRARIES, id="the help of every command"),
    ],
)
def test_what_stays_unloaded(code: str, names: set[str]) -> None:
    assert set() == loaded_after(code, names)


def test_the_check_of_loaded_modules_can_fail() -> None:
    assert {"numpy"} == loaded_after("import numpy", SLOW_LIBRARIES)


def test_help_answers_at_once() -> None:
    """Best of three, in CPU seconds: a busy test machine stretches wall time, not the work that help does.

    A shared CI machine (``CI`` set) may have a slower core, so it gets twice the limit; on a desk the limit is the
    promise itself. What keeps help fast anywhere is the test above: no slow library is loaded.
    """
    limit_s = HELP_LIMIT_S * (2 if os.environ.get("CI") else 1)
    assert min(help_cpu_seconds() for _ in range(3)) < limit_s


def help_cpu_seconds() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "fuseproof", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "compare-perf" in result.stdout
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


def test_no_file_is_too_long_to_hold() -> None:
    lengths = {relative(path): path.read_text(encoding="utf-8").count("\n") for path in sources(*ROOMS, "tests")}
    assert {} == {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE_LINES}


def test_no_module_has_a_name_that_says_nothing() -> None:
    paths = sources(*ROOMS, "tests")
    named = {relative(path): {path.stem, path.parent.name} & MEANINGLESS_NAMES for path in paths}
    assert [] == [name for name, bad in named.items() if bad]


def test_every_room_is_a_link_in_the_package() -> None:
    assert dict.fromkeys(ROOMS, True) == {room: (ROOT / "fuseproof" / room).is_symlink() for room in ROOMS}
    assert [f"../{room}" for room in ROOMS] == [str((ROOT / "fuseproof" / room).readlink()) for room in ROOMS]
