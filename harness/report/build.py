"""Put a report together: the sections in the order a pull request needs them, every text cleaned of private things."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from fuseproof.harness.analysis.campaign import CampaignAnalysis
from fuseproof.harness.report.ablation import ablation_section
from fuseproof.harness.report.claims import claims_section
from fuseproof.harness.report.document import Document, Figure, Paragraph, Pictures, Section, Side
from fuseproof.harness.report.figure_files import NO_FIGURES, Figures
from fuseproof.harness.report.layout import FULL, Layout
from fuseproof.harness.report.ledger import environment_section, limitations_section, raw_runs_section, raw_table
from fuseproof.harness.report.memory import memory_section
from fuseproof.harness.report.outputs import output_section
from fuseproof.harness.report.overview import setup_section, summary_section
from fuseproof.harness.report.privacy import Cleaner
from fuseproof.harness.report.reproduce import reproduce_section
from fuseproof.harness.report.results import result_section, statistics_details
from fuseproof.harness.report.telemetry import telemetry_section

Node = TypeVar("Node")

SECTIONS = (
    summary_section,
    setup_section,
    ablation_section,
    result_section,
    output_section,
    memory_section,
    telemetry_section,
    raw_runs_section,
    environment_section,
    reproduce_section,
    limitations_section,
    claims_section,
)
"""The order of a pull request's text; one that has nothing to say is left out."""


def build_document(analysis: CampaignAnalysis, layout: Layout = FULL, figures: Figures = NO_FIGURES) -> Document:
    """The report as a document; ``figures`` are the pictures that its output section shows."""
    built = [
        output_section(analysis, layout, figures) if build is output_section else build(analysis, layout)
        for build in SECTIONS
    ]
    sections = tuple(section for section in built if section is not None)
    return cleaned(Document(_title(analysis), sections, _word(analysis)))


def build_raw_document(analysis: CampaignAnalysis) -> Document:
    """The part that no pull request can hold: all runs and all statistics."""
    note = Paragraph("Every run of the campaign, in the order of its cells; the report beside this file explains it.")
    sections = (
        Section("Raw runs", (note, raw_table(analysis))),
        Section("Statistics", tuple(statistics_details(analysis))),
    )
    return cleaned(Document(f"{_title(analysis)}: raw runs", sections))


def _title(analysis: CampaignAnalysis) -> str:
    return analysis.plan.title or analysis.campaign.name


def _word(analysis: CampaignAnalysis) -> str:
    words = list(analysis.words())
    return words[0].value if len(words) == 1 else ""


def cleaned(document: Document) -> Document:
    """A copy without private things in any text; picture paths are relative already."""
    return _cleaned(document, Cleaner())


def _cleaned(node: Node, cleaner: Cleaner) -> Node:
    result: Any = node
    if isinstance(node, str):
        result = cleaner.text(node)
    elif isinstance(node, tuple):
        result = tuple(_cleaned(entry, cleaner) for entry in node)
    elif dataclasses.is_dataclass(node) and not isinstance(node, type | Pictures | Side | Figure):
        changes = {field.name: _cleaned(getattr(node, field.name), cleaner) for field in dataclasses.fields(node)}
        result = dataclasses.replace(node, **changes)
    return result  # type: ignore[no-any-return]
