"""A report that an earlier version rendered is verified in its own words, and rendered anew in today's."""

from __future__ import annotations

import json
from pathlib import Path

from fuseproof.harness.analysis.campaign import analyse
from fuseproof.harness.analysis.editions import COUNTED_LEAD, EDITION, UNCOUNTED_LEAD, stored_editions
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.report import write_report
from fuseproof.harness.report.figure_files import draw_figures
from fuseproof.harness.report.sums import checksums
from fuseproof.harness.report.write import render_files
from fuseproof.harness.verification.rendered import EARLIER_WORDS
from fuseproof.harness.verification.verify import verify_campaign
from tests.harness.campaign_builder import CampaignBuilder, Run

CELLS = ("a", "b", "c", "d")


def folder_of_edition(directory: Path, edition: int) -> Path:
    """Four cells, one of them with wrong pictures and a slow load, as this edition rendered and signed it."""
    builder = CampaignBuilder(directory, cells=CELLS, blocks=1)
    for cell in CELLS:
        wrong = {"pictures": (2,)} if cell == "c" else {}
        runs = [
            Run(worker_s=9.5, load_s=3.0, warmup_s=2.0, **wrong) if arm == "B" else Run(load_s=1.0, warmup_s=1.0)
            for arm in "ABBA"
        ]
        builder.block(runs, cell=cell)
    write_report(builder.write())
    analysis = analyse(Campaign.open(directory), edition=edition)
    for name, text in render_files(analysis, draw_figures(analysis)).items():
        (directory / name).write_text(text, encoding="utf-8", errors="surrogateescape")
    (directory / "SHA256SUMS").write_text(checksums(analysis.campaign), encoding="utf-8", errors="surrogateescape")
    return directory


def notes_of(directory: Path) -> list[str]:
    return [note for check in verify_campaign(directory).checks if check.name == "report" for note in check.notes]


def report_findings(directory: Path) -> list[str]:
    checks = verify_campaign(directory).checks
    return [finding.text for check in checks if check.name == "report" for finding in check.findings]


def test_every_edition_is_verified_in_its_own_words(tmp_path: Path) -> None:
    for edition in (UNCOUNTED_LEAD, COUNTED_LEAD, EDITION):
        folder = folder_of_edition(tmp_path / str(edition), edition)
        assert [] == report_findings(folder)
        assert ([] if edition == EDITION else [EARLIER_WORDS]) == notes_of(folder)


def test_a_line_that_was_changed_in_an_earlier_report_is_found(tmp_path: Path) -> None:
    folder = folder_of_edition(tmp_path / "c", COUNTED_LEAD)
    report = (folder / "report.md").read_text(encoding="utf-8")
    (folder / "report.md").write_text(report.replace("→ 9.5000", "→ 8.5000", 1), encoding="utf-8")
    (found,) = report_findings(folder)
    assert found.startswith("report.md: line ") and "8.5000" in found


def test_an_earlier_schema_hides_nothing_that_decides(tmp_path: Path) -> None:
    """Whoever names an old schema gets fewer lines, and no other word or exit code."""
    campaign = Campaign.open(folder_of_edition(tmp_path / "c", EDITION))
    words = {
        (analyse(campaign, edition=e).exit_code(), *analyse(campaign, edition=e).words()) for e in range(EDITION + 1)
    }
    assert 1 == len(words)


def test_a_report_is_rendered_again_in_todays_words(tmp_path: Path) -> None:
    folder = folder_of_edition(tmp_path / "c", COUNTED_LEAD)
    write_report(folder)
    assert EDITION == stored_editions(folder / "report.json")[0]
    assert "fuseproof.report/2" == json.loads((folder / "report.json").read_text(encoding="utf-8"))["schema"]
