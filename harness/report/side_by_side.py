"""Two campaigns side by side: both results of every workload, and what differs between the setups.

Nothing is pooled and nothing is computed across the campaigns: each word and interval is the one of its own folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fuseproof.errors import UsageError
from fuseproof.harness.analysis.campaign import EXIT_DONE, EXIT_INVALID, CampaignAnalysis, CellAnalysis, analyse
from fuseproof.harness.analysis.effects import block_text, interval_text, percent_text, point_doubt
from fuseproof.harness.analysis.sentences import outputs_line, standing_notes, verdict_line, warning_texts
from fuseproof.harness.campaign.folder import PERF_FILE, Campaign
from fuseproof.harness.number_format import MISSING, count
from fuseproof.harness.report.build import cleaned
from fuseproof.harness.report.document import Bullets, Code, Document, Paragraph, Part, Section, Strong, Table, Text
from fuseproof.harness.report.markdown import render_document
from fuseproof.harness.report.privacy import Cleaner
from fuseproof.harness.report.setup_facts import SUBJECTS, SetupDifference, commits, setup_differences
from fuseproof.harness.report.sums import evidence_lines, refuse_changed_evidence

RESULT_HEAD = ("Workload", "Campaign", "Timer", "Reduction", "Interval", "Blocks", "Verdict", "Contract")
MOST_DIFFERENCES = 60
MOST_WARNINGS = 60
SIDES = ("first", "second")
ABSENT = "not in this campaign"
CAVEAT = (
    "Each word and interval is that of its own campaign. Whether the two effects differ from each other was not "
    "tested, and overlapping intervals do not show that they are equal."
)


@dataclass(frozen=True)
class CampaignPair:
    """Two campaigns and what their setups differ in."""

    first: CampaignAnalysis
    second: CampaignAnalysis
    differences: tuple[SetupDifference, ...]
    shared: int = 0
    """How many perf dumps of the first are also the second's, byte for byte."""
    dumps: tuple[int, int] = (0, 0)

    @property
    def sides(self) -> tuple[tuple[str, CampaignAnalysis], tuple[str, CampaignAnalysis]]:
        """Both campaigns with the word that names them."""
        return (SIDES[0], self.first), (SIDES[1], self.second)

    @property
    def cell_names(self) -> list[str]:
        """The cells of the first, then those that only the second has."""
        return list(dict.fromkeys(cell.name for _, side in self.sides for cell in side.cells))

    @property
    def same_runs(self) -> str | None:
        """That both folders hold the same runs, where they do: a copy is no second measurement."""
        if not self.shared:
            return None
        is_whole = self.dumps == (self.shared, self.shared)
        what = "Both folders hold the same campaign" if is_whole else "The campaigns share runs"
        amounts = f"{self.dumps[0]} and {self.dumps[1]}"
        return f"{what}: {count(self.shared, 'perf dump')} of {amounts} are equal, byte for byte."

    @property
    def head(self) -> tuple[str, ...]:
        """What is said first of the two."""
        return (self.not_pooled,) if self.same_runs is None else (self.same_runs, self.not_pooled)

    @property
    def not_pooled(self) -> str:
        """Why these blocks are not one sample."""
        subjects = [name for name in SUBJECTS if any(found.subject == name for found in self.differences)]
        if subjects:
            return f"Not pooled: {', '.join(f'different {name}' for name in subjects)}."
        return (
            "Not pooled: two campaigns are two measurements, although no difference between their setups was recorded."
        )

    def exit_code(self) -> int:
        """6 where either campaign is invalid, else 0: a comparison of two results judges neither."""
        codes = {code for _, side in self.sides for cell in side.cells for code in cell.exit_codes()}
        return EXIT_INVALID if EXIT_INVALID in codes else EXIT_DONE


def read_pair(first: Path | str, second: Path | str) -> CampaignPair:
    """Judge two campaign folders; nothing is written.

    Raises :class:`UsageError` when both are the same folder, :class:`FuseproofError` for a damaged folder or one whose
    measurements are no longer what its ``SHA256SUMS`` lists.
    """
    if Path(first).resolve() == Path(second).resolve():
        raise UsageError(f"{first} and {second} are the same folder.", next_step="Name two campaigns.")
    sides = [_analysed(folder) for folder in (first, second)]
    dumps = [found for _, found in sides]
    shared = sum((Counter(dumps[0]) & Counter(dumps[1])).values())
    one, other = sides[0][0], sides[1][0]
    return CampaignPair(one, other, setup_differences(one, other), shared, (len(dumps[0]), len(dumps[1])))


def _analysed(folder: Path | str) -> tuple[CampaignAnalysis, list[str]]:
    """The judged campaign, and the hashes of its perf dumps."""
    campaign = Campaign.open(folder)
    lines = evidence_lines(campaign)
    refuse_changed_evidence(campaign, lines)
    dumps = [line.partition("  ")[0] for name, line in lines.items() if name.endswith(f"/{PERF_FILE}")]
    return analyse(campaign), dumps


