"""What a declared flag explains is the treatment, a disagreement has its right name, a floor of 0 dB judges nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuseproof.harness.analysis.campaign import analyse
from fuseproof.harness.analysis.effects import point_doubt
from fuseproof.harness.analysis.sentences import outputs_line
from fuseproof.harness.analysis.treatment import treatment_text
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.report import render_markdown
from fuseproof.harness.statistics.comparison import Block
from fuseproof.harness.statistics.verdict import decide
from tests.harness.campaign_builder import CampaignBuilder, Run

KERNEL = {"fastpaths_from": "k.py", "fastpaths_from_sha256": "ab" * 32}
NOTHING = {"fastpaths_from": None, "fastpaths_from_sha256": None}


def test_a_file_that_a_flag_names_and_its_hash_are_declared(tmp_path: Path) -> None:
    flags = {"baseline_flags": "--fastpaths=auto", "candidate_flags": "--fastpaths=auto --fastpaths-from k.py"}
    builder = CampaignBuilder(tmp_path / "c", blocks=1, **flags)
    builder.block([Run(config=KERNEL if arm == "B" else NOTHING) for arm in "ABBA"])
    analysis = analyse(Campaign.open(builder.write()))
    assert "Arms differ only in: --fastpaths-from (nothing against k.py)." == treatment_text(analysis)
    assert () == analysis.cells[0].equal_work.notes
    assert "the arms differ by declaration in fastpaths_from" in render_markdown(analysis)


@pytest.mark.parametrize(
    ("seconds", "code", "said"),
    [
        pytest.param((0.9, 2.81323, 1.8991, 0.593), None, None, id="half a point of a slowdown to three times"),
        pytest.param((10.0, 9.0, 14.0, 10.0), "MEANS_DISAGREE", "arithmetic and geometric means disagree", id="means"),
    ],
)
def test_a_disagreement_is_named_by_the_comparison_that_fires(
    seconds: tuple[float, ...], code: str | None, said: str | None
) -> None:
    verdict = decide([Block("ABBA", seconds)])
    codes = {warning.code for warning in verdict.warnings}
    assert (set() if code is None else {code}) == {own for own in codes if "DISAGREE" in own}
    assert said is None or said == point_doubt(verdict)


def test_a_contract_that_accepts_anything_is_called_no_judgement(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c", blocks=1, cells={"panda": {"contract": "close:psnr>=0"}})
    builder.block([Run(pictures=(2 if arm == "B" else 1,)) for arm in "ABBA"])
    analysis = analyse(Campaign.open(builder.write()))
    assert "contract close:psnr>=0 accepts any picture: the outputs are not judged" in outputs_line(
        analysis.cells[0].outputs
    )
    assert "| close:psnr>=0: accepts any picture, not judged |" in render_markdown(analysis)
