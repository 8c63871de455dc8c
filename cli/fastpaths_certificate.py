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
    """Write it to ``output``; or to the machine's own place, added to what stands there and still holds."""
    from fuseproof.fastpaths.certificates import merged, to_json

    path = own_path(device) if output is None else Path(output).expanduser()
    earlier = _holding(path, device) if output is None else None
    write_text_atomically(path, to_json(certificate if earlier is None else merged(earlier, certificate)))
    return path


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
