"""The wheel holds the whole package and nothing else, and its console script and metadata are right."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.distribution import (
    ROOT,
    package_files,
    troubles_of_source_archive,
    troubles_of_weights,
    troubles_of_wheel,
)
from tests.pipelines.packaged_stand_in import BASE, WEIGHTS, write_packaged

ROOMS = ("cli", "fastpaths", "harness", "pipelines", "schedules")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is packaged, links kept: building leaves folders behind, and the checkout stays clean."""
    folder = tmp_path_factory.mktemp("packaging") / "fuseproof"
    folder.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy2(ROOT / name, folder / name)
    for name in ("fuseproof", *ROOMS, "tests"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    models = folder / "pipelines" / "embedded_models"
    shutil.rmtree(models, ignore_errors=True)  # a few bytes of every kind stand for the weights
    write_packaged(models)
    return folder


@pytest.fixture(scope="module")
def built(copy: Path) -> Path:
    """One wheel by way of one source archive, as ``make build`` makes them (about three seconds, offline)."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(copy / "dist"), str(copy)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert 0 == result.returncode, result.stdout + result.stderr
    return copy / "dist"


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(built: Path, copy: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert [] == troubles_of_wheel(wheel, copy)


def test_the_source_archive_holds_what_builds_the_wheel_and_no_links(built: Path, copy: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    assert [] == troubles_of_source_archive(archive, copy)


def test_packaged_weights_are_in_the_wheel_as_the_index_has_them(built: Path, copy: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    inside = f"fuseproof/pipelines/embedded_models/{BASE}"
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith(inside + "/")}
        assert {".safetensors", ".json", ".txt", ".md"} == {Path(name).suffix for name in packed}
    assert [] == troubles_of_weights(wheel, copy)
    with zipfile.ZipFile(tmp_path / "cut.whl", "w") as archive:
        archive.writestr(f"{inside}/{WEIGHTS}", "cut")
    assert [f"cut.whl has another {inside}/{WEIGHTS} than the index"] == troubles_of_weights(tmp_path / "cut.whl", copy)
    (copy / "pipelines" / "embedded_models" / BASE / WEIGHTS).rename(tmp_path / "kept")
    try:
        (trouble,) = troubles_of_weights(wheel, copy)
    finally:
        (tmp_path / "kept").rename(copy / "pipelines" / "embedded_models" / BASE / WEIGHTS)
    assert f"{BASE}/{WEIGHTS}, a part of embedded:{BASE}, is missing" in trouble


def test_the_wheel_is_pure_and_has_one_console_script(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        text = archive.read(name).decode()
    assert "[console_scripts]\nfuseproof = fuseproof.cli.main:main" == text.strip()


def test_the_check_can_fail(built: Path, copy: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    changed = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(changed, "w") as target:
        for name in source.namelist():
            if not name.endswith(("py.typed", "LICENSE")):
                target.writestr(name, source.read(name))
        target.writestr("cli/main.py", "")
    assert [
        f"{wheel.name} lacks fuseproof/py.typed",
        f"{wheel.name} should not hold cli/main.py",
        f"{wheel.name} has no LICENSE",
    ] == troubles_of_wheel(changed, copy)


def test_a_link_in_a_source_archive_is_a_trouble(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        link = tarfile.TarInfo("fuseproof-0/fuseproof/cli")
        link.type, link.linkname = tarfile.SYMTYPE, "../cli"
        archive.addfile(link)
    assert "fuseproof-0/fuseproof/cli" in troubles_of_source_archive(path)


def test_package_files_reach_into_the_rooms() -> None:
    files = package_files()
    assert set(ROOMS) <= {name.split("/")[1] for name in files if name.count("/") > 1}
    assert {"fuseproof/__init__.py", "fuseproof/py.typed", "fuseproof/schedules/plans/embedded.toml"} <= files


def test_every_pinned_version_satisfies_its_lower_bound() -> None:
    """A lower bound is a version that was run: the pinned one, until an older one has been tried."""
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    requirements = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    for requirement in map(Requirement, requirements):
        assert requirement.name in pins, f"{requirement.name} is not pinned in constraints.txt"
        assert requirement.specifier.contains(pins[requirement.name]), requirement
