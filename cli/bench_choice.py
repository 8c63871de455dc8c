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

    UsageError where the campaign is no ablation or ran on another card, or its folder holds other times. Times that no
    report can be made with are not kept.
    """
    from fuseproof.harness.analysis.bench_conditions import differences_of_bench
    from fuseproof.harness.analysis.campaign import analyse
    from fuseproof.harness.campaign.folder import Campaign
    from fuseproof.harness.campaign.kept_bench import KEPT_BENCH, keep_bench, read_bench, take_out_bench
    from fuseproof.harness.report.figure_files import NO_FIGURES
    from fuseproof.harness.report.write import render_files

    bench, campaign = read_bench(path), Campaign.open(directory)
    if campaign.plan.ablation is None:
        raise UsageError(
            f"--bench is for an ablation, and {directory} is none.",
            next_step="`fuseproof abba --ablate fastpaths` measures one.",
        )
    other_card, _ = differences_of_bench(bench, campaign, analyse(campaign).cells)
    if other_card is not None:
        raise UsageError(
            f"--bench {path} holds times of another card: {other_card}.",
            next_step="Run `fuseproof fastpaths bench --model MODEL --json` on the campaign's card.",
        )
    if keep_bench(bench, campaign.directory):
        try:
            render_files(analyse(campaign), NO_FIGURES)
        except BaseException:
            take_out_bench(campaign.directory)
            raise
    return f"{directory}/{KEPT_BENCH} holds the times of {path}; report and SHA256SUMS of {directory} are written again"
