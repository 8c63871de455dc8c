"""Fast paths that an arm asked for and did not get: rejected by the gate, lost against the baseline, never fused.

A picture stays exact when that happens, so nothing else in a report would say that the candidate's own code did not
run. Each loss becomes one :class:`Reason`; sites that share a cause share a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fuseproof.harness.analysis.runs import ARM_WORDS
from fuseproof.harness.number_format import count, shortened
from fuseproof.harness.statistics.reasons import Reason
from fuseproof.schedules.order import ArmLetter

SITE_REJECTED = "SITE_REJECTED"
SITE_FORM_REJECTED = "SITE_FORM_REJECTED"
"""One form of a site was rejected and another took over, so that every call ran fused: nothing was lost."""
SITE_LOST = "SITE_LOST"
SITE_NEVER_FUSED = "SITE_NEVER_FUSED"
MOST_NAMED = 8
LONGEST_REASON = 160
_STAND_INS = re.compile(r"(?P<names>.+) stands in")


@dataclass(frozen=True)
class SiteCounts:
    """One site in one arm: its states over the arm's runs (normally one), and its calls summed over them.

    ``state_runs`` says in how many runs each of ``states`` was seen.
    """

    states: tuple[str, ...]
    reasons: tuple[str, ...]
    calls_fused: int
    calls_eager: int
    state_runs: tuple[int, ...] = ()

    @property
    def rejected_runs(self) -> int:
        """In how many runs the gate rejected at least one key of the site."""
        return dict(zip(self.states, self.state_runs, strict=False)).get("rejected", 0)

    @property
    def was_switched_off(self) -> bool:
        """Nobody asked for it in any run, or another site does its work at this quality: no loss."""
        return set(self.states) == {"off"}


Sites = Mapping[str, SiteCounts]


def losses(baseline: Sites, candidate: Sites, own_sites: Mapping[ArmLetter, frozenset[str]]) -> tuple[Reason, ...]:
    """Every loss of a cell; ``own_sites`` are the names that an arm's own file brought in."""
    by_arm: tuple[tuple[ArmLetter, Sites], ...] = (("A", baseline), ("B", candidate))
    found = [reason for arm, sites in by_arm for reason in _rejections(arm, sites)]
    found += _lost_sites(baseline, candidate)
    found += [reason for arm, sites in by_arm for reason in _never_fused(arm, sites, own_sites[arm])]
    return tuple(found)


def _rejections(arm: ArmLetter, sites: Sites) -> Iterable[Reason]:
    for name, site in sites.items():
        if not site.rejected_runs:
            continue
        runs = f"{site.rejected_runs} of {count(sum(site.state_runs), 'run')}"
        calls = f"{site.calls_fused:,} fused and {site.calls_eager:,} eager calls"
        code, rejected, what = _what_ran(name, site)
        detail = f"{ARM_WORDS[arm]}: the gate rejected {rejected} in {runs} ({_why(site)}); {calls}: {what}"
        yield Reason(code, detail, "`fuseproof fastpaths verify` shows where its bits differ from eager.")


def _what_ran(name: str, site: SiteCounts) -> tuple[str, str, str]:
    """The code of a rejection, what was rejected, and what the calls say was timed."""
    if site.calls_eager:
        partly = "partly the eager chain" if site.calls_fused else "the eager chain, not the kernel"
        return SITE_REJECTED, name, f"what was timed is {partly}"
    if site.calls_fused:
        return SITE_FORM_REJECTED, f"a form of {name}", "another form of it took over"
    return SITE_REJECTED, name, "no call of it was counted in what was timed"


def _lost_sites(baseline: Sites, candidate: Sites) -> Iterable[Reason]:
    """Sites that the baseline ran fused and the candidate did not, those of one cause together.

    What the candidate's own gate rejected is told as a rejection already.
    """
    groups: dict[str, list[str]] = {}
    for name, own in candidate.items():
        before = baseline.get(name)
        is_lost = before is not None and before.calls_fused > 0 and own.calls_fused == 0
        is_explained = own.was_switched_off or own.rejected_runs > 0
        if is_lost and not is_explained and not _has_fused_stand_in(own, candidate):
            groups.setdefault(f"{', '.join(own.states)}: {_why(own)}", []).append(name)
    for why, names in groups.items():
        calls = sum(baseline[name].calls_fused for name in names)
        detail = f"the baseline ran {_named(names)} fused ({calls:,} calls), the candidate did not ({why})"
        yield Reason(SITE_LOST, detail, "The times compare other code than the change alone: see docs/fast-paths.md.")


def _never_fused(arm: ArmLetter, sites: Sites, own: frozenset[str]) -> Iterable[Reason]:
    idle = {name: site for name, site in sites.items() if name in own and not site.calls_fused}
    for name, site in idle.items():
        if not site.rejected_runs and not site.was_switched_off:
            detail = f"{ARM_WORDS[arm]}: its own site {name} never ran fused ({', '.join(site.states)}: {_why(site)})"
            yield Reason(SITE_NEVER_FUSED, detail, "Its reason says what to change.")


def _has_fused_stand_in(site: SiteCounts, sites: Sites) -> bool:
    """Whether a site that a user's kernel replaces was served by that kernel."""
    names = [
        name
        for reason in site.reasons
        if (found := _STAND_INS.fullmatch(reason))
        for name in found["names"].split(", ")
    ]
    return "replaced" in site.states and any(name in sites and sites[name].calls_fused > 0 for name in names)


def _why(site: SiteCounts) -> str:
    return shortened("; ".join(site.reasons), LONGEST_REASON).rstrip(".") or "no reason recorded"


def _named(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
