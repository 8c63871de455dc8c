"""``fuseproof fastpaths verify``: bits of fused and eager over real shapes and hard values, and the certificate."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseproof.cli import exit_codes
from fuseproof.cli.fastpaths_checks import (
    asks_for_interpreter,
    card,
    cases_of_models,
    load_own,
    replay_of,
)
from fuseproof.cli.fastpaths_names import check_site_names
from fuseproof.cli.fastpaths_output import check_output
from fuseproof.cli.fastpaths_rows import VerifyRows
from fuseproof.cli.option_fields import WholeNumber
from fuseproof.cli.options import json_option
from fuseproof.cli.output_names import check_file_name
from fuseproof.errors import UsageError

if TYPE_CHECKING:
    import torch

    from fuseproof.fastpaths.user_sites import UserSites
    from fuseproof.fastpaths.verification import Outcome

SCHEMA = "fuseproof.fastpaths-verify/1"


@click.command("verify")
@click.option(
    "--model",
    metavar="MODEL",
    help="A family, a published id, embedded:FAMILY or a model folder: its shapes, and on a card requests through the "
    "model itself, with every call checked. [default: the shapes of every family]",
)
@click.option("--site", "sites", multiple=True, metavar="NAME", help="Only this site or kernel; repeatable.")
@click.option("--from", "captured", metavar="FILE", help="Check the tensors that `capture` saved, and nothing else.")
@click.option(
    "--fastpaths-from", metavar="FILE", help="Python file with fast paths of your own, checked with the rest."
)
@click.option(
    "--output",
    metavar="FILE",
    help="Write the certificate here, sites of your own included. [default: the user's cache, where `generate` looks "
    "for it, built-in sites alone]",
)
@click.option("--seed", type=WholeNumber(0, 2**63 - 1), default=0, show_default=True, help="Seed of the values.")
@json_option()
def verify(
    model: str | None,
    sites: tuple[str, ...],
    captured: str | None,
    fastpaths_from: str | None,
    output: str | None,
    seed: int,
    as_json: bool,
) -> int:
    """Compare every fast path with the eager chain it replaces, bit for bit, and write a certificate.

    Shapes and strides are those of the models; values are ordinary ones, ties, subnormals, NaN and infinities, constant
    rows, and for pointwise kernels every finite bf16 number. On any mismatch no certificate is written. Needs a card;
    TRITON_INTERPRET=1 runs small cases on the CPU instead, which certifies nothing.

    Exit codes: 1 other bits; 2 nothing was compared (no card, a wrong flag).
    """
    is_interpreted = asks_for_interpreter()
    _refuse_useless(output, captured, sites, is_interpreted)
    if output is not None:
        check_output(Path(output).expanduser(), _inputs(fastpaths_from), _is_certificate, "certificate")
    if fastpaths_from is not None:
        _device(is_interpreted)  # asked here, for a file of one's own imports torch
    own = load_own(fastpaths_from)
    check_site_names(sites, own)
    device = _device(is_interpreted)
    before = {} if captured is not None or is_interpreted else _sources_before(own, output, device)
    rows = VerifyRows(is_interpreted=is_interpreted, speaks=not as_json)
    found: dict[str, frozenset[str]] = {}
    rejected: dict[str, str] = {}
    if captured is not None:
        rows.add(_replayed(captured, own, model, device, is_interpreted))
    else:
        _check(rows, model, own, sites, device, seed, is_interpreted)
        found, rejected = _requested(model, own, sites, fastpaths_from, is_interpreted)
    rows.end()
    has_failed = bool(rejected) or any(outcome.state == "differs" for outcome in rows.outcomes)
    path = None
    if captured is None and not is_interpreted:
        path = _certify(rows.outcomes, found, rejected, own, device, seed, output, model, before, has_failed=has_failed)
    document = _document(rows.outcomes, found, rejected, path, is_interpreted=is_interpreted)
    if as_json:
        click.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        for line in _closing_lines(document):
            click.echo(line)
    return exit_codes.FAILED if has_failed else exit_codes.DONE


def _inputs(fastpaths_from: str | None) -> dict[str, list[Path | None]]:
    return {"--fastpaths-from": [None if fastpaths_from is None else Path(fastpaths_from).expanduser()]}


def _is_certificate(path: Path) -> bool:
    from fuseproof.fastpaths.certificates import is_certificate

    return is_certificate(path)


def _sources_before(own: UserSites | None, output: str | None, device: torch.device) -> dict[str, str]:
    """What the certificate will rest on, as it is now; and the place that it will have is looked at before the work."""
    from fuseproof.cli.fastpaths_certificate import own_path, sources_before
    from fuseproof.cli.output_names import check_file

    if output is None:
        check_file(own_path(device), "the certificate")
    return sources_before(own)


def _refuse_useless(output: str | None, captured: str | None, sites: Sequence[str], is_interpreted: bool) -> None:
    if output is not None and is_interpreted:
        raise UsageError(
            "--output asks for a certificate, and TRITON_INTERPRET=1 for the CPU interpreter, which certifies nothing.",
            next_step="Drop one of them.",
        )
    if captured is not None and (output is not None or sites):
        raise UsageError(
            "--from replays one captured call, so --output and --site have no effect.", next_step="Drop them."
        )
    if output is not None:
        check_file_name(Path(output).expanduser(), "--output")


def _device(is_interpreted: bool) -> torch.device:
    if not is_interpreted:
        return card("verify")
    import torch

    return torch.device("cpu")


def _check(
    rows: VerifyRows,
    model: str | None,
    own: UserSites | None,
    sites: Sequence[str],
    device: torch.device,
    seed: int,
    is_interpreted: bool,
) -> None:
    """Run every case; ``rows`` hears of each outcome at once."""
    from fuseproof.fastpaths.interpreter_rounding import exact_rounding
    from fuseproof.fastpaths.verification import check
    from fuseproof.pipelines.families import FAMILIES

    cases = cases_of_models((model,) if model else tuple(FAMILIES), own, sites, device, is_interpreted=is_interpreted)
    click.echo(f"fuseproof: {len(cases)} cases on {device}", err=True)
    rows.expect(len(cases))
    with exact_rounding() if is_interpreted else nullcontext():
        for case in cases:
            rows.add(check(case, device, seed))


def _replayed(
    captured: str, own: UserSites | None, model: str | None, device: torch.device, is_interpreted: bool
) -> Outcome:
    from fuseproof.fastpaths.interpreter_rounding import exact_rounding
    from fuseproof.fastpaths.verification import check_call

    replay = replay_of(captured, own, model)
    with exact_rounding() if is_interpreted else nullcontext():
        outcome: Outcome = check_call(
            replay.call, device, replay.captured.filler(), "captured", "captured", replay.module, is_replay=True
        )
    return outcome


def _requested(
    model: str | None, own: UserSites | None, sites: Sequence[str], fastpaths_from: str | None, is_interpreted: bool
) -> tuple[dict[str, frozenset[str]], dict[str, str]]:
    """Keys that whole requests verified, and sites that they rejected; nothing without a model."""
    if model is None or is_interpreted or sites:
        return {}, {}
    from fuseproof.cli.fastpaths_requests import checked_requests

    return checked_requests(model, fastpaths_from)


def _certify(
    outcomes: Sequence[Outcome],
    found: Mapping[str, frozenset[str]],
    rejected: Mapping[str, str],
    own: UserSites | None,
    device: torch.device,
    seed: int,
    output: str | None,
    model: str | None,
    before: Mapping[str, str],
    *,
    has_failed: bool,
) -> Path | None:
    from fuseproof.cli.fastpaths_certificate import certificate_of, withdraw, write_certificate

    if has_failed:
        failed = {outcome.site for outcome in outcomes if outcome.state == "differs"} | set(rejected)
        withdraw(failed, device)
        return None
    certificate = certificate_of(outcomes, found, own, device, seed, model, before)
    return write_certificate(certificate, output, device)


def _document(
    outcomes: Sequence[Outcome],
    found: Mapping[str, frozenset[str]],
    rejected: Mapping[str, str],
    path: Path | None,
    *,
    is_interpreted: bool,
) -> dict[str, Any]:
    from fuseproof.harness.machine.redaction import redact

    return {
        "schema": SCHEMA,
        "interpreted": is_interpreted,
        "certificate": None if path is None else redact(str(path)),
        "cases": [
            {
                "site": outcome.site,
                "kernel": outcome.operation,
                "workload": outcome.workload,
                "values": outcome.values,
                "shapes": outcome.shapes,
                "state": str(outcome.state),
                "reason": outcome.reason,
                "keys": sorted(outcome.keys),
                "milliseconds": round(outcome.milliseconds, 3),
            }
            for outcome in outcomes
        ],
        "requests": {
            "verified_keys": {site: len(keys) for site, keys in found.items()},
            "rejected": dict(rejected),
        },
        "summary": {
            state: sum(outcome.state == state for outcome in outcomes)
            for state in ("equal", "differs", "declines", "undecided")
        },
    }


def _closing_lines(document: Mapping[str, Any]) -> Iterator[str]:
    for site, number in document["requests"]["verified_keys"].items():
        yield f"  {site}: {number} key(s) verified in requests"
    for site, reason in document["requests"]["rejected"].items():
        yield f"  {site}: rejected in requests, {reason}"
    summary = ", ".join(f"{number} {state}" for state, number in document["summary"].items() if number)
    yield summary or "no case"
    if document["certificate"]:
        yield f"certificate {document['certificate']}"
    elif document["summary"]["differs"] or document["requests"]["rejected"]:
        yield "no certificate: it would vouch for bits that differ"
