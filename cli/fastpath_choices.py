"""What ``generate`` decides about fast paths before loading, and what it says of them after: sites of one's own,
certificates, coverage.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseproof.cli.generate_summary import sites_text
from fuseproof.errors import FuseproofError, InvalidMeasurementError
from fuseproof.pipelines.fastpath_needs import NOT_NEEDED

if TYPE_CHECKING:
    from fuseproof.cli.generate_options import GenerateOptions
    from fuseproof.fastpaths.certificates import Certificate
    from fuseproof.fastpaths.user_sites import UserSites

MET_STATES = frozenset({"fused", "certified", "approximate", "replaced", "off"})
"""States of a site that ran as it was asked to, or that nobody asked for.

In every other one, nothing of it ran, or what ran was not held to eager's bits (``observed``, ``unchecked``).
"""
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
    """The requested sites that did not run as asked, each with its reason; None where every one did.

    ``auto`` asks for what has work in the request: a site that is ``not needed`` there is met. One named must run.
    """
    requested, sites = fastpaths.get("requested"), fastpaths.get("sites") or {}
    if requested == "off":
        return "no fast path was mounted"
    if not sites:
        return fastpaths.get("reason") or "this model has none"
    met = MET_STATES | ({NOT_NEEDED} if requested == "auto" else set())
    return sites_text({name: site for name, site in sites.items() if site.get("state") not in met})


def refuse_unmet_at_once(fastpaths: Mapping[str, Any]) -> None:
    """Before anything runs: raise :class:`InvalidMeasurementError` (exit code 6) where a requested site declines, or
    where the gate does not hold what runs to eager's bits.
    """
    sites, gate = fastpaths.get("sites") or {}, fastpaths.get("gate", "enforce")
    declined = sites_text({name: site for name, site in sites.items() if site.get("state") == "declined"})
    unmet = declined if sites and fastpaths.get("requested") != "off" else unmet_text(fastpaths)
    if unmet is None and gate != "enforce":
        unmet = f"nothing that runs under --gate {gate} is held to eager's bits"
    if unmet is not None:
        raise InvalidMeasurementError(f"--require-fastpaths: {unmet}.", next_step=NEXT_STEP)


def has_lost_fastpaths(options: GenerateOptions, backend: str) -> bool:
    """Whether a fallback to diffusers, whose fast paths are off unless named, has taken them away."""
    return backend == "diffusers" and options.fastpaths is None


def refuse_fallback(options: GenerateOptions, backend: str) -> None:
    """Raise :class:`InvalidMeasurementError` where the run fell back to diffusers and a flag needs fast paths."""
    needs = {
        "--require-fastpaths": options.require_fastpaths,
        "--verify-every-step": options.verify_every_step,
        "--fastpaths-from": options.fastpaths_from is not None,
        "--certificate FILE": options.certificate not in ("auto", "off"),
        f"--gate {options.gate}": options.gate != "enforce",
    }
    flag = next((name for name, is_given in needs.items() if is_given), None)
    if flag is not None and options.backend != "diffusers" and has_lost_fastpaths(options, backend):
        raise InvalidMeasurementError(
            f"the run fell back to diffusers, whose fast paths are off unless named, and {flag} needs them.",
            next_step=f"Add --fastpaths auto, or drop {flag}.",
        )


def lost_coverage(fastpaths: Mapping[str, Any], certificate: Certificate | None) -> str | None:
    """Which sites ran when the certificate was made, and do not now; None without a certificate, or where none did."""
    if certificate is None:
        return None
    sites = fastpaths.get("sites") or {}
    met = MET_STATES | {NOT_NEEDED}
    lost = {name: sites[name] for name in certificate.keys if name in sites and sites[name].get("state") not in met}
    if not lost:
        return None
    return f"fast paths cover less than the certificate of {certificate.created}: {sites_text(lost)}"


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
    return path if os.path.lexists(path) else None
