"""What ``fastpaths verify`` vouches for: keys that agreed bit for bit, and all that this could depend on.

A certificate holds where versions, card and every source file that decides a certified site are the same; there a gate
may skip its first sight of these keys (state ``certified``). It is plain JSON; reading one never runs code, nor opens a
file that it names.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fuseproof.errors import FuseproofError
from fuseproof.fastpaths.certificate_sources import OWN, Sources
from fuseproof.fastpaths.regular_files import read_regular

SCHEMA = "fuseproof.fastpath-certificate/1"
LIBRARIES = ("torch", "triton", "diffusers")
LONGEST_PLACE_SHOWN = 60
CARD_FIELDS = ("name", "capability")
LARGEST_FILE_BYTES = 64 * 1024 * 1024
NEXT_STEP = "Run `fuseproof fastpaths verify` on this machine."


@dataclass(frozen=True)
class Place:
    """Where bits were compared, or are to be trusted: library versions, and the card's name and compute capability."""

    versions: Mapping[str, str | None]
    card: Mapping[str, str]


@dataclass(frozen=True)
class Certificate:
    """``keys`` by site, as ``repr`` of a gate's key; ``sources`` maps names (:mod:`certificate_sources`) to SHA-256."""

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


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _CardInFile(_Strict):
    name: str = Field(min_length=1)
    capability: str


class _PlaceInFile(_Strict):
    versions: dict[str, str | None]
    card: _CardInFile


class CertificateFile(_Strict):
    """What a certificate's JSON must look like: the one place where it is judged."""

    schema_: str = Field(alias="schema")
    place: _PlaceInFile
    sources: dict[str, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]]
    keys: dict[str, list[str]]
    launch_options: dict[str, list[dict[str, Any]]]
    cases: list[dict[str, str | None]]
    models: list[str]
    seed: int = Field(ge=0, lt=2**63)
    created: str = Field(pattern="^([0-9]{4}-[0-9]{2}-[0-9]{2})?$")


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
    """Which version, card or source is missing from the certificate or differs; None where it holds.

    What must be there follows from the certified sites (:mod:`certificate_sources`), not from what the file lists.
    """
    seen = certificate.place.versions
    for name in {**here.versions, **seen}:
        if name not in seen:
            return f"it does not say which {name} it was made with"
        if here.versions.get(name) != seen[name]:
            return f"it was made with {name} {seen[name]}, and {here.versions.get(name)} is installed"
    if any(certificate.place.card.get(name) != here.card[name] for name in CARD_FIELDS):
        return f"it was made on {_card(certificate.place)}, and this is {_card(here)}"
    current = Sources(user_files)
    for site in certificate.keys:
        try:
            reason = _source_reason(site, current.of_site(site), certificate.sources)
        except LookupError as error:
            reason = str(error.args[0])
        except OSError as error:
            reason = f"a source of {site} cannot be read: {error.strerror or error}"
        if reason is not None:
            return reason
    return None


def to_json(certificate: Certificate) -> str:
    """Strict JSON, the same text for the same certificate."""
    document = {"schema": SCHEMA, **asdict(certificate)}
    return json.dumps(document, indent=1, sort_keys=True, allow_nan=False, default=list) + "\n"


def read_certificate(path: Path) -> Certificate:
    """Read a certificate; a :class:`FuseproofError` says what is wrong with the file."""
    try:
        content = read_regular(path, LARGEST_FILE_BYTES)
    except ValueError as error:
        raise FuseproofError(f"the certificate {path} cannot be read: {error}.", next_step=NEXT_STEP) from error
    try:
        return from_json(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FuseproofError(f"{path} is no certificate: {str(error).rstrip('.')}.", next_step=NEXT_STEP) from error


def is_certificate(path: Path) -> bool:
    """Whether a certificate of ours stands at ``path``, one that does not hold or is of an older form included."""
    try:
        document = json.loads(read_regular(path, LARGEST_FILE_BYTES))
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and str(document.get("schema")).startswith(SCHEMA.rpartition("/")[0])


def from_json(text: str) -> Certificate:
    """The certificate that ``text`` is; a ValueError, one line, where it is none, a RecursionError where it is deep."""
    document = json.loads(text, parse_constant=_refuse_constant)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    try:
        read = CertificateFile.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])).encode("unicode_escape").decode()
        raise ValueError(f"{where[:LONGEST_PLACE_SHOWN]}: {first['msg']}") from None
    return Certificate(
        place=Place(read.place.versions, read.place.card.model_dump()),
        sources=read.sources,
        keys={site: tuple(keys) for site, keys in read.keys.items()},
        launch_options=read.launch_options,
        cases=tuple(read.cases),
        models=tuple(read.models),
        seed=read.seed,
        created=read.created,
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


def _source_reason(site: str, current: Mapping[str, str], seen: Mapping[str, str]) -> str | None:
    """Why the sources that decide ``site`` are not those that the certificate saw, or None."""
    for name, sha256 in current.items():
        if name not in seen:
            return f"it has no SHA-256 of {name}, which decides {site}"
        if seen[name] != sha256:
            return f"{name} has changed since (SHA-256 {seen[name][:12]} then, {sha256[:12]} now)"
    if any(name.startswith(OWN) for name in current):
        for name in seen:
            if name.startswith(OWN) and name not in current:
                return f"{name} was loaded when {site} was verified, and is not here"
    return None


def _version(library: str) -> str | None:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def _card(place: Place) -> str:
    return f"{place.card['name']} ({place.card['capability']})" if place.card["capability"] else place.card["name"]


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"it holds {name}, which is not JSON")
