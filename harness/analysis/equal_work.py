"""Did both arms of a cell do the same work, measured in the same way? If not, the cell has no ratio at all.

Runs are compared with :mod:`fuseproof.harness.perf.work`, every run with the first of its arm and the first candidate
with the first baseline. What is asked of the model (prompt, size, steps, seed, model, guidance, warm-up, timers) must
always agree. How it is computed (dtype, backend, compile, attention, device) must agree too, unless the arms' own flags
give the setting different values: then the difference is the experiment, and it is shown as declared
(:mod:`fuseproof.harness.analysis.declared`). Quality may skip guidance branches, which is fewer transformer calls for
the same request: where the arms name different qualities, exactly that many are declared too. The arms must work on
the same GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fuseproof.harness.analysis.declared import declares_cards, declares_software, differing_settings
from fuseproof.harness.analysis.judged_cards import judged_cards
from fuseproof.harness.analysis.runs import ARM_WORDS, ARMS, CellRuns, Run
from fuseproof.harness.analysis.work_settings import declaring_flags, is_software
from fuseproof.harness.campaign.arm_lineage import lineage_commit
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.perf import graphs
from fuseproof.harness.perf.dump import PerfDump
from fuseproof.harness.perf.enhanced_prompts import FIXED_STEP, needs_fixed_texts
from fuseproof.harness.perf.work import Difference, check_equal_work
from fuseproof.harness.statistics.reasons import Reason
from fuseproof.schedules.plan import Plan

IDENTITY = frozenset({"model_sha256", "model_source", "family"})
"""What was run, besides what :mod:`fuseproof.harness.perf.work` counts as work."""

SPEED_FIELD = "excessive speed-up"
SKIPPED_WITH_GUIDANCE = frozenset({"transformer calls", "transformer tokens", "warmup_steps"})
"""What differs where quality skips guidance: fewer calls, and a warm-up that is lengthened to meet both kinds of step.
"""
IGNORED_NOTES = frozenset({"outputs", "commit", "prompt_path", "fastpaths", "gate"})
"""Shown elsewhere in the report: output check, commits, fast paths."""


@dataclass(frozen=True)
class EqualWork:
    """What was found; every entry is a sentence's worth of text."""

    differences: tuple[str, ...]
    """These forbid a comparison."""
    declared: tuple[str, ...]
    """Settings that differ because the arms' flags say so."""
    notes: tuple[str, ...]
    unchecked: tuple[str, ...]
    """What the dumps do not record."""
    commits: tuple[tuple[str, tuple[str, ...]], ...]
    """Per arm letter, the distinct commits its runs recorded, in order."""

    @property
    def is_equal(self) -> bool:
        return not self.differences

    def reason(self) -> Reason | None:
        """Why the cell is INVALID, or None."""
        if self.is_equal:
            return None
        shown = "; ".join(self.differences[:4])
        more = f"; {len(self.differences) - 4} more" if len(self.differences) > 4 else ""
        step = "Give both arms the same request, warm-up and timers; what is compared belongs in the arms' own flags."
        if needs_fixed_texts({text.partition(":")[0] for text in self.differences}):
            step = FIXED_STEP
        return Reason("UNEQUAL_WORK", f"the runs did not do the same work: {shown}{more}", step)

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return asdict(self) | {"is_equal": self.is_equal, "commits": {arm: list(found) for arm, found in self.commits}}


