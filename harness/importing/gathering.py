"""Find the runs to import: by the names of files below the sources, or by the slots of a manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.analysis.soundness import refuse_unsound_dump
from fuseproof.harness.importing.files import (
    DUMP_SUFFIX,
    Companions,
    Neighbours,
    SourceFile,
    below,
    check_log,
    check_plain,
    companions,
    named_file,
    source_files,
)
from fuseproof.harness.importing.labels import Label, Pattern, arm_of, fitting_pattern, parse_pattern, refuse_unnumbered
from fuseproof.harness.importing.manifest import Manifest, ManifestSlot
from fuseproof.harness.importing.placing import ImportedRun
from fuseproof.harness.perf.dump import PerfDump, read_perf_dump

MOST_IGNORED = 1000
MOST_NAMED = 3


@dataclass(frozen=True)
class Gathered:
    """The runs, the files beside them that belong to none, and the pattern that read the names (None: a manifest)."""

    runs: tuple[ImportedRun, ...]
    ignored: tuple[str, ...]
    labels: str | None


def gather(sources: Sequence[Path], labels: str | None, manifest_file: Path | None, manifest: Manifest) -> Gathered:
    """Every run with what lies beside it; nothing is written.

    Raises :class:`UsageError` for sources, labels and manifests that do not go together or fit nothing, and
    :class:`FuseproofError` for a file that cannot be read or used.
    """
    if manifest.slots and manifest_file is not None:
        if sources or labels is not None:
            what = "--labels" if labels is not None else f"{sources[0]}"
            raise UsageError(
                f"The manifest {manifest_file} names every slot itself, so {what} has no meaning.",
                next_step="Give the manifest alone, or take its slots out.",
            )
        folder = manifest_file.resolve().parent
        return Gathered(tuple(_from_manifest(slot, folder) for slot in manifest.slots), (), None)
    if not sources:
        raise UsageError(
            "There is nothing to import: neither a folder or file, nor a manifest with slots.",
            next_step="Give the folder that holds the perf dumps, or --manifest FILE.",
        )
    return _from_names(sources, labels)


def _from_manifest(slot: ManifestSlot, folder: Path) -> ImportedRun:
    dump = named_file(folder / slot.perf_dump, slot.perf_dump)
    check_plain(dump)
    letter, run = arm_of(slot.arm) or ("A", None)
    if run is None and slot.position is None:
        raise UsageError(
            f"The slot of {slot.perf_dump} has arm {slot.arm!r} and no position.",
            next_step="Write a1 or a2 (b1 or b2), or add position = 1 to 4.",
        )
    outputs: dict[str, SourceFile] = {}
    for text in (*slot.outputs, *slot.frames):
        for name, file in below(folder / text, text):
            if name in outputs:
                raise UsageError(
                    f"The slot of {slot.perf_dump} has two outputs called {name}.",
                    next_step="Give one of them another name.",
                )
            check_plain(file)
            outputs[name] = file
    logs = (("stdout.log", named_file(folder / slot.log, slot.log)),) if slot.log is not None else ()
    for _, log in logs:
        check_log(log)
    label = Label(slot.cell, str(slot.block), letter, run, slot.position)
    return ImportedRun(dump, _read(dump), label, Companions(logs, tuple(outputs.items())))


def _from_names(sources: Sequence[Path], labels: str | None) -> Gathered:
    files = source_files(sources)
    dumps = [file for file in files if file.path.suffix.lower() == DUMP_SUFFIX]
    pattern = fitting_pattern([file.name for file in dumps]) if labels is None else parse_pattern(labels)
    labelled = {file: label for file in dumps if (label := pattern.label(file.name)) is not None}
    if not labelled:
        refuse_unnumbered([file.name for file in dumps], [pattern])
        raise _nothing_fits(pattern, dumps)
    _refuse_dropped_dumps(pattern, [file for file in dumps if file not in labelled], len(labelled))
    folders = Counter(file.path.parent for file in labelled)
    neighbours = Neighbours(file for file in files if file not in labelled)
    runs = []
    for file, label in labelled.items():
        check_plain(file)
        read = _read(file)
        beside = companions(file, read, neighbours, is_alone=folders[file.path.parent] == 1 and len(labelled) > 1)
        for other in beside.files:
            check_plain(other)
        for _, log in beside.logs:
            check_log(log)
        runs.append(ImportedRun(file, read, label, beside))
    used = {file for run in runs for file in (run.dump, *run.beside.files)}
    return Gathered(tuple(runs), tuple(file.shown for file in files if file not in used)[:MOST_IGNORED], pattern.text)


def _nothing_fits(pattern: Pattern, dumps: Sequence[SourceFile]) -> UsageError:
    sample = ", ".join(file.name.name for file in dumps[:3]) or "there is no .json file"
    return UsageError(
        f"No file name fits --labels {pattern.text!r}: {sample}.",
        next_step="Write the names with {cell}, {block}, {arm} and {position} in place of what varies.",
    )


def _refuse_dropped_dumps(pattern: Pattern, others: Sequence[SourceFile], fitting: int) -> None:
    """Raise :class:`UsageError` where perf dumps do not fit: a run that is left out unseen may be the one that matters.

    Other .json files are no runs; they are named as ignored.
    """
    dropped = [file for file in others if _is_perf_dump(file)]
    if not dropped:
        return
    more = f" and {len(dropped) - MOST_NAMED} more" if len(dropped) > MOST_NAMED else ""
    names = f"{', '.join(file.shown for file in dropped[:MOST_NAMED])}{more}"
    raise UsageError(
        f"{len(dropped)} of {len(dropped) + fitting} perf dumps do not fit --labels {pattern.text!r}: {names}.",
        next_step="Nothing is left out silently: give the files to import by name (runs/i2v-*.json), a pattern that "
        "fits all of them, or a manifest with slots.",
    )


def _is_perf_dump(file: SourceFile) -> bool:
    try:
        check_plain(file)
        read_perf_dump(file.path)
    except FuseproofError:
        return False
    return True


def _read(file: SourceFile) -> PerfDump:
    """The dump, checked for values that no report can hold while errors can still name the source."""
    dump = read_perf_dump(file.path)
    refuse_unsound_dump(dump)
    return dump
