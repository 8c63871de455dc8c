"""Installed libraries by their metadata: nothing is imported, so a broken or heavy library costs nothing to name."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

import fuseproof

# The libraries whose version can change a measured number or a bit of an output; recorded in every campaign.
RECORDED_LIBRARIES = (
    "torch",
    "triton",
    "diffusers",
    "transformers",
    "tokenizers",
    "safetensors",
    "accelerate",
    "huggingface_hub",
    "numpy",
    "scipy",
    "scikit-image",
    "pillow",
    "imageio",
    "av",
)


@dataclass(frozen=True)
class Library:
    """``required`` is what we ask for (``>=2.13.0``); ``version`` is None when it is not installed.

    ``is_accepted`` is False for a version outside ``required``, None where there is no version to judge.
    """

    name: str
    version: str | None
    required: str
    is_accepted: bool | None


@dataclass(frozen=True)
class TorchBuild:
    """What the installed torch was built for, read from its version file: ``cuda`` is None in a CPU build."""

    version: str | None
    cuda: str | None
    rocm: str | None
    git_version: str | None


def installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def recorded_versions() -> dict[str, str | None]:
    """Version by library name; None for a library that is not installed."""
    return {name: installed_version(name) for name in RECORDED_LIBRARIES}


def required_libraries(requirements: list[str] | None = None) -> tuple[Library, ...]:
    """Our own run-time requirements against what is installed; empty where neither metadata nor checkout tells."""
    texts = _own_requirements() if requirements is None else requirements
    libraries = []
    for requirement in map(Requirement, texts):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = installed_version(requirement.name)
        accepted = None if version is None else requirement.specifier.contains(version, prereleases=True)
        libraries.append(Library(requirement.name, version, str(requirement.specifier), accepted))
    return tuple(libraries)


def _own_requirements() -> list[str]:
    """From our installed metadata, else from the ``pyproject.toml`` of the checkout that runs uninstalled."""
    try:
        return importlib.metadata.requires("fuseproof") or []
    except importlib.metadata.PackageNotFoundError:
        return requirements_of_checkout(Path(fuseproof.__file__).resolve().parent.parent)


def requirements_of_checkout(folder: Path) -> list[str]:
    """The dependencies in a checkout's ``pyproject.toml``; empty where there is none."""
    path = folder / "pyproject.toml"
    if not path.is_file():
        return []
    return list(tomllib.loads(path.read_text(encoding="utf-8"))["project"]["dependencies"])


def torch_build(version_file: Path | None = None) -> TorchBuild | None:
    """Read torch's ``version.py`` as text; None where there is no torch."""
    path = version_file or _torch_version_file()
    if path is None or not path.is_file():
        return None
    text = path.read_text(encoding="utf-8", errors="replace")
    return TorchBuild(
        version=_assigned(text, "__version__"),
        cuda=_assigned(text, "cuda"),
        rocm=_assigned(text, "hip"),
        git_version=_assigned(text, "git_version"),
    )


def _torch_version_file() -> Path | None:
    specification = importlib.util.find_spec("torch")
    origin = specification.origin if specification else None
    return Path(origin).with_name("version.py") if origin else None


def _assigned(text: str, name: str) -> str | None:
    """The string assigned to ``name``, or None where it is None or missing."""
    found = re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"]*)['\"]", text, re.MULTILINE)
    return found.group(1) if found else None
