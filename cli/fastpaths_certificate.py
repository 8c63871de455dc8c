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

    from fuseproof.fastpaths.certificate_sources import Sources
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
    sources_before: Mapping[str, str] | None = None,
) -> Certificate:
    """What the cases, and the keys ``found`` in whole requests, vouch for together.

    ``sources_before`` are the sources as they were when checking began: a file that was written since was not checked.
    """
    from fuseproof.fastpaths.certificates import Certificate, place_here
    from fuseproof.fastpaths.verification import certified_keys

    keys = {site: set(texts) for site, texts in certified_keys(outcomes).items()}
    for site, texts in found.items():
        keys.setdefault(site, set()).update(texts)
    keys = {site: texts for site, texts in keys.items() if texts and site not in _approximate_sites()}
    kernels = {outcome.operation for outcome in outcomes if outcome.keys}
    sources = sources_now(own).of_sites(keys)
    _refuse_changed(sources_before or {}, sources)
    return Certificate(
        place=place_here(device),
        sources=sources,
        keys={site: tuple(sorted(texts)) for site, texts in keys.items()},
        launch_options=_launch_options(kernels),
        cases=tuple(_case(outcome) for outcome in outcomes),
        models=(model,) if model is not None else (),
        seed=seed,
        created=datetime.now(UTC).date().isoformat(),
    )


def sources_now(own: UserSites | None) -> Sources:
    """The sources of built-in sites and of one's own, read when they are asked for."""
    from fuseproof.fastpaths.certificate_sources import Sources

    return Sources([own.path] if own is not None else [])


def sources_before(own: UserSites | None) -> dict[str, str]:
    """What every site that may be certified rests on, read before anything is checked."""
    names = [*_built_in_sites(), *(site.name for site in (own.sites if own is not None else ()))]
    return sources_now(own).of_sites(names)


def _refuse_changed(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    for name, sha256 in now.items():
        if before.get(name, sha256) != sha256:
            raise FuseproofError(
                f"{name} was written to while it was checked, so nothing is certified.",
                next_step="Run `fuseproof fastpaths verify` again.",
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
    sites = set(_built_in_sites())
    keys = {site: keys for site, keys in certificate.keys.items() if site in sites}
    return replace(
        certificate,
        keys=keys,
        sources={name: certificate.sources[name] for name in sources_now(None).of_sites(keys)},
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


def _built_in_sites() -> list[str]:
    import importlib

    from fuseproof.fastpaths.families import FAMILIES

    return [site for module in FAMILIES.values() for site in importlib.import_module(module).SITES]


def _approximate_sites() -> set[str]:
    """Sites that no certificate can vouch for, whatever one of their kernels agrees with."""
    import importlib

    from fuseproof.fastpaths.families import FAMILIES
    from fuseproof.fastpaths.tiers import approximate_sites

    return {site for module in FAMILIES.values() for site in approximate_sites(importlib.import_module(module))}


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
