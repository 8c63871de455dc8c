"""What the runs state of how they were measured: a cold first batch, saving or recompiling inside the time, settings.

Each warning is said once, with the runs that it holds for. What the arms may not differ in is equal work's business
(:mod:`fuseproof.harness.analysis.equal_work`); this is what a reader must know of runs that agree, or differ by
declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fuseproof.harness.analysis.declared import CARD_FLAGS, flags_of
from fuseproof.harness.analysis.runs import ARM_WORDS, ARMS, CellRuns, Run
from fuseproof.harness.campaign.sglang_log import has_recompiled
from fuseproof.harness.perf import batches, determinism, saving
from fuseproof.harness.statistics.reasons import Reason

COLD_BATCH, COMPILE_INSIDE, DETERMINISM_DIFFERS = "COLD_BATCH", "COMPILE_INSIDE", "DETERMINISM_DIFFERS"
COMPILE_STEP = "Warm up every size and step that is timed, in both arms."
DETERMINISM_STEP = (
    "Give both arms the same settings: until then outputs that differ, or agree, are not the candidate's doing alone."
)

TOPOLOGY = sorted(CARD_FLAGS - {"device", "base_gpu_id"})
TOPOLOGY_STEP = "Exactness holds within one topology: compare outputs across them by a close contract."


def run_warnings(cell: CellRuns) -> tuple[Reason, ...]:
    """All of them for the counting runs of a cell."""
    return (
        *_said(cell, COLD_BATCH, cold_first_batch, batches.NEXT_STEP),
        *_said(cell, saving.CODE, _saving_inside, saving.NEXT_STEP),
        *_said(cell, COMPILE_INSIDE, _recompiled, COMPILE_STEP),
        *_one_sided_determinism(cell),
        *_other_topology(cell),
    )


def cold_first_batch(run: Run) -> str | None:
    """Why a run's first batch is cold, by its dump and its own command's flags; a dump's word counts more."""
    flags = flags_of(run.record.command)
    stated: dict[str, Any] = {name.removeprefix("--").replace("-", "_"): value for name, value in flags.items()}
    if run.dump is not None:
        stated |= {**run.dump.raw, **run.dump.config}
    return batches.cold_first_batch(stated)


def _saving_inside(run: Run) -> str | None:
    return None if run.dump is None else saving.saving_inside_text(saving.saving_stages_ms(run.dump))


def _recompiled(run: Run) -> str | None:
    """Of a foreign program's log; our own dumps say themselves whether it was inside the time."""
    if run.dump is None or run.dump.schema is not None or not has_recompiled(run.dump.path.parent):
        return None
    return "their logs show that torch.compile compiled again, perhaps inside the timed request"


def _said(cell: CellRuns, code: str, told: Callable[[Run], str | None], next_step: str) -> Iterable[Reason]:
    found: dict[str, dict[str, int]] = {}
    for arm in ARMS:
        for run in cell.of_arm(arm):
            text = told(run)
            if text is not None:
                by_arm = found.setdefault(text, {})
                by_arm[arm] = by_arm.get(arm, 0) + 1
    for text, by_arm in found.items():
        runs = [f"{by_arm[arm]} of {len(cell.of_arm(arm))} {ARM_WORDS[arm]} runs" for arm in ARMS if arm in by_arm]
        yield Reason(code, f"{' and '.join(runs)}: {text}", next_step)


def _one_sided_determinism(cell: CellRuns) -> Iterable[Reason]:
    """Determinism settings that the slots' own environments give the arms differently: declared, and still a doubt."""
    runs = [cell.of_arm(arm)[:1] for arm in ARMS]
    if not all(runs):
        return
    before, after = (_settings(own[0].record.environment_overrides) for own in runs)
    found = [f"{name}: {before[name]} against {after[name]}" for name in before if before[name] != after[name]]
    if found:
        detail = f"the arms' determinism settings differ: {'; '.join(found)}"
        yield Reason(DETERMINISM_DIFFERS, detail, DETERMINISM_STEP)


def _other_topology(cell: CellRuns) -> Iterable[Reason]:
    """Arms on other numbers of GPUs, by declaration: another number of GPUs rounds differently, whatever the code."""
    dumps = [run.dump for arm in ARMS for run in cell.of_arm(arm)[:1] if run.dump is not None]
    if len(dumps) < len(ARMS):
        return
    before, after = (dump.config for dump in dumps)
    found = [
        f"{flag}: {before[flag]} against {after[flag]}"
        for flag in TOPOLOGY
        if flag in before and flag in after and before[flag] != after[flag]
    ]
    if found:
        yield Reason("TOPOLOGY_DIFFERS", f"the arms ran on other topologies: {'; '.join(found)}", TOPOLOGY_STEP)


def _settings(environment: Mapping[str, str]) -> dict[str, str]:
    names = (determinism.HASH_SEED, *determinism.VARIABLES)
    return {name: environment.get(name, determinism.NOT_SET) for name in names}
