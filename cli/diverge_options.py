"""Every flag of ``fuseproof diverge``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuseproof.cli.option_fields import PathText, flag
from fuseproof.errors import UsageError

if TYPE_CHECKING:
    from fuseproof.schedules.plan import Plan


@dataclass(frozen=True, kw_only=True)
class DivergeOptions:
    """The flags as parsed. Building one checks every rule between flags and raises :class:`UsageError`."""

    baseline: str | None = flag(
        "--baseline",
        metavar="FLAGS",
        description="Flags of `generate` for the baseline. Left out, it is `generate` with the shared flags alone.",
    )
    candidate: str | None = flag("--candidate", metavar="FLAGS", description="Flags of `generate` for the candidate.")
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
    setup: str | None = flag(
        "--setup", metavar="COMMAND", description="A line for sh that prepares the tree of each ref, run in it once."
    )
    python: str | None = flag(
        "--python", metavar="PATH", description="The interpreter of both arms; a relative path lies in a ref's tree."
    )
    flags: str | None = flag(
        "--flags",
        metavar="FLAGS",
        description="Flags of `generate` that both arms share: model, prompt, size, steps, seed. [default: a small "
        "request on the embedded model]",
    )
    json: str | None = flag(
        "--json", type=PathText(), metavar="FILE", description="Write all that was found as strict JSON; - is stdout."
    )

    def __post_init__(self) -> None:
        if self.candidate is None and self.candidate_ref is None:
            raise UsageError(
                "there is no candidate, so there is nothing to compare with.",
                next_step='Add --candidate "FLAGS" or --candidate-ref REF.',
            )

    def plan(self) -> Plan:
        """The arms as ``fuseproof abba`` makes them of the same flags; raises :class:`UsageError`."""
        from fuseproof.cli.abba_options import AbbaOptions
        from fuseproof.cli.abba_plan import build_plan

        names = ("baseline", "candidate", "baseline_ref", "candidate_ref", "repo", "setup", "python", "flags")
        return build_plan(AbbaOptions(**{name: getattr(self, name) for name in names}))
