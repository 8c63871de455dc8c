"""What a built wheel and source archive must hold: every file of the package and nothing else.

``python -m tests.distribution dist`` checks the newest pair in a folder (``make build`` runs it).
"""

from __future__ import annotations

import hashlib
import sys
import tarfile
import zipfile
from pathlib import Path

from fuseproof.errors import FuseproofError
from fuseproof.pipelines.packaged_models import packaged_model, packaged_names, verified

ROOT = Path(__file__).resolve().parents[1]
# Not parts of the package, though they may lie beside its files.
_LEFT_OUT = {"__pycache__", ".DS_Store"}


def package_files(root: Path = ROOT) -> set[str]:
    """Every file below ``fuseproof/``, rooms included (they are links), with ``/`` between the parts."""
    folders = [root / "fuseproof", *(path for path in (root / "fuseproof").iterdir() if path.is_symlink())]
    paths = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    names = {path.relative_to(root) for path in paths}
    return {name.as_posix() for name in names if not _LEFT_OUT & set(name.parts) and name.suffix != ".pyc"}


def troubles_of_wheel(wheel: Path, root: Path = ROOT) -> list[str]:
    """One sentence for every file that is missing from the wheel or does not belong in it."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    information = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    wanted = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "LICENSE"}
    absent = wanted - {name.rsplit("/", 1)[-1] for name in information}
    return _troubles(wheel.name, names - information, package_files(root)) + [
        f"{wheel.name} has no {name}" for name in sorted(absent)
    ]


def troubles_of_source_archive(archive_path: Path, root: Path = ROOT) -> list[str]:
    """The same for the source archive, which also holds what is needed to build."""
    with tarfile.open(archive_path) as archive:
        members = archive.getmembers()
    links = [member.name for member in members if member.issym() or member.islnk()]
    names = {member.name.partition("/")[2] for member in members if member.isfile()}
    extra = {name for name in names if name.startswith("fuseproof.egg-info/")}
    around = {"LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}
    troubles = _troubles(archive_path.name, names - extra - around, package_files(root))
    absent = {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml"} - names
    return troubles + [f"{archive_path.name} has no {name}" for name in sorted(absent)] + links


def troubles_of_weights(archive_path: Path, root: Path = ROOT) -> list[str]:
    """One sentence for packaged weights that are not those of the index, in the folder or in the wheel."""
    models = root / "pipelines" / "embedded_models"
    try:
        found = [verified(model) for name in packaged_names(models) if (model := packaged_model(name, models))]
    except FuseproofError as error:
        return [error.message]
    troubles = []
    with zipfile.ZipFile(archive_path) as archive:
        packed = set(archive.namelist())
        for model in found:
            inside = f"fuseproof/pipelines/embedded_models/{model.name}"
            wrong = [
                name
                for name, expected in model.files.items()
                if f"{inside}/{name}" in packed
                and hashlib.sha256(archive.read(f"{inside}/{name}")).hexdigest() != expected
            ]
            troubles += [f"{archive_path.name} has another {inside}/{name} than the index" for name in wrong]
    return troubles


def _troubles(where: str, found: set[str], expected: set[str]) -> list[str]:
    missing = [f"{where} lacks {name}" for name in sorted(expected - found)]
    return missing + [f"{where} should not hold {name}" for name in sorted(found - expected)]


def main(folder: Path) -> int:
    wheels = sorted(folder.glob("*.whl"), key=lambda path: path.stat().st_mtime)
    archives = sorted(folder.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)
    if not wheels or not archives:
        sys.stderr.write(f"{folder} holds no wheel or no source archive\n")
        return 1
    troubles = troubles_of_wheel(wheels[-1]) + troubles_of_source_archive(archives[-1])
    troubles += troubles_of_weights(wheels[-1])
    sys.stderr.write("".join(f"{trouble}\n" for trouble in troubles))
    if not troubles:
        sys.stdout.write(f"{wheels[-1]}: {len(package_files())} files, all of the package and nothing else\n")
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