def check_cell_work(cell: CellRuns, plan: Plan) -> EqualWork:
    """Compare all counting runs of a cell. A cell without runs is trivially equal."""
    request, differences, declared, notes, unchecked = _Texts(), _Texts(), _Texts(), _Texts(), _Texts()
    arms = (plan.arms.baseline, plan.arms.candidate)
    named = differing_settings(*arms)
    for first, other, is_across_arms in _pairs(cell):
        where = "" if is_across_arms else _within_arm(first, other)
        found = _dump_differences(first, other, unchecked)
        for difference in found:
            if difference.field == SPEED_FIELD and not is_across_arms:
                continue
            flags = declaring_flags(difference.field)
            text = f"{where}{difference}"
            may_skip = is_across_arms and "quality" in named and difference.field in SKIPPED_WITH_GUIDANCE
            if may_skip and _skip(first, other):
                declared.add(f"{text} (guidance branches that quality skips)")
            elif difference.kind != "note" or difference.field in IDENTITY:
                request.add(text)
            elif flags and not is_across_arms:
                differences.add(text)
            elif flags:
                (declared if flags & named else differences).add(text)
            elif is_across_arms and _names_itself(difference.field, named):
                declared.add(text)
            elif is_software(difference.field):
                is_declared = is_across_arms and declares_software(*arms, difference.field)
                (declared if is_declared else differences).add(text)
            elif difference.field not in IGNORED_NOTES and is_across_arms:
                notes.add(text)
        for text in _record_differences(first.record, other.record, {difference.field for difference in found}):
            differences.add(f"{where}{text}")
    unlike_cards = judged_cards(cell).unlike
    if unlike_cards is not None:
        (declared if declares_cards(*arms) else differences).add(f"GPUs: {unlike_cards}")
    return EqualWork(
        differences=(*request.texts, *differences.texts),
        declared=declared.texts,
        notes=notes.texts,
        unchecked=unchecked.texts,
        commits=tuple((arm, _commits(cell.of_arm(arm))) for arm in ARMS),
    )


def unequal_between(first: Run, other: Run) -> tuple[str, ...]:
    """Why two runs of different cells have no ratio; what a mode or a quality changes is what they are compared for."""
    check = check_equal_work(first.dump, other.dump) if first.dump is not None and other.dump is not None else None
    found = [] if check is None else [*check.blocking, *(note for note in check.notes if note.field in IDENTITY)]
    is_skip = _skip(first, other)
    texts = [str(difference) for difference in found if not (is_skip and difference.field in SKIPPED_WITH_GUIDANCE)]
    known = {difference.field for difference in found}
    return (*texts, *_record_differences(first.record, other.record, known))


def broken_promises(cell: CellRuns) -> tuple[Reason, ...]:
    """Runs that did not do what they were asked: a backend that fell back, graphs that did not answer its requests."""
    found = []
    for run in cell.runs:
        if run.dump is None:
            continue
        name = f"{ARM_WORDS[run.record.arm]} run {run.record.id}"
        fallback = _fallback(run.dump.config, run.dump.environment)
        if fallback:
            step = "Repair the requested backend, or ask for the other one by name in both arms."
            found.append(Reason("FALLBACK", f"{name} fell back: {fallback}", step))
        missing = graphs.graph_shortfall(run.dump.config, run.dump.graphs, run.dump.requests)
        if missing:
            detail = f"{name} asked for CUDA graphs: {missing}"
            found.append(Reason("MISSING_GRAPH", detail, graphs.NEXT_STEP))
    return tuple(found)


def _names_itself(field: str, named: set[str]) -> bool:
    """Whether the arms' own flags differ in just this setting, or in the file that a hash is of."""
    return field not in IGNORED_NOTES and field.removesuffix("_sha256") in named


class _Texts:
    """Distinct texts in the order they were found."""

    def __init__(self) -> None:
        self._found: dict[str, None] = {}

    def add(self, text: str) -> None:
        self._found[text] = None

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self._found)


def _pairs(cell: CellRuns) -> Iterable[tuple[Run, Run, bool]]:
    firsts: list[Run] = []
    for arm in ARMS:
        runs = cell.of_arm(arm)
        firsts += runs[:1]
        yield from ((runs[0], other, False) for other in runs[1:])
    if len(firsts) == len(ARMS):
        yield firsts[0], firsts[1], True


