"""Every flag of ``fuseproof abba``, and the run plan that they become."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fuseproof.cli.option_fields import FiniteNumber, Name, flag, flag_name, whole
from fuseproof.errors import UsageError

if TYPE_CHECKING:
    from fuseproof.schedules.plan import Plan

LARGEST_BLOCKS = 1000
MOST_RETRIES = 10
LONGEST_SLOT_S = 7 * 86400.0

ARM_FIELDS = (
    "baseline",
    "candidate",
    "baseline_command",
    "candidate_command",
    "baseline_ref",
    "candidate_ref",
)
OVERRIDES = {
    "blocks": "blocks",
    "order": "order",
    "primary": "primary",
    "min_effect": "min_effect",
    "timeout": "timeout_s",
    "retries": "retries",
}
"""Flags that replace one key of a plan, and that key."""
PLAN_FIELDS = ("plan", *ARM_FIELDS, "flags", *OVERRIDES, "contract", "qualify", "name", "aa", "keep_raw")


def lone_switch(*names: str, description: str) -> Any:
    """A field for a flag without a value."""
    return flag(*names, type=bool, is_flag=True, default=False, show_default=False, description=description)


@dataclass(frozen=True, kw_only=True)
class AbbaOptions:
    """The flags as parsed. Building one checks every rule between flags and raises :class:`UsageError`."""

    plan: str | None = None
    baseline: str | None = flag(
        "--baseline",
        metavar="FLAGS",
        description="Flags of `generate` for the baseline. Left out, it is `generate` with the shared flags alone.",
    )
    candidate: str | None = flag(
        "--candidate",
        metavar="FLAGS",
        description="Flags of `generate` for the candidate. Needed with --baseline, unless a PLAN has one.",
    )
    baseline_command: str | None = flag(
        "--baseline-command",
        metavar="COMMAND",
        description="Any program as baseline; {perf_dump} and {output_dir} say where its results belong.",
    )
    candidate_command: str | None = flag(
        "--candidate-command", metavar="COMMAND", description="Any program as candidate, with the same placeholders."
    )
    baseline_ref: str | None = flag(
        "--baseline-ref",
        metavar="REF",
        description="Run the baseline from a clean tree of this git branch, tag or SHA.",
    )
    candidate_ref: str | None = flag(
        "--candidate-ref", metavar="REF", description="Run the candidate from a clean tree of this one."
    )
    repo: str | None = flag(
        "--repo", metavar="DIR", description="The checkout of both refs. [default: the one of the present folder]"
    )
    flags: str | None = flag(
        "--flags",
        metavar="FLAGS",
        description="Flags of `generate` that both arms share: model, prompt, size, steps, seed. With a PLAN they are "
        "added after each cell's own.",
    )
    blocks: int | None = whole(
        "--blocks",
        minimum=1,
        maximum=LARGEST_BLOCKS,
        description="Blocks of four slots, the same number for every cell. [default: the plan's, 2]",
    )
    order: str | None = flag(
        "--order",
        type=Name("mirrored", "ABBA", aliases={"abba": "ABBA"}),
        description="mirrored alternates A-B-B-A and B-A-A-B, against curved drift. [default: the plan's, mirrored]",
    )
    primary: str | None = flag(
        "--primary",
        type=Name("worker", "denoise", "client"),
        description="The time the verdict is about. [default: the plan's, worker]",
    )
    min_effect: str | None = flag(
        "--min-effect",
        metavar="SHARE",
        description="Smallest effect that matters, as 1% or 0.01. [default: the plan's, 1%]",
    )
    contract: str | None = flag(
        "--contract",
        metavar="CONTRACT",
        description="What the outputs must keep: exact, or for example close:ssim>=0.95,psnr>=28.",
    )
    qualify: str | None = flag(
        "--qualify",
        metavar="REQUIREMENTS",
        description="What every block must show on its own before a speed-up is claimed: worker>=1.5%,client>=1.5%.",
    )
    retries: int | None = whole(
        "--retries",
        minimum=0,
        maximum=MOST_RETRIES,
        description="How often a block is begun again that an invalid slot has spoilt; every attempt is kept. "
        "[default: the plan's, 1]",
    )
    plan_for: str | None = flag(
        "--plan-for",
        metavar="EFFECT",
        description="Run nothing; print how many blocks find this effect in 80 % of campaigns. Needs --scatter or "
        "--from-campaign.",
    )
    scatter: str | None = flag(
        "--scatter", metavar="SHARE", description="For --plan-for: how much one run is known to scatter, as 0.3%."
    )
    from_campaign: str | None = flag(
        "--from-campaign", metavar="DIR", description="For --plan-for: an earlier campaign, whose scatter is taken."
    )
    output: str | None = flag(
        "--output", metavar="DIR", description="A new or empty campaign folder. [default: campaigns/<name>-<UTC time>]"
    )
    name: str | None = flag("--name", description="The campaign's name. [default: the plan's]")
    timeout: float | None = flag(
        "--timeout",
        type=FiniteNumber(0.01, LONGEST_SLOT_S),
        metavar="SECONDS",
        description="Longest time for one slot. [default: the plan's]",
    )
    keep_raw: bool = lone_switch(
        "--keep-raw",
        description="Let every slot keep its decoded arrays in raw/, so that `verify` can hash them again.",
    )
    aa: bool = lone_switch("--aa", description="Run the baseline as both arms, to see the noise of this machine.")
    dry_run: bool = lone_switch("--dry-run", description="Show slots, commands, time and space; run and write nothing.")
    resume: str | None = flag("--resume", metavar="DIR", description="Go on with an interrupted campaign.")
    allow_busy: bool = lone_switch(
        "--allow-busy", description="Start on a busy machine; disturbed slots are marked and cap the verdict."
    )
    require: str | None = flag(
        "--require", type=Name("faster"), description="Exit with 5 unless every cell's verdict is FASTER."
    )
    require_fastpaths: bool = lone_switch(
        "--require-fastpaths", description="Exit with 6 unless the candidate's fast paths ran in every slot."
    )
    as_json: bool = False

    def __post_init__(self) -> None:
        if self.plan_for is None:
            for field in ("scatter", "from_campaign"):
                if getattr(self, field) is not None:
                    raise UsageError(f"{flag_name(field)} has no effect without --plan-for.", next_step="Add it.")
        self._refuse_both("scatter", "from_campaign")
        self._refuse_both("baseline", "baseline_command")
        self._refuse_both("candidate", "candidate_command")
        if self.aa:
            for field in ("candidate", "candidate_command", "candidate_ref"):
                self._refuse_both("aa", field)
        if self.repo is not None and self.baseline_ref is None and self.candidate_ref is None:
            raise UsageError(
                "--repo says where refs are looked up, and there is none.",
                next_step="Add --baseline-ref or --candidate-ref, or write repo beside ref in the plan.",
            )
        self._refuse_lone_baseline()
        if self.resume is not None:
            for field in ("output", "dry_run"):
                self._refuse_both("resume", field)
        if self.flags is not None and self.baseline_command and (self.candidate_command or self.aa):
            raise UsageError(
                "--flags has no effect when both arms are commands of their own.",
                next_step="Write the flags into both commands.",
            )

    def _refuse_lone_baseline(self) -> None:
        has_candidate = any(given is not None for given in (self.candidate, self.candidate_command, self.candidate_ref))
        if (self.baseline is None and self.baseline_ref is None) or has_candidate or self.aa or self.plan is not None:
            return
        raise UsageError(
            f"{'--baseline-ref' if self.baseline is None else '--baseline'} was given without --candidate, so it would "
            "be compared with nothing that was said.",
            next_step="Add --candidate (or --candidate-command, --candidate-ref), or --aa to run the baseline as both "
            "arms.",
        )

    def _refuse_both(self, first: str, second: str) -> None:
        if getattr(self, first) not in (None, False) and getattr(self, second) not in (None, False):
            raise UsageError(
                f"{flag_name(first)} and {flag_name(second)} exclude each other.", next_step="Leave one out."
            )

    @property
    def shapes_plan(self) -> bool:
        """Whether anything was said about what to measure."""
        return any(getattr(self, field) not in (None, False) for field in PLAN_FIELDS)

    def build_plan(self) -> Plan:
        """The plan these flags describe: a plan's own values, with those flags that were given in their place."""
        from fuseproof.schedules.plan import DEFAULT_PLAN, load_plan, plan_from

        base = load_plan(DEFAULT_PLAN if self.plan is None else self.plan).to_json()
        has_own_arms = any(getattr(self, field) is not None for field in ARM_FIELDS)
        if self.plan is None and (has_own_arms or self.flags is not None):
            base = self._from_flags(base, has_own_arms)
        elif self.flags is not None:
            base["cells"] = [cell | {"flags": f"{cell['flags']} {self.flags}"} for cell in base["cells"]]
        for letter in ("baseline", "candidate"):
            base["arms"][letter] = self._arm(letter, base["arms"][letter])
        for field, key in OVERRIDES.items():
            if getattr(self, field) is not None:
                base[key] = getattr(self, field)
        if self.blocks is not None:
            base["cells"] = [cell | {"blocks": None} for cell in base["cells"]]
        if self.contract is not None:
            base["cells"] = [cell | {"contract": self.contract} for cell in base["cells"]]
        if self.qualify is not None:
            base["qualify"] = [text.strip() for text in self.qualify.split(",") if text.strip()]
        if self.keep_raw:
            base["cells"] = self._keeping_raw(base)
        if self.aa:
            base |= {"aa": True, "arms": dict.fromkeys(("baseline", "candidate"), base["arms"]["baseline"])}
        return plan_from(base | ({"name": self.name} if self.name is not None else {}), "the command line")

    def _keeping_raw(self, base: dict[str, Any]) -> list[dict[str, Any]]:
        """The cells with the flag of `generate` that keeps arrays; a command keeps what it likes."""
        if all(arm.get("command") is not None for arm in base["arms"].values()):
            raise UsageError(
                "--keep-raw has no effect when both arms are commands of their own.",
                next_step="Let the commands write raw/NAME.npy beside their perf dumps, one array an output.",
            )
        return [cell | {"flags": f"{cell.get('flags') or ''} --keep-raw".strip()} for cell in base["cells"]]

    def _from_flags(self, default: dict[str, Any], has_own_arms: bool) -> dict[str, Any]:
        """A plan from flags alone: the default plan's cell stands in only while nothing else says what to draw."""
        runs_only_commands = self.baseline_command is not None and (self.candidate_command is not None or self.aa)
        cells = default["cells"]
        if runs_only_commands:
            cells = [{"name": "command"}]
        elif self.flags is not None:
            cells = [{"name": "request", "flags": self.flags}]
        arms = {name: {"name": name} for name in ("baseline", "candidate")} if has_own_arms else default["arms"]
        kept = {key: default[key] for key in ("schema", "blocks", "order", "primary", "min_effect", "warmup_slots")}
        if self.baseline_ref is not None or self.candidate_ref is not None:
            kept["warmup_slots"] = 2  # each arm's caches are its own and cold
        return kept | {"name": "abba", "title": self._title(), "arms": arms, "cells": cells}

    def _title(self) -> str:
        """What is compared, in the user's own words; empty where a command would be too long to read."""
        if self.baseline_ref is not None and self.candidate_ref is not None:
            return f"{self.baseline_ref} against {self.candidate_ref}"
        if self.aa or self.baseline_command or self.candidate_command or self.baseline_ref or self.candidate_ref:
            return ""
        baseline, candidate = self.baseline or "no extra flags", self.candidate or "no extra flags"
        return f"{baseline} against {candidate}"

    def _arm(self, letter: str, arm: dict[str, Any]) -> dict[str, Any]:
        flags, command = getattr(self, letter), getattr(self, f"{letter}_command")
        ref = getattr(self, f"{letter}_ref")
        if command is not None:
            arm = {"name": letter, "command": command}
        elif flags is not None:
            arm = {"name": letter, "flags": flags}
        return arm if ref is None else arm | {"ref": ref, "repo": self.repo or arm.get("repo")}


def options_from(flags: dict[str, Any]) -> AbbaOptions:
    """The options object of parsed flags."""
    known = {field.name for field in dataclasses.fields(AbbaOptions)}
    return AbbaOptions(**{key: value for key, value in flags.items() if key in known})
