"""``fastpaths bench --ncu``: hardware counters of a kernel and of its eager chain, read in a process of their own."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseproof.cli.fastpaths_bench_guard import give_back_memory
from fuseproof.cli.output_names import check_file_name, check_writable, free_path
from fuseproof.errors import UsageError
from fuseproof.harness.escape import visible

if TYPE_CHECKING:
    from fuseproof.harness.counters.launches import Launch

PROGRAM = "fuseproof.cli.fastpaths_bench_launches"
MARK = "spin_kernel"
"""In the name of the kernel that begins each counted range."""
ENDING = ".ncu-rep"
SECONDS_FOR_NCU = 1800.0
CONDITIONS = "clocks as the card has them; caches emptied before every pass; one launch of each kernel"
Key = tuple[str, str, str, str]


def report_path(report: str | None, name: str) -> Path:
    """Where the report goes: refused (:class:`UsageError`) before anything is measured where it cannot."""
    if report is None:
        check_writable(Path.cwd(), 0, "--ncu-report in")
        return free_path(Path.cwd(), f"{name}{ENDING}")
    path = Path(report).expanduser()
    check_file_name(path, "--ncu-report")
    if path.suffix != ENDING:
        raise UsageError(
            f"--ncu-report {path} does not end in {ENDING}.", next_step=f"Use --ncu-report {path.stem}{ENDING}."
        )
    check_writable(path.parent, 0, "--ncu-report in")
    if path.exists():
        raise UsageError(f"--ncu-report {path} exists and is not replaced.", next_step="Choose another file name.")
    return path


def counters_of(
    name: str, calls: Sequence[Mapping[str, Any]], wanted: Mapping[str, Any], report: Path
) -> dict[str, Any]:
    """The document's ``counters``: of every row called ``name`` whose bits are eager's; or ``reason`` why not."""
    from fuseproof.harness.counters.ncu import NoCounters
    from fuseproof.harness.machine.redaction import redact

    rows = [call for call in calls if name in (call["site"], call["kernel"])]
    keys = [_key(call) for call in rows if call["bits"] == "equal"]
    nothing: dict[str, Any] = {"name": name, "tool": None, "report": None, "conditions": None, "calls": []}
    try:
        if not keys:
            why = "no row of it was measured" if not rows else "no row of it has eager's bits"
            raise NoCounters(f"There are no counters of {name!r}: {why}.", "Choose another NAME, --site or --model.")
        return {**nothing, **_read(keys, wanted, report), "reason": None, "next_step": None}
    except NoCounters as error:
        reason, next_step = error.reason, error.next_step
    except (OSError, ValueError) as error:  # whatever fails here, times were measured and must be told
        reason = f"what was counted cannot be used: {str(error).partition(chr(10))[0].rstrip('.')}."
        next_step = "Run the same command again; without --ncu it gives times alone."
    kept = redact(str(report)) if report.is_file() else None
    return {**nothing, "report": kept, "reason": reason, "next_step": next_step}


def _read(keys: Sequence[Key], wanted: Mapping[str, Any], report: Path) -> dict[str, Any]:
    from fuseproof.harness.counters import ncu
    from fuseproof.harness.machine.redaction import redact

    program = ncu.find_ncu()
    click.echo(f"fuseproof: {len(keys)} calls under {program}, in a process of its own", err=True)
    give_back_memory()
    with tempfile.TemporaryDirectory(prefix="fuseproof-ncu-") as folder:
        order, result = Path(folder, "order.json"), Path(folder, "launched.json")
        order.write_text(json.dumps({**wanted, "keys": keys}), encoding="utf-8")
        command = [sys.executable, "-m", PROGRAM, str(order), str(result)]
        ncu.run(ncu.profile_command(program, report, command), SECONDS_FOR_NCU)
        text = ncu.run(ncu.export_command(program, report), SECONDS_FOR_NCU)
        launched = [tuple(key) for key in json.loads(result.read_text(encoding="utf-8"))] if result.is_file() else []
    return {
        "tool": f"ncu {ncu.version_of(program, SECONDS_FOR_NCU)}",
        "report": redact(str(report)),
        "conditions": CONDITIONS,
        "calls": calls_counted(text, launched),
    }


def calls_counted(text: str, launched: Sequence[Key]) -> list[dict[str, Any]]:
    """Nsight Compute's raw page as one entry a call; :class:`NoCounters` where it does not hold all that was launched.

    ``launched`` are the calls in order, each with a marked range for its eager chain and one for its fused form.
    """
    from fuseproof.harness.counters.chains import markdown_table, summed, to_document
    from fuseproof.harness.counters.launches import parse_raw_page, split_at
    from fuseproof.harness.counters.ncu import NoCounters

    try:
        ranges: list[list[Launch]] = split_at(parse_raw_page(text), MARK)
        if not launched or len(ranges) != 2 * len(launched):
            raise ValueError(f"it has {len(ranges)} marked ranges, and {2 * len(launched)} were launched")
        chains = [summed(one) for one in ranges]
    except ValueError as error:
        raise NoCounters(
            f"Nsight Compute's report cannot be used: {str(error).rstrip('.')}.", "`ncu-ui` opens it."
        ) from None
    return [
        {
            **dict(zip(("site", "kernel", "workload", "shapes"), key, strict=True)),
            "eager": to_document(eager),
            "fused": to_document(fused),
            "time_ratio": eager.duration_us / fused.duration_us,
            "traffic_saved": _traffic_saved(eager, fused),
            "markdown": "\n".join(markdown_table(eager, fused)),
        }
        for key, eager, fused in zip(launched, chains[::2], chains[1::2], strict=True)
    ]


def counter_lines(counters: Mapping[str, Any]) -> Iterator[str]:
    """A Markdown table a call, with what it was read under; or the sentence why there is none, escaped."""
    return map(visible, _counter_lines(counters))


def _counter_lines(counters: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    if counters["reason"] is not None:
        kept = f" Nsight Compute's report is kept: {counters['report']}." if counters["report"] else ""
        yield f"no hardware counters: {counters['reason']} {counters['next_step']}{kept}"
        return
    yield f"{counters['tool']}; {counters['conditions']}; report {counters['report']}"
    for call in counters["calls"]:
        yield ""
        yield f"{call['kernel']}, {call['workload']}, {call['shapes']}"
        yield ""
        yield from call["markdown"].splitlines()
        saved = call["traffic_saved"]
        yield ""
        yield f"{call['time_ratio']:.2f}x eager" + (
            "" if saved is None else f", {saved:.2%} less measured DRAM traffic"
        )


def _traffic_saved(eager: Any, fused: Any) -> float | None:
    sums = [
        None
        if None in (chain.dram_read_bytes, chain.dram_written_bytes)
        else chain.dram_read_bytes + chain.dram_written_bytes
        for chain in (eager, fused)
    ]
    return None if None in sums or not sums[0] else 1 - sums[1] / sums[0]


def _key(call: Mapping[str, Any]) -> Key:
    return call["site"], call["kernel"], call["workload"], call["shapes"]
