"""From checked cases to a certificate file, and where that file lies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseproof.cli.fastpath_choices import certificates_folder
from fuseproof.errors import FuseproofError
from fuseproof.harness.atomic_files import write_text_atomically

if TYPE_CHECKING:
    import torch

    from fuseproof.fastpaths.certificates import Certificate
    from fuseproof.fastpaths.user_sites import UserSites
    from fuseproof.fastpaths.verification import Outcome


def certificate_of(
    outcomes: Sequence[Outcome],
    found: Mapping[str, frozenset[str]],
    own: UserSites | None,
    device: torch.device,
    seed: int,
    model: str | None,
) -> Certificate:
    """What the cases, and the keys ``found`` in whole requests, vouch for together."""
    from fuseproof.fastpaths.certificates import Certificate, place_here, source_hashes
    from fuseproof.fastpaths.verification import certified_keys

    keys = {site: set(texts) for site, texts in certified_keys(outcomes).items()}
    for site, texts in found.items():
        keys.setdefault(site, set()).update(texts)
    kernels = {outcome.operation for outcome in outcomes if outcome.keys}
    return Certificate(
        place=place_here(device),
        sources=source_hashes(_source_names(kernels, found, own), [own.path] if own is not None else []),
        keys={site: tuple(sorted(texts)) for site, texts in keys.items()},
        launch_options=_launch_options(kernels),
        cases=tuple(_case(outcome) for outcome in outcomes),
        models=(model,) if model is not None else (),
        seed=seed,
        created=datetime.now(UTC).date().isoformat(),
    )


def write_certificate(certificate: Certificate, output: str | None, device: torch.device) -> Path:
    """Write it to ``output``; or to the machine's own place, added to what stands there and still holds.

    The machine's own speaks of built-in sites alone: it must hold whether or not a file of one's own is given.
    """
    from fuseproof.fastpaths.certificates import merged, to_json

    if output is not None:
        path = Path(output).expanduser()
        write_text_atomically(path, to_json(certificate))
        return path
    path = own_path(device)
    built_in, earlier = _built_in(certificate), _holding(path, device)
    write_text_atomically(path, to_json(built_in if earlier is None else merged(earlier, built_in)))
    return path


def _built_in(certificate: Certificate) -> Certificate:
    """Without sites of one's own, which are those that no family has."""
    import importlib

    from fuseproof.fastpaths.families import FAMILIES

    sites = {site for module in FAMILIES.values() for site in importlib.import_module(module).SITES}
    return replace(
        certificate,
        keys={site: keys for site, keys in certificate.keys.items() if site in sites},
        sources={name: sha256 for name, sha256 in certificate.sources.items() if not name.startswith("own:")},
        cases=tuple(case for case in certificate.cases if case.get("site") in sites),
    )


def withdraw(failed: Iterable[str], device: torch.device) -> None:
    """Take sites that differ now out of the machine's own certificate."""
    from fuseproof.fastpaths.certificates import to_json

    path, lost = own_path(device), set(failed)
    earlier = _holding(path, device)
    if earlier is not None and lost & set(earlier.keys):
        kept = {site: keys for site, keys in earlier.keys.items() if site not in lost}
        write_text_atomically(path, to_json(replace(earlier, keys=kept)))


def own_path(device: torch.device) -> Path:
    """Where ``generate`` looks for the certificate of this machine's card."""
    from fuseproof.fastpaths.certificates import default_path, place_here

    return default_path(certificates_folder(), place_here(device))


def _holding(path: Path, device: torch.device) -> Certificate | None:
    """The certificate at ``path`` where it can be read and nothing that it rests on has changed."""
    from fuseproof.fastpaths.certificates import place_here, read_certificate, reject_reason

    if not path.is_file():
        return None
    try:
        certificate = read_certificate(path)
    except FuseproofError:
        return None
    return certificate if reject_reason(certificate, place_here(device)) is None else None


def _source_names(kernels: Iterable[str], found: Mapping[str, Any], own: UserSites | None) -> list[str]:
    """Kernel files; for what whole requests verified, the files of the sites too; and the file of one's own."""
    from fuseproof.fastpaths.certificates import ROOM

    names = [f"kernels/{kernel}.py" for kernel in kernels if (ROOM / "kernels" / f"{kernel}.py").is_file()]
    if found:
        names += [str(path.relative_to(ROOM)) for path in (ROOM / "sites").rglob("*.py")]
        names += [f"kernels/{path.name}" for path in (ROOM / "kernels").glob("*.py")]
    return sorted({*names, *([f"own:{own.path.name}"] if own is not None else [])})


def _launch_options(kernels: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """The options of every launch variant, which the kernels' own tables fix."""
    from fuseproof.fastpaths.families import kernel_module

    options: dict[str, list[dict[str, Any]]] = {}
    for name in sorted(kernels):
        try:
            cases = kernel_module(name).compile_cases()
        except (ImportError, AttributeError):  # a site of one's own has no table
            continue
        distinct = {repr(sorted(case.options.items())): dict(case.options) for case in cases}
        options[name] = [distinct[key] for key in sorted(distinct)]
    return options


def _case(outcome: Outcome) -> dict[str, Any]:
    return {
        "site": outcome.site,
        "kernel": outcome.operation,
        "workload": outcome.workload,
        "values": outcome.values,
        "shapes": outcome.shapes,
        "state": str(outcome.state),
        "reason": outcome.reason,
    }
