"""What only an imported campaign needs said: who measured it, whether its files are the slots they are labelled as, and
which advice does not apply because nothing here can be run again.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from fuseproof.harness.analysis.runs import CellRuns, CountedBlock, Run
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.origin import Origin
from fuseproof.harness.campaign.sglang_log import slot_log
from fuseproof.harness.number_format import count
from fuseproof.harness.perf.blocks import AbbaBlock
from fuseproof.harness.perf.dump import PerfDump
from fuseproof.harness.perf.slot_order import slot_order_obstacles
from fuseproof.harness.perf.work import check_equal_work
from fuseproof.harness.statistics.next_steps import without_campaign_flags
from fuseproof.harness.statistics.reasons import Reason
from fuseproof.schedules.plan import Plan

if TYPE_CHECKING:
    from fuseproof.harness.analysis.campaign import CampaignAnalysis

LABEL_STEP = "Correct the labels or the manifest, and import into a new folder."
IMPORT_STEP = "Import the missing or repaired files into a new folder."
OUTPUT_STEP = "Put them beside their dumps, under the same names, and import into a new folder."
MOST_CAVEATS = 8
UNPLANNED = (
    "how many blocks were planned before measuring is not recorded: every imported block counts as planned, at the "
    "error level of a single look"
)


def imported_note(origin: Origin) -> str:
    """The sentence at the top of the report."""
    return (
        f"imported: {count(origin.dump_count, 'perf dump')} measured by {origin.tools}, not by this program: order, "
        "isolation and telemetry are as recorded there and were not observed"
    )


def imported_notes(analysis: CampaignAnalysis) -> list[str]:
    """What stands at the top of an imported campaign's report; nothing for any other."""
    origin = analysis.campaign.origin
    return [] if origin is None else [imported_note(origin)]


def imported_caveats(analysis: CampaignAnalysis) -> list[str]:
    """What was found while importing: files left out, orders that nothing shows, logs of other runs."""
    origin = analysis.campaign.origin
    if origin is None:
        return []
    shown = [UNPLANNED, *origin.caveats[:MOST_CAVEATS]]
    hidden = max(0, len(origin.caveats) - MOST_CAVEATS)
    return [*shown, *([f"{hidden} more in campaign.json (origin)"] if hidden else [])]


def imported_objections(campaign: Campaign, runs: CellRuns) -> tuple[Reason, ...]:
    """Why the files of an imported cell are not the slots of their labels: arms mixed or exchanged, one run twice."""
    if campaign.origin is None:
        return ()
    names = {file.slot: file.path for file in campaign.origin.files if file.kind == "perf dump"}
    blocks = [abba for block in runs.blocks if (abba := _abba_block(block, names)) is not None]
    obstacles = tuple(dataclasses.replace(reason, next_step=LABEL_STEP) for reason in slot_order_obstacles(blocks))
    return (*obstacles, *_unequal_warmup(campaign, runs))


def _unequal_warmup(campaign: Campaign, runs: CellRuns) -> tuple[Reason, ...]:
    """Runs of which some warmed up and some did not, by sglang's own lines; a run without such a log says nothing."""
    logs = {run.record.id: slot_log(campaign.slot_directory(run.record.id)) for run in runs.runs}
    told = {slot_id: log.warmed_up_s is not None for slot_id, log in logs.items() if log.client_s is not None}
    if len(set(told.values())) < 2:
        return ()
    warm, cold = (next(slot_id for slot_id, is_warm in told.items() if is_warm is wanted) for wanted in (True, False))
    detail = f"by their logs {warm} warmed up before its request and {cold} did not"
    return (Reason("UNEQUAL_WORK", detail, "Measure both arms with the same warm-up."),)


def imported_warnings(campaign: Campaign, runs: CellRuns, plan: Plan) -> tuple[Reason, ...]:
    """That both arms of an imported cell look like one program, where their dumps name a commit."""
    if campaign.origin is None or plan.aa or not runs.blocks:
        return ()
    baseline, candidate = (_first_dump(runs.of_arm(arm)) for arm in ("A", "B"))
    if baseline is None or candidate is None or not (baseline.commit_hash and candidate.commit_hash):
        return ()
    if plan.arms.baseline.command != plan.arms.candidate.command:
        return ()
    notes = check_equal_work(baseline, candidate, judges_speed=False).notes
    if any(note.field != "outputs" for note in notes):
        return ()
    detail = f"both arms report commit {baseline.short_commit} and nothing else that differs"
    return (Reason("SAME_PROGRAM", detail, "This is an A/A run unless the arms differ in something unrecorded."),)


def in_imported_words(reason: Reason) -> Reason:
    """A reason in words that hold here: nothing goes on, and files were or were not given."""
    if reason.code == "NO_OUTPUTS":
        return Reason(reason.code, "no outputs were imported, so nothing is known about their equality", OUTPUT_STEP)
    if "--resume" in reason.next_step:
        return dataclasses.replace(reason, next_step=IMPORT_STEP)
    return dataclasses.replace(reason, next_step=without_campaign_flags(reason.next_step))


def _abba_block(block: CountedBlock, names: dict[str | None, str]) -> AbbaBlock | None:
    dumps = tuple(run.dump for run in block.runs if run.dump is not None)
    if len(dumps) != len(block.runs):
        return None
    labels = tuple(names.get(run.record.id, run.record.id) for run in block.runs)
    return AbbaBlock(f"r{block.number}", block.orientation, dumps, labels)


def _first_dump(runs: tuple[Run, ...]) -> PerfDump | None:
    return runs[0].dump if runs else None
