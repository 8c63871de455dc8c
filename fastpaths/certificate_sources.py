"""Which source files decide the bits of a site, and their SHA-256: what a certificate must hold for it.

The names are worked out here from the sites, never taken from a certificate, so no path in one is ever read.

- A built-in site with kernels: their files, those of every family that has it (``sites/<family>/*.py``) and what
  families share (``sites/*.py``), each with every file of ``kernels/`` that it imports. A site without a kernel: all of
  ``fastpaths/``.
- A site of one's own: the file that defines it, every module loaded from elsewhere than the standard library and
  site-packages, and all of ``fastpaths/``. A module is read once it is loaded: one that is imported inside a function,
  later, makes the certificate fail to hold rather than slip through. Not covered: packages in site-packages besides
  those whose versions a certificate holds, libraries loaded by hand (``ctypes``, ``torch.ops.load_library``), and data
  files.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import os
import site as site_packages
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

from fuseproof.fastpaths.families import FAMILIES, kernels_of_site

ROOM = Path(__file__).parent
PACKAGE = "fuseproof.fastpaths"
OWN = "own:"
WHOLE_ROOM = "fastpaths/"
NOT_THE_USERS = ("fuseproof", "__main__", "__mp_main__")


class Sources:
    """The sources as they are now; each file is read once."""

    def __init__(self, user_files: Iterable[Path] = ()) -> None:
        self._user_files = tuple(user_files)
        self._hashes: dict[str, str] = {}
        self._imports: dict[str, list[str]] = {}
        self._own: dict[str, str] | None = None

    def of_site(self, site: str) -> dict[str, str]:
        """SHA-256 by name of what decides ``site``; LookupError for a site that is neither built in nor in a file."""
        names = built_in_names(site)
        if names is not None:
            return {name: self._hash(name) for name in names}
        if not self._user_files:
            raise LookupError(f"{site} is no built-in site, and the file that defines it was not given")
        if self._own is None:
            self._own = own_hashes(self._user_files)
        return dict(self._own)

    def of_sites(self, sites: Iterable[str]) -> dict[str, str]:
        """As :meth:`of_site`, for all of ``sites`` together."""
        return {name: sha256 for site in sites for name, sha256 in self.of_site(site).items()}

    def _hash(self, name: str) -> str:
        if name not in self._hashes:
            self._hashes[name] = room_hash() if name == WHOLE_ROOM else kernel_hash(name, self._imports)
        return self._hashes[name]


def built_in_names(site: str) -> tuple[str, ...] | None:
    """The files of this room that decide a built-in ``site``, in whichever family has it; None for any other name."""
    families = [importlib.import_module(name) for name in FAMILIES.values()]
    having = [family for family in families if site in family.SITES]
    kernels = [kernels_of_site(family).get(site) for family in having]
    if not having:
        return None
    if None in kernels:
        return (WHOLE_ROOM,)
    files = {f"kernels/{kernel}.py" for several in kernels for kernel in several or ()}
    for family in having:
        folder = Path(str(family.__file__)).parent
        shared = folder.parent.glob("*.py")
        files |= {f"sites/{path.relative_to(folder.parent).as_posix()}" for path in (*folder.rglob("*.py"), *shared)}
    return tuple(sorted(files))


def own_hashes(user_files: Iterable[Path]) -> dict[str, str]:
    """SHA-256 by name of files of one's own, of the modules they loaded, and of this room, which they may use."""
    hashes = {OWN + path.name: _file_hash(path) for path in user_files if path.is_file()}
    hashes |= {OWN + name: _file_hash(path) for name, path in loaded_user_modules()}
    return hashes | {WHOLE_ROOM: room_hash()}


def room_hash() -> str:
    """SHA-256 over the names and texts of all of this room's Python files."""
    whole = hashlib.sha256()
    for path in sorted(ROOM.rglob("*.py")):
        whole.update(path.relative_to(ROOM).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return whole.hexdigest()


def loaded_user_modules() -> Iterator[tuple[str, Path]]:
    """Every module loaded from a file outside the standard library, site-packages and this package, by name."""
    installed = tuple(f"{folder}{os.sep}" for folder in _installed_folders())
    for name, module in sorted(sys.modules.items()):
        if name.split(".")[0] in NOT_THE_USERS or name.startswith("fuseproof_user_sites_"):
            continue
        file = module.__dict__.get("__file__") if isinstance(module, ModuleType) else None
        if not isinstance(file, str) or not Path(file).is_absolute():  # built in, or torch's made-up modules
            continue
        real = os.path.realpath(file)
        if not real.startswith(installed) and Path(real).is_file():
            yield name, Path(real)


def kernel_hash(name: str, imports: dict[str, list[str]] | None = None) -> str:
    """SHA-256 over a file of this room (``kernels/gelu_tanh.py``) and the kernel files that it imports, in order.

    ``imports`` keeps what each file imports, from one call to the next.
    """
    digest = hashlib.sha256()
    for file in sorted(_with_imports(name, {} if imports is None else imports)):
        digest.update(file.encode() + b"\0" + (ROOM / file).read_bytes() + b"\0")
    return digest.hexdigest()


def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _installed_folders() -> Iterator[Path]:
    """The standard library's and site-packages, links resolved."""
    paths = sysconfig.get_paths()
    folders = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site_packages.getsitepackages(), site_packages.getusersitepackages()]
    for folder in dict.fromkeys(folders):
        yield Path(os.path.realpath(folder))


def _with_imports(name: str, imports: dict[str, list[str]]) -> frozenset[str]:
    """A file and, through it, every file of kernels/ that it imports."""
    found, waiting = {name}, [name]
    while waiting:
        file = waiting.pop()
        if file not in imports:
            tree = ast.parse((ROOM / file).read_text(encoding="utf-8"))
            imports[file] = [imported for node in ast.walk(tree) for imported in _kernel_files(node)]
        waiting += [imported for imported in imports[file] if imported not in found]
        found.update(imports[file])
    return frozenset(found)


def _kernel_files(node: ast.AST) -> list[str]:
    prefix = f"{PACKAGE}.kernels"
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    files = [f"kernels/{full.removeprefix(prefix + '.')}.py" for full in names if full.startswith(prefix + ".")]
    return [file for file in files if (ROOM / file).is_file()]
