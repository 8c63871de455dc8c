"""``--bench``: times of single kernels, kept in the folder of an ablation and held against what was measured there."""

from __future__ import annotations

from fuseproof.errors import UsageError

HELP = (
    "what `fastpaths bench --json` printed on this card, kept in the folder; the report holds its microseconds a call "
    "against what was measured."
)
REPORT_HELP = f"Of an ablation: {HELP} Writes into DIR, and says so."


def keep_chosen_bench(directory: str, path: str) -> str:
    """Copy the times at ``path`` into the folder of an ablation that was measured already; says what was written.

    UsageError where the campaign is no ablation, or its folder holds other times.
    """
    from fuseproof.harness.campaign.folder import Campaign
    from fuseproof.harness.campaign.kept_bench import KEPT_BENCH, keep_bench, read_bench

    bench, campaign = read_bench(path), Campaign.open(directory)
    if campaign.plan.ablation is None:
        raise UsageError(
            f"--bench is for an ablation, and {directory} is none.",
            next_step="`fuseproof abba --ablate fastpaths` measures one.",
        )
    keep_bench(bench, campaign.directory)
    return f"{directory}/{KEPT_BENCH} holds the times of {path}; report and SHA256SUMS of {directory} are written again"
