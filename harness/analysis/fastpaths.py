"""Did the candidate's code really run? Each site's state and its fused and eager calls, per arm.

The numbers are the arms' own counters from their perf dumps; a time without them says nothing about a fast path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fuseproof.harness.analysis.fastpath_losses import SITE_FORM_REJECTED, SiteCounts, losses
from fuseproof.harness.analysis.runs import ARM_WORDS, ARMS, BASELINE, CellRuns, Run
from fuseproof.harness.statistics.reasons import Reason
from fuseproof.schedules.order import ArmLetter


@dataclass(frozen=True)
class SiteProof:
    """One site in both arms; None where an arm does not report it."""

    site: str
    baseline: SiteCounts | None
    candidate: SiteCounts | None


@dataclass(frozen=True)
class FastpathProof:
    """All sites either arm reports, in order of name."""

    sites: tuple[SiteProof, ...]
    warnings: tuple[Reason, ...]

    def fused_calls(self, arm: ArmLetter) -> int:
        """Fused calls of one arm over all its sites and runs."""
        counts = [site.baseline if arm == "A" else site.candidate for site in self.sites]
        return sum(count.calls_fused for count in counts if count)

    def fused_sites(self, arm: ArmLetter) -> int:
        """Sites of one arm with at least one fused call."""
        counts = [site.baseline if arm == "A" else site.candidate for site in self.sites]
        return sum(1 for count in counts if count and count.calls_fused)

    @property
    def is_as_asked(self) -> bool:
        """Whether no site was rejected, lost or idle: only then do fused calls speak for the candidate."""
        return all(warning.code == SITE_FORM_REJECTED for warning in self.warnings)

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return asdict(self)


def check_fastpaths(cell: CellRuns) -> FastpathProof:
    """Collect the counters of a cell's counting runs, and what of the asked fast paths did not run."""
    by_arm = {arm: [_sites(run) for run in cell.of_arm(arm)] for arm in ARMS}
    counted = {
        arm: {name: counts for name in _names(by_arm[arm]) if (counts := _counts(name, by_arm[arm]))} for arm in ARMS
    }
    names = sorted({*counted["A"], *counted["B"]})
    sites = tuple(SiteProof(name, counted["A"].get(name), counted["B"].get(name)) for name in names)
    own = {arm: _own_sites(cell, arm, set(counted[arm]), set(counted["B" if arm == "A" else "A"])) for arm in ARMS}
    found = losses(counted["A"], counted["B"], own)
    proof = FastpathProof(sites, found)
    idle = tuple(_idle(arm, cell, proof) for arm in ("B", "A"))
    return FastpathProof(sites, (*(reason for reason in idle if reason is not None), *found))


def _idle(arm: ArmLetter, cell: CellRuns, proof: FastpathProof) -> Reason | None:
    """That an arm asked for fast paths and made no fused call; of the baseline it has a code of its own."""
    asked = {str(_requested(run)) for run in cell.of_arm(arm)}
    if not proof.sites or not asked - {"off", "None"} or proof.fused_calls(arm):
        return None
    detail = f"the {ARM_WORDS[arm]} asked for fast paths ({', '.join(sorted(asked))}) and made no fused call"
    if arm == BASELINE:
        own = [site.baseline for site in proof.sites if site.baseline is not None]
        if not own or all(site.was_switched_off for site in own):
            return None
        return Reason("BASELINE_NOT_FUSED", detail, "What the candidate is held against is the eager path: see why.")
    step = "See the reasons in the fast-path table: what was timed is the eager path."
    return Reason("FASTPATH_NOT_TAKEN", detail, step)


def _names(runs: list[Mapping[str, Mapping[str, Any]]]) -> list[str]:
    return sorted({name for sites in runs for name in sites})


def _own_sites(cell: CellRuns, arm: ArmLetter, names: set[str], others: set[str]) -> frozenset[str]:
    """The sites that an arm's ``--fastpaths-from`` brought in: those that the other arm does not know.

    Every arm names all built-in sites, also when they are off, so nothing else can be meant.
    """
    has_own = any(run.dump is not None and run.dump.config.get("fastpaths_from") for run in cell.of_arm(arm))
    return frozenset(names - others) if has_own and others else frozenset()


def _report(run: Run) -> Mapping[str, Any]:
    return run.record.fastpaths or (run.dump.fastpaths if run.dump else {})


def _requested(run: Run) -> object:
    return _report(run).get("requested")


def _sites(run: Run) -> Mapping[str, Mapping[str, Any]]:
    sites = _report(run).get("sites")
    if not isinstance(sites, Mapping):
        return {}
    return {str(name): site for name, site in sites.items() if isinstance(site, Mapping)}


def _counts(name: str, runs: list[Mapping[str, Mapping[str, Any]]]) -> SiteCounts | None:
    found = [sites[name] for sites in runs if name in sites]
    if not found:
        return None
    states = Counter(str(site.get("state") or "unknown") for site in found)
    return SiteCounts(
        states=tuple(states),
        state_runs=tuple(states.values()),
        reasons=tuple(dict.fromkeys(str(site["reason"]) for site in found if site.get("reason"))),
        calls_fused=sum(_calls(site, "calls_fused") for site in found),
        calls_eager=sum(_calls(site, "calls_eager") for site in found),
    )


def _calls(site: Mapping[str, Any], key: str) -> int:
    value = site.get(key)
    return value if isinstance(value, int) else 0
