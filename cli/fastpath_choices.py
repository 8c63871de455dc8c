"""What ``generate`` decides about fast paths before loading, and what it says of them after: sites of one's own,
certificates, coverage.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseproof.errors import FuseproofError, InvalidMeasurementError

if TYPE_CHECKING:
    from fuseproof.cli.generate_options import GenerateOptions
    from fuseproof.fastpaths.certificates import Certificate
    from fuseproof.fastpaths.user_sites import UserSites

UNMET_STATES = ("declined", "rejected", "unreached")
"""States of a requested site in which nothing of it ran."""
NEXT_STEP = "`fuseproof fastpaths list` says what this machine can mount; without --require-fastpaths the run goes on."


@dataclass(frozen=True)
class ChosenCertificate:
    """The certificate that pre-seeds the gates, and why there is none where a file stood ready."""

    certificate: Certificate | None = None
    warning: str | None = None

    def keys(self) -> dict[str, frozenset[str]] | None:
        """What ``mount(certified=...)`` takes."""
        return self.certificate.trusted() if self.certificate is not None else None


def read_user_sites(options: GenerateOptions) -> UserSites | None:
    """The sites of ``--fastpaths-from``; its faults are usage errors, before any weight is read."""
    if options.fastpaths_from is None:
        return None
    from fuseproof.fastpaths.user_sites import load_user_sites

    return load_user_sites(options.fastpaths_from)


def choose_certificate(options: GenerateOptions, user_sites: UserSites | None) -> ChosenCertificate:
    """``auto`` takes the machine's own certificate where it holds; a file that was named must hold."""
    if not trusts_certificates(options):
        return ChosenCertificate()
    is_named = options.certificate != "auto"
    path = Path(options.certificate).expanduser() if is_named else _found_certificate(options.device)
    if path is None:
        return ChosenCertificate()
    from fuseproof.fastpaths.certificates import place_here, read_certificate, reject_reason
    from fuseproof.pipelines.devices import choose_device

    files = [user_sites.path] if user_sites is not None else []
    try:
        certificate = read_certificate(path)
        reason = reject_reason(certificate, place_here(choose_device(options.device)), files)
    except FuseproofError as error:
        if is_named:
            raise
        return ChosenCertificate(warning=f"no certificate was used: {error.message}")
    if reason is None:
        return ChosenCertificate(certificate)
    if is_named:
        raise FuseproofError(
            f"the certificate {path} does not hold here: {reason}.",
            next_step="Run `fuseproof fastpaths verify` on this machine, or drop --certificate.",
        )
    return ChosenCertificate(warning=f"the certificate {path} was not used: {reason}")


def trusts_certificates(options: GenerateOptions) -> bool:
    """Whether a certificate may stand for a first sight in this run."""
    is_off = options.certificate == "off" or options.effective_fastpaths == "off"
    return not is_off and options.gate == "enforce" and not options.verify_every_step


def unmet_text(fastpaths: Mapping[str, Any]) -> str | None:
    """The requested sites of which nothing ran, each with its reason; None where every one ran."""
    sites = fastpaths.get("sites") or {}
    unmet = [_site_text(name, site) for name, site in sites.items() if site.get("state") in UNMET_STATES]
    if not sites and fastpaths.get("requested") != "off":
        unmet = [fastpaths.get("reason") or "this model has none"]
    return "; ".join(unmet) or None


def refuse_unmet(fastpaths: Mapping[str, Any], states: tuple[str, ...] = UNMET_STATES) -> None:
    """Raise :class:`InvalidMeasurementError` (exit code 6) naming the requested sites in one of ``states``."""
    sites = fastpaths.get("sites") or {}
    told = {name: site for name, site in sites.items() if site.get("state") in states}
    unmet = unmet_text({**fastpaths, "sites": told}) if told or not sites else None
    if unmet is not None:
        raise InvalidMeasurementError(f"--require-fastpaths: {unmet}.", next_step=NEXT_STEP)


def lost_coverage(fastpaths: Mapping[str, Any], certificate: Certificate | None) -> str | None:
    """Which sites ran when the certificate was made, and do not now; None without a certificate, or where none did."""
    if certificate is None:
        return None
    sites = fastpaths.get("sites") or {}
    lost = [
        _site_text(name, sites[name])
        for name in certificate.keys
        if name in sites and sites[name].get("state") in UNMET_STATES
    ]
    if not lost:
        return None
    return f"fast paths cover less than the certificate of {certificate.created}: {'; '.join(lost)}"


def certificates_folder() -> Path:
    """Beside the embedded checkpoints, in the user's cache."""
    from fuseproof.pipelines.model_cache import cache_directory

    return cache_directory(os.environ)


def _found_certificate(device: str) -> Path | None:
    folder = certificates_folder() / "certificates"
    if not any(folder.glob("*.json")):  # torch is asked for the card only where there is something to find
        return None
    from fuseproof.fastpaths.certificates import default_path, place_here
    from fuseproof.pipelines.devices import choose_device

    path = default_path(certificates_folder(), place_here(choose_device(device)))
    return path if path.is_file() else None


def _site_text(name: str, site: Mapping[str, Any]) -> str:
    reason = f" ({site['reason']})" if site.get("reason") else ""
    return f"{name} {site.get('state')}{reason}"