def pair_lines(pair: CampaignPair) -> list[str]:
    """The comparison as lines of plain text, without private things."""
    lines = [f"{word}: {_campaign_text(side)}" for word, side in pair.sides]
    lines += pair.head
    for name in pair.cell_names:
        lines.append(name)
        for word, side in pair.sides:
            cell = _cell(side, name)
            lines += [f"  {word}: {ABSENT}"] if cell is None else _cell_lines(word, cell)
    lines += [f"{d.subject}: {d.name}: {d.first} | {d.second}" for d in pair.differences[:MOST_DIFFERENCES]]
    lines += [_hidden_text(pair)] if _hidden_text(pair) else []
    lines += [f"note: {text}" for text in (*_notes(pair), CAVEAT)]
    clean = Cleaner().text
    return [clean(line) for line in lines]


def _cell_lines(word: str, cell: CellAnalysis) -> list[str]:
    verdict = verdict_line(cell).replace(f"{cell.word.value}: {cell.name}: ", f"{cell.word.value}: ", 1)
    warnings = [f"    warning: {text}" for text in warning_texts(cell)]
    return [f"  {word}: {verdict}", f"    {outputs_line(cell.outputs)}", *warnings]


def render_pair(pair: CampaignPair) -> str:
    """The comparison as GitHub markdown."""
    rows = [row for name in pair.cell_names for row in _rows(pair, name)]
    result: tuple[Part, ...] = (
        *(Paragraph(Strong(text)) for text in pair.head),
        Bullets(tuple((Strong(word), f": {_campaign_text(side)}") for word, side in pair.sides)),
        Table(RESULT_HEAD, tuple(rows), numeric=range(3, 5)),
        Paragraph(CAVEAT),
    )
    notes: list[Text] = [*_notes(pair), *_warnings(pair)]
    sections = (
        Section("Side by side", result),
        Section("Setup differences", tuple(_difference_parts(pair))),
        *((Section("Limitations", (Bullets(tuple(notes)),)),) if notes else ()),
    )
    return render_document(cleaned(Document("Two campaigns side by side", sections)))


def _campaign_text(side: CampaignAnalysis) -> str:
    campaign = side.campaign
    title = side.plan.title or campaign.name
    return f"{side.directory.resolve().name}: {title}, plan {campaign.name}, {campaign.created}, {campaign.status}"


def _cell(side: CampaignAnalysis, name: str) -> CellAnalysis | None:
    return next((cell for cell in side.cells if cell.name == name), None)


def _rows(pair: CampaignPair, name: str) -> list[tuple[Text, ...]]:
    rows: list[tuple[Text, ...]] = []
    for index, (word, side) in enumerate(pair.sides):
        cell = _cell(side, name)
        title: Text = Strong(name) if index == 0 else ""
        if cell is None:
            rows.append((title, word, *[MISSING] * 4, ABSENT, MISSING))
        else:
            rows.append((title, word, *_numbers(cell), _verdict(cell), _contract(cell)))
    return rows


def _numbers(cell: CellAnalysis) -> tuple[str, str, str, str]:
    comparison = cell.verdict.comparison
    if cell.primary is None or comparison is None:
        return (MISSING, MISSING, MISSING, f"{len(cell.runs.blocks)} of {cell.runs.planned_blocks}")
    point = (
        percent_text(comparison.reduction)
        if point_doubt(cell.verdict, is_ablation=cell.is_ablation) is None
        else "not quoted"
    )
    level = comparison.level_text
    return (
        cell.primary.title,
        point,
        f"{interval_text(comparison, comparison.interval_used, is_ablation=cell.is_ablation)} ({level})",
        block_text(comparison),
    )


def _verdict(cell: CellAnalysis) -> Text:
    headline = cell.verdict.headline
    return Strong(cell.word.value if headline is None else f"{cell.word.value} ({headline.code})")


def _contract(cell: CellAnalysis) -> str:
    outputs = cell.outputs
    if outputs.decided_by is None:
        return f"{outputs.contract}: nothing to compare"
    return f"{outputs.contract}: {'holds' if outputs.keeps_contract else 'NOT MET'}"


def _difference_parts(pair: CampaignPair) -> list[Part]:
    if not pair.differences:
        return [Paragraph("None in machine, versions, settings, commits or plan, as far as the campaigns record them.")]
    shown = pair.differences[:MOST_DIFFERENCES]
    rows = tuple((found.subject, found.name, Code(found.first), Code(found.second)) for found in shown)
    hidden = _hidden_text(pair)
    return [Table(("", "What", "First", "Second"), rows), *((Paragraph(hidden),) if hidden else ())]


def _hidden_text(pair: CampaignPair) -> str:
    hidden = len(pair.differences) - MOST_DIFFERENCES
    return f"{count(hidden, 'more difference')}; see both campaign.json." if hidden > 0 else ""


def _notes(pair: CampaignPair) -> list[str]:
    """What holds for either campaign, and the commits that nobody recorded."""
    found = [f"{word}: {note}" for word, side in pair.sides for note in standing_notes(side)]
    known = [commits(side) for _, side in pair.sides]
    blind = [arm for arm in ("baseline", "candidate") if not any(arm in side for side in known)]
    if blind:
        found.append(f"neither campaign recorded a commit of the {' or the '.join(blind)}")
    return found


def _warnings(pair: CampaignPair) -> Sequence[Text]:
    found: list[Text] = [
        (f"{word}: ", Strong(cell.name), f": {text}")
        for word, side in pair.sides
        for cell in side.cells
        for text in warning_texts(cell)
    ]
    hidden = len(found) - MOST_WARNINGS
    return [*found[:MOST_WARNINGS], *([f"{count(hidden, 'more warning')} in both report.json."] if hidden > 0 else [])]
