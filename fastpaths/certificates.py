"""What ``fastpaths verify`` vouches for: keys that agreed bit for bit, and all that this could depend on.

A certificate holds where versions, card and the source of every kernel are the same; there a gate may skip its first
sight of these keys (state ``certified``). It is plain JSON; reading one never runs code.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from fuseproof.errors import FuseproofError

SCHEMA = "fuseproof.fastpath-certificate/1"
LIBRARIES = ("torch", "triton", "diffusers")
PACKAGE = "fuseproof.fastpaths"
ROOM = Path(__file__).parent
LARGEST_FILE_BYTES = 64 * 1024 * 1024
NEXT_STEP = "Run `fuseproof fastpaths verify` on this machine."


@dataclass(frozen=True)
class Place:
    """Where bits were compared, or are to be trusted: library versions, and the card's name and compute capability."""

    versions: Mapping[str, str | None]
    card: Mapping[str, str]


@dataclass(frozen=True)
class Certificate:
    """``keys`` by site, as ``repr`` of a gate's key; ``sources`` maps file names (in fastpaths, or a site file of one's
    own) to the SHA-256 of what decides the result: the file and everything it imports from fastpaths/kernels.
    """

    place: Place
    sources: Mapping[str, str]
    keys: Mapping[str, tuple[str, ...]]
    launch_options: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    cases: tuple[Mapping[str, Any], ...] = ()
    models: tuple[str, ...] = ()
    seed: int = 0
    created: str = ""

    def trusted(self) -> dict[str, frozenset[str]]:
        """The keys as ``mount(certified=...)`` takes them."""
        return {site: frozenset(keys) for site, keys in self.keys.items()}


def place_here(device: torch.device) -> Place:
    """This machine, seen from ``device``."""
    versions: dict[str, str | None] = {name: _version(name) for name in LIBRARIES}
    versions |= {"torch": torch.__version__, "cuda": torch.version.cuda}
    if device.type != "cuda":
        return Place(versions | {"cudnn": None}, {"name": device.type, "capability": ""})
    major, minor = torch.cuda.get_device_capability(device)
    card = {"name": torch.cuda.get_device_name(device), "capability": f"{major}.{minor}"}
    return Place(versions | {"cudnn": str(torch.backends.cudnn.version())}, card)


def reject_reason(certificate: Certificate, here: Place, user_files: Iterable[Path] = ()) -> str | None:
    """Which version, card or source differs from what the certificate saw; None where it holds."""
    for name, seen in certificate.place.versions.items():
        if here.versions.get(name) != seen:
            return f"it was made with {name} {seen}, and {here.versions.get(name)} is installed"
    for name, value in certificate.place.card.items():
        if here.card.get(name) != value:
            return f"it was made on {_card(certificate.place)}, and this is {_card(here)}"
    current = source_hashes(certificate.sources, user_files)
    for name, sha256 in certificate.sources.items():
        if current.get(name) is None:
            return f"{name} is not here"
        if current[name] != sha256:
            return f"{name} has changed since (SHA-256 {sha256[:12]} then, {current[name][:12]} now)"
    return None


def source_hashes(names: Iterable[str], user_files: Iterable[Path] = ()) -> dict[str, str]:
    """SHA-256 by name: files of this room with what they import from kernels/, and files of one's own by their name."""
    own = {path.name: path for path in user_files}
    hashes = {}
    for name in names:
        if name.startswith("own:"):
            path = own.get(name.removeprefix("own:"))
            if path is not None and path.is_file():
                hashes[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif (ROOM / name).is_file() and ".." not in Path(name).parts:
            hashes[name] = kernel_hash(name)
    return hashes


def kernel_hash(name: str) -> str:
    """SHA-256 over a file of this room (``kernels/gelu_tanh.py``) and the kernel files that it imports, in order."""
    digest = hashlib.sha256()
    for file in sorted(_with_imports(name)):
        digest.update(file.encode() + b"\0" + (ROOM / file).read_bytes() + b"\0")
    return digest.hexdigest()


def to_json(certificate: Certificate) -> str:
    """Strict JSON, the same text for the same certificate."""
    document = {"schema": SCHEMA, **asdict(certificate)}
    return json.dumps(document, indent=1, sort_keys=True, allow_nan=False, default=list) + "\n"


def read_certificate(path: Path) -> Certificate:
    """Read a certificate; a :class:`FuseproofError` says what is wrong with the file."""
    try:
        with path.open("rb") as stream:
            content = stream.read(LARGEST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FuseproofError(f"the certificate {path} cannot be read: {reason}.", next_step=NEXT_STEP) from error
    try:
        if len(content) > LARGEST_FILE_BYTES:
            raise ValueError(f"it is larger than {LARGEST_FILE_BYTES >> 20} MiB")
        return from_json(content.decode("utf-8"))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        what = f"{type(error).__name__}: {error}" if isinstance(error, KeyError | RecursionError) else str(error)
        raise FuseproofError(f"{path} is no certificate: {what.rstrip('.')}.", next_step=NEXT_STEP) from error


def from_json(text: str) -> Certificate:
    """The certificate that ``text`` is; ValueError, TypeError or KeyError where it is none."""
    document = json.loads(text, parse_constant=_refuse_constant)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    keys = {site: tuple(_text(key) for key in found) for site, found in document["keys"].items()}
    place = document["place"]
    return Certificate(
        place=Place(dict(place["versions"]), {name: _text(value) for name, value in place["card"].items()}),
        sources={name: _text(value) for name, value in document["sources"].items()},
        keys=keys,
        launch_options=document["launch_options"],
        cases=tuple(document["cases"]),
        models=tuple(document["models"]),
        seed=int(document["seed"]),
        created=_text(document["created"]),
    )


def default_path(cache_folder: Path, place: Place) -> Path:
    """Where ``verify`` leaves the certificate of a card, and ``generate`` looks for it."""
    slug = re.sub(r"[^a-z0-9]+", "-", place.card["name"].lower()).strip("-")
    return cache_folder / "certificates" / f"{slug}.json"


def merged(earlier: Certificate, later: Certificate, failed: Iterable[str] = ()) -> Certificate:
    """What two certificates of one place vouch for together; nothing for sites that have ``failed`` since."""
    lost = set(failed)
    keys = {
        site: tuple(sorted({*earlier.keys.get(site, ()), *later.keys.get(site, ())}))
        for site in (*earlier.keys, *later.keys)
        if site not in lost
    }
    kept = [case for case in earlier.cases if case.get("site") not in {*lost, *(c.get("site") for c in later.cases)}]
    return Certificate(
        place=later.place,
        sources={**earlier.sources, **later.sources},
        keys=keys,
        launch_options={**earlier.launch_options, **later.launch_options},
        cases=(*kept, *later.cases),
        models=tuple(dict.fromkeys((*earlier.models, *later.models))),
        seed=later.seed,
        created=later.created,
    )


def _with_imports(name: str) -> frozenset[str]:
    """A file and, through it, every file of kernels/ that it imports."""
    found, waiting = {name}, [name]
    while waiting:
        tree = ast.parse((ROOM / waiting.pop()).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            for imported in _kernel_files(node):
                if imported not in found:
                    found.add(imported)
                    waiting.append(imported)
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


def _version(library: str) -> str | None:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def _card(place: Place) -> str:
    return f"{place.card['name']} ({place.card['capability']})" if place.card["capability"] else place.card["name"]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} stands where text was expected")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"it holds {name}, which is not JSON")
