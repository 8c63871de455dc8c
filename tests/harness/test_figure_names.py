"""``report.md`` and a pull request name the drawn pictures; neither shows one that nobody serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuseproof.harness.analysis.campaign import analyse
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.report import write_report
from fuseproof.harness.report.figure_files import draw_figures
from fuseproof.harness.report.layout import main_part
from fuseproof.harness.report.pull_request import render_body
from fuseproof.harness.verification.verify import verify_campaign
from tests.harness.campaign_builder import CampaignBuilder, Run

DIFFERENCE = "`figures/panda-difference-B.png`"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A campaign of one block whose arms' pictures differ, with its report."""
    runs = [Run(pictures=(1 if arm == "A" else 2,)) for arm in "ABBA"]
    directory = CampaignBuilder(tmp_path / "c", blocks=1).block(runs).write()
    write_report(directory)
    return directory


def test_the_report_names_every_file_of_figures_outside_its_main_part(folder: Path) -> None:
    report = (folder / "report.md").read_text(encoding="utf-8")
    drawn = sorted(f"`figures/{path.name}`" for path in (folder / "figures").iterdir())
    assert DIFFERENCE in drawn and f"in the campaign folder: {', '.join(drawn)}; report.html shows them." in report
    assert "figures/" not in main_part(report) and "](figures/" not in report


def test_a_body_names_them_as_files_and_a_light_one_does_not(folder: Path) -> None:
    analysis = analyse(Campaign.open(folder))
    figures = draw_figures(analysis)
    body, _ = render_body(analysis, "c.zip", None, figures=figures)
    assert DIFFERENCE in body and "![" not in body
    light, _ = render_body(analysis, "c.zip", None, figures=figures, is_light=True)
    assert "figures/" not in light
    served, _ = render_body(analysis, "c.zip", "https://example.org/42/", figures=figures)
    assert DIFFERENCE not in served and "https://example.org/42/panda-difference-B.png" in served


def test_a_report_still_verifies_where_its_pictures_were_left_out(folder: Path) -> None:
    gone = [*(folder / "figures").iterdir(), folder / "report.html", *folder.glob("slots/*/*/outputs/*")]
    names = {path.relative_to(folder).as_posix() for path in gone}
    for path in gone:
        path.unlink()
    noted = (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines(keepends=True)
    left_out = "".join(line for line in noted if line.rstrip("\n").partition("  ")[2] in names)
    (folder / "left-out.txt").write_text(left_out, encoding="utf-8")
    (report,) = [check for check in verify_campaign(folder).checks if check.name == "report"]
    assert () == report.findings
