"""What a reader of an imported campaign should know of its files, as sentences for the report's Limitations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fuseproof.harness.importing.manifest import Manifest
from fuseproof.harness.importing.placing import ImportedRun, PlacedBlock, overlapping
from fuseproof.harness.importing.records import WrittenSlot
from fuseproof.harness.number_format import count

MOST_NAMES = 4


def import_caveats(
    blocks: Sequence[PlacedBlock],
    written: Sequence[WrittenSlot],
    ignored: Sequence[str],
    manifest: Manifest,
    cells: Mapping[str, str],
) -> Iterator[str]:
    """Everything that the files leave open or contradict; each entry is a sentence without its full stop."""
    runs = [slot.run for slot in written if slot.run is not None]
    yield from _orders(blocks)
    yield from _overlaps(runs)
    yield from _names(blocks, {text: name for text, name in cells.items() if manifest.cell_of(text) is None})
    yield from _logs(written)
    yield from _outputs(written)
    yield from _commits(runs, manifest)
    if ignored:
        yield f"{count(len(ignored), 'file')} beside the dumps not imported: {listed(ignored)}"


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{', '.join(names[:MOST_NAMES])}{more}"


def _orders(blocks: Sequence[PlacedBlock]) -> Iterator[str]:
    given = [block for block in blocks if block.label]
    unknown = [block for block in given if block.order == "file names" and not block.missing and not block.problem]
    if unknown:
        yield (
            f"in {len(unknown)} of {count(len(given), 'block')} nothing shows the order in which the runs ran: the "
            "dumps' times are missing or alike, and the labels' order is taken"
        )
    yield from (f"block {block.label} of {block.cell}: {note}" for block in given for note in block.notes)


def _overlaps(runs: Sequence[ImportedRun]) -> Iterator[str]:
    pairs = [f"{before.dump.shown} and {after.dump.shown}" for before, after in overlapping(runs)]
    if pairs:
        yield f"by the times in their dumps these runs worked at the same time: {listed(pairs)}"


def _names(blocks: Sequence[PlacedBlock], cells: Mapping[str, str]) -> Iterator[str]:
    renamed = [f"{text!r} is {name}" for text, name in cells.items() if text != name]
    if renamed:
        yield f"workloads are named anew: {listed(renamed)}"
    moved = [
        f"{block.label} of {block.cell} is block {block.number}"
        for block in blocks
        if block.label and not block.label.endswith(str(block.number))
    ]
    if moved:
        yield f"blocks are counted anew: {listed(moved)}"


def _logs(written: Sequence[WrittenSlot]) -> Iterator[str]:
    strangers = [
        f"{_log_file(slot)} ({slot.run.dump.shown})"
        for slot in written
        if slot.run is not None and slot.log is not None and not slot.log.is_of(slot.run.read)
    ]
    if strangers:
        yield f"these logs state other times than their dumps, and no time is taken from them: {listed(strangers)}"
    from_logs = [
        slot
        for slot in written
        if slot.run is not None and slot.record.times.client_s is not None and slot.run.read.client_ms is None
    ]
    if from_logs:
        warm = any(slot.log is not None and slot.log.warmed_up_s is not None for slot in from_logs)
        more = "; in sglang's request warm-up mode they include the warm-up" if warm else ""
        yield f"client seconds of {count(len(from_logs), 'run')} are from logs, in steps of 0.01 s{more}"


def _outputs(written: Sequence[WrittenSlot]) -> Iterator[str]:
    unseen = []
    for slot in written:
        if slot.run is None:
            continue
        given = len(slot.run.beside.outputs)
        saved = tuple(dict.fromkeys(slot.log.saved)) if slot.log is not None else ()
        named = (*slot.run.beside.stated_but_missing, *(saved if len(saved) > given else ()))
        unseen += [f"{name} ({slot.run.dump.shown})" for name in dict.fromkeys(named)]
    if unseen:
        yield f"outputs that dumps or logs name were not given: {listed(unseen)}"


def _commits(runs: Sequence[ImportedRun], manifest: Manifest) -> Iterator[str]:
    for letter, word, stated in (
        ("A", "baseline", manifest.arms.baseline.commit),
        ("B", "candidate", manifest.arms.candidate.commit),
    ):
        others = [
            run.dump.shown
            for run in runs
            if stated
            and run.label.arm == letter
            and run.read.commit_hash
            and not _may_be_one_commit(stated, run.read.commit_hash)
        ]
        if others:
            yield f"the manifest says that the {word} is commit {stated}; other commits stand in {listed(others)}"


def _may_be_one_commit(one: str | None, other: str | None) -> bool:
    return not one or not other or one.startswith(other) or other.startswith(one)


def _log_file(slot: WrittenSlot) -> str:
    return next((file.path for file in slot.files if file.kind == "log"), "its log")