def _dump_differences(first: Run, other: Run, unchecked: _Texts) -> Sequence[Difference]:
    if first.dump is None or other.dump is None:
        for run in (first, other):
            if run.dump is None:
                unchecked.add(f"{run.record.id} has no perf dump")
        return ()
    check = check_equal_work(first.dump, other.dump)
    for field in check.unchecked:
        if field != "commit":
            unchecked.add(field.replace("_", " "))
    return check.differences


def _skip(first: Run, other: Run) -> bool:
    """Whether their transformer work differs by the skipped guidance branches, and by nothing else."""
    if first.dump is None or other.dump is None:
        return False
    mine, theirs = (_guided_work(run.dump) for run in (first, other) if run.dump is not None)
    return bool(mine) and mine == theirs


def _guided_work(dump: PerfDump) -> list[tuple[int, float]]:
    """For each request: transformer calls, skipped ones counted in, and tokens a call; empty if not recorded."""
    skipped = dump.config.get("guidance_skipped_steps")
    found = []
    for request in dump.requests:
        work = request.get("work")
        calls, tokens = (
            (work.get("transformer_calls"), work.get("transformer_tokens"))
            if isinstance(work, Mapping)
            else (None, None)
        )
        if not (isinstance(skipped, list) and isinstance(calls, int) and isinstance(tokens, int) and calls > 0):
            return []
        found.append((calls + len(skipped), tokens / calls))
    return found


def _record_differences(before: SlotRecord, after: SlotRecord, known: set[str]) -> Iterable[str]:
    """What the slots' own records add; ``known`` are the fields in which their dumps differ already."""
    if len(before.outputs) != len(after.outputs):
        yield f"number of outputs: {len(before.outputs)} against {len(after.outputs)}"
    for index, (mine, theirs) in enumerate(zip(before.outputs, after.outputs, strict=False)):
        shape, other_shape = (mine.width, mine.height, mine.frames), (theirs.width, theirs.height, theirs.frames)
        if None not in shape[:2] + other_shape[:2] and shape != other_shape:
            yield f"size of output {index + 1} (geometry): {_shape(*shape)} against {_shape(*other_shape)}"
    for key in before.work or ():
        name = key.replace("_", " ")
        if known & {key, name} or before.work is None or after.work is None:
            continue
        if before.work[key] != after.work.get(key, before.work[key]):
            yield f"{name}: {before.work[key]} against {after.work[key]}"


def _shape(width: int | None, height: int | None, frames: int | None) -> str:
    return f"{width}x{height}" + (f", {frames} frames" if frames is not None and frames > 1 else "")


def _within_arm(first: Run, other: Run) -> str:
    return f"among the {ARM_WORDS[first.record.arm]} runs ({first.record.id}, {other.record.id}), "


def _commits(runs: Sequence[Run]) -> tuple[str, ...]:
    found = (_commit(run.dump) if run.dump else None for run in runs)
    named = (commit or lineage_commit(run.record) for commit, run in zip(found, runs, strict=True))
    return tuple(dict.fromkeys(commit for commit in named if commit))


def _commit(dump: PerfDump) -> str | None:
    """The commit a run recorded; a dirty tree shows as ``+dirty`` with the hash of its changes."""
    if dump.commit_hash is None:
        return None
    commit = dump.commit_hash.removesuffix("+dirty")
    checkout = dump.environment.get("fuseproof")
    if isinstance(checkout, Mapping) and checkout.get("commit") == commit and checkout.get("is_dirty"):
        changes = checkout.get("diff_sha256")
        return f"{commit}+dirty (diff {str(changes)[:12]})" if changes else f"{commit}+dirty (untracked files)"
    return dump.commit_hash


def _fallback(config: Mapping[str, Any], environment: Mapping[str, Any]) -> str | None:
    reason = config.get("fallback_reason") or environment.get("fallback_reason")
    if reason:
        return str(reason)
    requested, used = config.get("backend"), config.get("backend_used") or environment.get("backend_used")
    if used is not None and requested not in (None, "auto", used):
        return f"{requested} was requested, {used} ran"
    return None
