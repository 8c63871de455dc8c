"""Every flag of ``fuseproof abba``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fuseproof.cli.abba_candidates import parted, repeatable
from fuseproof.cli.abba_option_rules import refuse_contradictions
from fuseproof.cli.bench_choice import HELP as BENCH_HELP
from fuseproof.cli.floor_choice import HELP as FLOOR_HELP
from fuseproof.cli.option_fields import FiniteNumber, Name, flag, whole

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
SOURCE_FIELDS = ("repo", "setup", "python", "time_pattern")
ABLATION_FIELDS = ("ablate", "only", "ablate_by")
OWN_FIELDS = ("cells", "flags", "contract", "qualify", "name", "baseline_name", "candidate_name", "aa", "keep_raw")
PLAN_FIELDS = ("plan", *ARM_FIELDS, *SOURCE_FIELDS, *OVERRIDES, *OWN_FIELDS, *ABLATION_FIELDS)


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
    candidate: str | None = repeatable(
        "--candidate",
        metavar="FLAGS",
        description="Flags of `generate` for the candidate. Needed with --baseline, unless a PLAN has one.",
    )
    baseline_command: str | None = flag(
        "--baseline-command",
        metavar="COMMAND",
        description="Any program as baseline; {perf_dump} and {output_dir} say where its results belong. Needs "
        "--candidate-command, --candidate or --aa.",
    )
    candidate_command: str | None = repeatable(
        "--candidate-command", metavar="COMMAND", description="Any program as candidate, with the same placeholders."
    )
    baseline_ref: str | None = flag(
        "--baseline-ref",
        metavar="REF",
        description="Run the baseline from a clean tree of this git branch, tag or SHA.",
    )
    candidate_ref: str | None = repeatable(
        "--candidate-ref", metavar="REF", description="Run the candidate from a clean tree of this one."
    )
    repo: str | None = flag(
        "--repo", metavar="DIR", description="The checkout of both refs. [default: the one of the present folder]"
    )
    setup: str | None = flag(
        "--setup", metavar="COMMAND", description="A line for sh that prepares the tree of each ref, run in it once."
    )
    python: str | None = flag(
        "--python", metavar="PATH", description="The interpreter of both arms; a relative path lies in a ref's tree."
    )
    time_pattern: str | None = flag(
        "--time-pattern",
        metavar="REGEX",
        description="For commands that only print their time: where it stands, its number in a group named s or ms, as "
        "'time: (?P<s>[0-9.]+) s'. It must match once; {perf_dump} is then left out of the commands.",
    )
    baseline_name: str | None = flag(
        "--baseline-name", metavar="NAME", description="What the report calls the baseline. [default: the plan's]"
    )
    candidate_name: str | None = repeatable(
        "--candidate-name", metavar="NAME", description="What the report calls the candidate."
    )
    ablate: str | None = flag(
        "--ablate",
        type=Name("fastpaths"),
        description="fastpaths: each fast path alone and each left out, in one campaign, with what they sum to "
        "(docs/ablation.md). Arms come from the PLAN's or from --flags.",
    )
    only: str | None = flag(
        "--only",
        metavar="NAMES",
        description="For --ablate: only these fast paths, separated by commas, a+b as one; what they need is added, "
        "and all others are one more unit. [default: each by itself]",
    )
    ablate_by: str | None = flag(
        "--ablate-by",
        type=Name("alone", "without", "both"),
        description="For --ablate: each alone, each left out, or both. [default: both]",
    )
    bench: str | None = flag(
        "--bench",
        metavar="FILE",
        description=f"For --ablate: {BENCH_HELP}",
    )
    cells: str | None = flag(
        "--cells", metavar="NAMES", description="Only these cells of the PLAN, separated by commas. [default: all]"
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
        description="Blocks of two slots an arm, the same number for every cell. [default: the plan's; else 2, and "
        "from three arms on as many as arms]",
    )
    order: str | None = flag(
        "--order",
        type=Name("mirrored", "ABBA", aliases={"abba": "ABBA"}),
        description="mirrored alternates A-B-B-A and B-A-A-B, against curved drift; of more arms each has every place "
        "in turn (ABCCBA BCAACB CABBAC). [default: the plan's, mirrored]",
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
    name: str | None = flag(
        "--name",
        metavar="NAME",
        description="The campaign's name. [default: the plan's; of refs, commands and named arms it is made of these]",
    )
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
    floor: str | None = flag("--floor", metavar="PATH", description=FLOOR_HELP)
    quick: bool = lone_switch(
        "--quick",
        description="Exploratory: switch the arms' fast paths inside one loaded process; numbers and hashes, no "
        "verdict, no folder.",
    )
    from_stored: str | None = flag(
        "--from",
        "from_stored",
        metavar="CAMPAIGN",
        description="A new campaign with the plan of a stored one (its folder or campaign.json), on this machine.",
    )
    aa: bool = lone_switch("--aa", description="Run the baseline as both arms, to see the noise of this machine.")
    dry_run: bool = lone_switch("--dry-run", description="Show slots, commands, time and space; run and write nothing.")
    resume: str | None = flag("--resume", metavar="DIR", description="Go on with an interrupted campaign.")
    add_blocks: int | None = whole(
        "--add-blocks",
        minimum=1,
        maximum=LARGEST_BLOCKS,
        description="For --resume of a complete campaign: so many blocks more, whole mirrored pairs, judged at a "
        "stricter level beside the earlier word.",
    )
    model_cache_root: str | None = flag(
        "--model-cache-root",
        metavar="DIR",
        description="Fetch weights into this folder before slot 1, and let every slot read them there. [default: the "
        "hub's own cache]",
    )
    cleanup_model_cache: bool = lone_switch(
        "--cleanup-model-cache",
        description="Remove from --model-cache-root what this campaign fetched, however it ends, and nothing else.",
    )
    gpus: str | None = flag(
        "--gpus",
        metavar="LIST",
        description="Run whole blocks side by side, one of these GPUs each, from first slot to last: 0,1 or UUIDs. "
        "[default: one block at a time, which sees all GPUs]",
    )
    executor: str = flag(
        "--executor",
        type=Name("local", "ray"),
        default="local",
        description="ray: blocks run side by side on the nodes of a Ray cluster, which all see the campaign folder; "
        "needs fuseproof[ray].",
    )
    gpus_per_block: int | None = whole(
        "--gpus-per-block",
        minimum=0,
        maximum=1,
        description="For --executor ray: what a block asks the cluster for, one GPU, or 0 for one CPU. [default: 1]",
    )
    allow_busy: bool = lone_switch(
        "--allow-busy",
        description="Start on a busy machine; disturbed slots, and slots too short to tell, cap the verdict.",
    )
    show: bool = lone_switch(
        "--show",
        description="Draw a picture of the candidate in the terminal too, where it can show one; nothing with --json.",
    )
    require: str | None = flag(
        "--require", type=Name("faster"), description="Exit with 5 unless every cell's verdict is FASTER."
    )
    require_fastpaths: bool = lone_switch(
        "--require-fastpaths", description="Exit with 6 unless the candidate's fast paths ran in every slot."
    )
    as_json: bool = False
    more_candidates: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Of the flags that repeat: what C, D, … are given."""

    def __post_init__(self) -> None:
        refuse_contradictions(self)

    @property
    def shapes_plan(self) -> bool:
        """Whether anything was said about what to measure."""
        return any(getattr(self, field) not in (None, False) for field in PLAN_FIELDS)


def options_from(flags: dict[str, Any]) -> AbbaOptions:
    """The options object of parsed flags."""
    known = {field.name for field in dataclasses.fields(AbbaOptions)}
    return AbbaOptions(**{key: value for key, value in parted(flags).items() if key in known})
