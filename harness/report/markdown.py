"""``report.md``: ready to paste into a pull request, and ``raw-runs.md`` for what would not fit there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from fuseproof.harness.analysis.campaign import CampaignAnalysis
from fuseproof.harness.report.build import build_document, build_raw_document
from fuseproof.harness.report.document import Document
from fuseproof.harness.report.figure_files import NO_FIGURES, Figures
from fuseproof.harness.report.figure_names import with_named_figures
from fuseproof.harness.report.layout import ABLATION_LAYOUTS, MAIN_LAYOUTS, Layout, fits_main, fits_whole
from fuseproof.harness.report.templates import environment

Revision = Callable[[Document], Document]


def _naming(revise: Revision, named: Sequence[str]) -> Revision:
    return lambda document: revise(with_named_figures(document, named))


def _unrevised(document: Document) -> Document:
    return document


def render_markdown(
    analysis: CampaignAnalysis,
    revise: Revision = _unrevised,
    figures: Figures = NO_FIGURES,
    named: Sequence[str] = (),
) -> str:
    """The whole report as GitHub markdown: main part below 6 kB, everything below 65,536 characters.

    ``revise`` may change the document before it is measured and rendered. ``figures`` are shown where it gives them
    an address; ``named`` are the paths of those that are not shown, only named.
    """
    if named:
        revise = _naming(revise, named)
    layout = _main_layout(analysis, revise, figures)
    text = render_document(revise(build_document(analysis, layout, figures)))
    for smaller in (dataclasses.replace(layout, has_raw_runs=False), _bare(layout)):
        if fits_whole(text):
            break
        text = render_document(revise(build_document(analysis, smaller, figures)))
    return text


def render_raw_runs(analysis: CampaignAnalysis) -> str:
    """``raw-runs.md``: all runs and all statistics, whatever their length."""
    return render_document(build_raw_document(analysis))


def moves_raw_runs(markdown: str) -> bool:
    """Whether a rendered report refers to ``raw-runs.md``."""
    from fuseproof.harness.report.ledger import RAW_RUNS_FILE

    return f"moved to {RAW_RUNS_FILE}" in markdown


def _main_layout(analysis: CampaignAnalysis, revise: Revision, figures: Figures) -> Layout:
    """The first layout whose main part is short enough, or the smallest there is; tried without the long details."""
    layouts = MAIN_LAYOUTS if analysis.plan.ablation is None else ABLATION_LAYOUTS
    tried = (
        layout
        for layout in layouts
        if fits_main(render_document(revise(build_document(analysis, _bare(layout), figures))))
    )
    return next(tried, layouts[-1])


def _bare(layout: Layout) -> Layout:
    return dataclasses.replace(layout, has_raw_runs=False, has_cell_details=False)


def render_document(document: Document) -> str:
    """Any document as GitHub markdown."""
    text = environment(is_html=False).get_template("report.md.j2").render(document=document)
    return text.rstrip("\n") + "\n"
