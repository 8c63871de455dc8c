"""``fastpaths bench`` as a guard: a stored result of the same card and versions, refused otherwise; the exit code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseproof.cli import exit_codes
from fuseproof.cli.fastpaths_bench_again import measured_afresh
from fuseproof.cli.output_names import check_distinct, check_file
from fuseproof.errors import FuseproofError, UsageError

if TYPE_CHECKING:
    from fuseproof.harness.kernel_times.guard import Judged
    from fuseproof.harness.kernel_times.record import Record

SAVE_FLAG, BASELINE_FLAG = "--save-baseline", "--baseline"


def baseline_for(path: str, head: Mapping[str, Any]) -> Record:
    """The stored result, refused (:class:`UsageError`) where it is of another card, driver, library or method."""
    from fuseproof.harness.kernel_times.record import differences, read_record

    record = read_record(Path(path).expanduser())
    found = differences(record.model_dump(by_alias=True), head)
    if found:
        raise UsageError(
            f"{BASELINE_FLAG} {path} was not measured as this run would be: {'; '.join(found)}.",
            next_step=f"Measure a baseline here with {SAVE_FLAG} FILE, on the commit to compare with.",
        )
    return record


def judged_against(baseline: Record, document: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[Judged]:
    """Every row against ``baseline``; those that look slower are measured once more before they are called so.

    ``wanted`` is the same choice of calls, for the fresh process of the second look.
    """
    from fuseproof.harness.kernel_times.guard import judge, needing_second_look
    from fuseproof.harness.kernel_times.record import differences

    now = _record(document)
    again = needing_second_look(judge(baseline, now))
    if not again:
        return judge(baseline, now, {})
    told = f"{len(again)} rows look slower and are measured once more, in a process of their own"
    click.echo(f"fuseproof: {told}", err=True)
    give_back_memory()
    found = measured_afresh({**wanted, "selection": document["selection"]}, again)
    second = _record(found)
    if others := differences(document, found):
        raise FuseproofError(
            f"the second look was measured otherwise than the first: {'; '.join(others)}.",
            next_step="Run the same command again.",
        )
    return judge(baseline, now, second.by_key())


def give_back_memory() -> None:
    """Leave the card's memory to another process, as far as nothing here holds it."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _record(document: Mapping[str, Any]) -> Record:
    """This run's own document, held to what a stored one must be."""
    from fuseproof.harness.kernel_times.record import from_document

    try:
        return from_document(document)
    except ValueError as error:
        raise FuseproofError(
            f"these times cannot stand in a baseline: {str(error).rstrip('.')}.",
            next_step="Choose fewer calls with --model, --site or --shape.",
        ) from error


def guard_code(judged: Sequence[Judged]) -> int:
    """1 for other bits, 6 for rows that are gone, 3 for slower ones."""
    from fuseproof.harness.kernel_times.guard import Standing

    standings = {one.standing for one in judged}
    codes = {
        Standing.DIFFERS: exit_codes.FAILED,
        Standing.LOST: exit_codes.INVALID,
        Standing.SLOWER: exit_codes.SLOWER,
    }
    return exit_codes.first_of(*(code for standing, code in codes.items() if standing in standings))


def guard_lines(judged: Sequence[Judged], path: str) -> Iterator[str]:
    """What the user reads."""
    from fuseproof.harness.kernel_times.text import lines_of

    return lines_of(judged, path)


def guard_document(judged: Sequence[Judged], path: str) -> dict[str, Any]:
    """The JSON document's ``guard``."""
    from fuseproof.harness.kernel_times.text import to_document
    from fuseproof.harness.machine.redaction import redact

    return to_document(judged, redact(path))


def check_save_path(path: str, baseline: str | None, others: Mapping[str, str | None]) -> None:
    """Whether a result may be written to ``path``: refused before anything is measured."""
    from fuseproof.harness.kernel_times.record import is_record

    target = Path(path).expanduser()
    check_file(target, SAVE_FLAG)
    inputs = {BASELINE_FLAG: baseline, **others}
    check_distinct(
        target, SAVE_FLAG, {flag: [None if name is None else Path(name).expanduser()] for flag, name in inputs.items()}
    )
    if target.exists() and target.stat().st_size and not is_record(target):
        raise UsageError(
            f"{SAVE_FLAG} {target} exists and holds no times of kernels, so it is not replaced.",
            next_step="Choose another file name, or remove that file.",
        )


def save(path: str, document: Mapping[str, Any]) -> str | None:
    """Write the rows to ``path``, whole or not at all; why not, where bits differ: a baseline has every time."""
    from fuseproof.harness.atomic_files import write_text_atomically

    red = [call for call in document["calls"] if call["bits"] == "differs"]
    if red:
        names = ", ".join(dict.fromkeys(str(call["kernel"]) for call in red))
        return f"{SAVE_FLAG} {path} was not written: the bits of {names} are not eager's."
    stored = {name: value for name, value in document.items() if name not in ("guard", "counters")}
    _record(stored)
    write_text_atomically(Path(path).expanduser(), json.dumps(stored, indent=1, allow_nan=False) + "\n")
    return None
