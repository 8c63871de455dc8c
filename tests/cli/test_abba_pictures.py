"""The end of ``fuseproof abba`` names the picture in which its arms' outputs differ."""

from __future__ import annotations

from pathlib import Path

from fuseproof.cli.abba import difference_pictures
from fuseproof.harness.report import write_report
from tests.harness.campaign_builder import CampaignBuilder, Run


def test_the_drawn_difference_is_named_where_outputs_differ_and_only_there(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c", cells=("same", "other"), blocks=1)
    for cell in ("same", "other"):
        builder.block([Run(pictures=(2 if (cell, arm) == ("other", "B") else 1,)) for arm in "ABBA"], cell=cell)
    folder = builder.write()
    assert [folder / "figures" / "other-difference-B.png"] == difference_pictures(write_report(folder))
