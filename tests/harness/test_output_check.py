"""Equality at three levels, determinism first, the worst case named, degenerate outputs flagged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fuseproof.harness.analysis.campaign import CampaignAnalysis, analyse
from fuseproof.harness.analysis.output_check import OutputCheck
from fuseproof.harness.analysis.sentences import outputs_line
from fuseproof.harness.campaign.folder import Campaign
from tests.harness.campaign_builder import DEGENERATE_PICTURE, CampaignBuilder, Run

CLOSE = "close:ssim>=0.5,psnr>=28"
TOO_CLOSE = "close:psnr>=60"


def checked(
    folder: Path,
    pictures: Mapping[str, Sequence[Sequence[int]]],
    *,
    contract: str = "exact",
    **fields: Any,
) -> CampaignAnalysis:
    """Two blocks; ``pictures`` gives each arm's pictures run by run (the last repeats)."""
    builder = CampaignBuilder(folder / "c", cells={"panda": {"contract": contract}})
    seen = {"A": 0, "B": 0}
    for index, way in enumerate(("ABBA", "BAAB")):
        runs = []
        for arm in way:
            rows = pictures[arm]
            more = {key: value[arm] if isinstance(value, dict) else value for key, value in fields.items()}
            runs.append(Run(pictures=rows[min(seen[arm], len(rows) - 1)], **more))
            seen[arm] += 1
        builder.block(runs, block=index + 1)
    return analyse(Campaign.open(builder.write()))


def outputs(analysis: CampaignAnalysis) -> OutputCheck:
    return analysis.cells[0].outputs


def codes(check: OutputCheck) -> list[str]:
    return [warning.code for warning in check.warnings]


def test_identical_outputs(tmp_path: Path) -> None:
    analysis = checked(tmp_path, {"A": [(1,)], "B": [(1,)]})
    check = outputs(analysis)
    assert ("identical", "raw", True) == (check.status, check.decided_by, check.keeps_contract)
    assert ["file", "pixels", "raw"] == [level.level for level in check.levels]
    assert all(level.is_equal for level in check.levels)
    assert () == check.pairs
    assert "Outputs: identical (8 of 8 equal in raw arrays); both arms deterministic; contract exact holds." == (
        outputs_line(check)
    )
    assert 0 == analysis.exit_code()


def test_raw_difference_behind_equal_pixels_breaks_exactness(tmp_path: Path) -> None:
    analysis = checked(tmp_path, {"A": [(1,)], "B": [(1,)]}, raw_shift={"A": 0, "B": 5})
    check = outputs(analysis)
    assert "pixels identical" == check.status
    assert not check.keeps_contract
    assert "4 of 8 outputs differ from the first baseline output in their raw arrays" in check.violations[0]
    assert 4 == analysis.exit_code()


def test_raw_difference_behind_equal_pixels_keeps_a_close_contract(tmp_path: Path) -> None:
    analysis = checked(tmp_path, {"A": [(1,)], "B": [(1,)]}, contract=CLOSE, raw_shift={"A": 0, "B": 5})
    assert outputs(analysis).keeps_contract
    assert 0 == analysis.exit_code()


def test_other_file_bytes_with_equal_pixels_are_pixel_equal(tmp_path: Path) -> None:
    check = outputs(checked(tmp_path, {"A": [(1,)], "B": [(1,)]}, compress_level={"A": 1, "B": 9}))
    assert [False, True, True] == [level.is_equal for level in check.levels]
    assert "identical" == check.status
    assert check.keeps_contract


def test_pixels_decide_without_raw_hashes(tmp_path: Path) -> None:
    check = outputs(checked(tmp_path, {"A": [(1,)], "B": [(1,)]}, has_raw=False))
    assert ("identical", "pixels", True) == (check.status, check.decided_by, check.keeps_contract)


@pytest.mark.parametrize(
    ("contract", "keeps", "exit_code"),
    [
        pytest.param("exact", False, 4, id="exact is broken"),
        pytest.param(CLOSE, True, 0, id="close holds"),
        pytest.param(TOO_CLOSE, False, 4, id="too close is broken"),
    ],
)
def test_different_pixels_are_measured(tmp_path: Path, contract: str, keeps: bool, exit_code: int) -> None:
    analysis = checked(tmp_path, {"A": [(1,)], "B": [(2,)]}, contract=contract)
    check = outputs(analysis)
    (pair,) = check.pairs
    assert "different" == check.status
    assert pair.comparison is not None
    assert pair.comparison.psnr_db is not None and 28 < pair.comparison.psnr_db < 60
    assert keeps is check.keeps_contract
    assert exit_code == analysis.exit_code()
    assert "SSIM 0." in outputs_line(check) and "of values differ" in outputs_line(check)


def test_broken_close_contract_names_the_number(tmp_path: Path) -> None:
    check = outputs(checked(tmp_path, {"A": [(1,)], "B": [(2,)]}, contract=TOO_CLOSE))
    assert "PSNR" in check.violations[0] and "is below 60 dB" in check.violations[0]
    assert "slots/panda/01-2-B/outputs/image-0.png" in check.violations[0]


@pytest.mark.parametrize(
    "candidate",
    [
        pytest.param([(1,), (2,)], id="the first candidate run equals the baseline"),
        pytest.param([(2,), (3,)], id="no candidate run equals the baseline"),
    ],
)
def test_only_the_candidate_wavers(tmp_path: Path, candidate: list[tuple[int, ...]]) -> None:
    analysis = checked(tmp_path, {"A": [(1,)], "B": candidate})
    check = outputs(analysis)
    assert [True, False] == [arm.is_deterministic for arm in check.determinism]
    assert ["CANDIDATE_NONDETERMINISM"] == codes(check)
    assert "candidate runs differ among themselves" in check.violations[0]
    assert "candidate NON-DETERMINISTIC (2 different outputs in 4 runs)" in outputs_line(check)
    assert 4 == analysis.exit_code()


def test_wavering_baseline_cannot_show_exactness(tmp_path: Path) -> None:
    check = outputs(checked(tmp_path, {"A": [(1,), (2,)], "B": [(1,)]}))
    assert ["BASELINE_NONDETERMINISM"] == codes(check)
    assert not check.keeps_contract


@pytest.mark.parametrize("contract", ["exact", CLOSE])
def test_degenerate_agreement_proves_nothing(tmp_path: Path, contract: str) -> None:
    pictures = {"A": [(DEGENERATE_PICTURE,)], "B": [(DEGENERATE_PICTURE,)]}
    analysis = checked(tmp_path, pictures, contract=contract)
    check = outputs(analysis)
    assert "identical" == check.status
    assert "degenerate (constant)" in check.degenerate[0]
    assert not check.keeps_contract
    assert "proves nothing" in outputs_line(check)
    assert 4 == analysis.exit_code()


def test_same_output_for_every_prompt_proves_nothing(tmp_path: Path) -> None:
    check = outputs(checked(tmp_path, {"A": [(1, 1)], "B": [(1, 1)]}, prompts=("a cat", "a dog")))
    assert "the baseline gives the same output for every prompt" in check.degenerate[0]


def test_worst_of_several_prompts_decides_and_is_named(tmp_path: Path) -> None:
    prompts = ("one", "two", "three", "four")
    pictures = {"A": [(1, 2, 3, 4)], "B": [(1, 2, 99, 4)]}
    check = outputs(checked(tmp_path, pictures, contract="close:psnr>=60", prompts=prompts))
    assert check.worst is not None
    assert (2, "three") == (check.worst.request, check.worst.prompt)
    assert "output 3 (“three”) of panda/01-2-B" in outputs_line(check)
    assert len(check.violations) == 1


def test_unreadable_output_is_named_and_the_others_still_compared(tmp_path: Path) -> None:
    checked(tmp_path, {"A": [(1, 2)], "B": [(3, 4)]})
    slot = tmp_path / "c/slots/panda/01-2-B"
    (slot / "outputs/image-0.png").write_bytes(b"<html>")
    result = json.loads((slot / "result.json").read_text(encoding="utf-8"))
    result["outputs"][0]["file_sha256"] = hashlib.sha256(b"<html>").hexdigest()
    (slot / "result.json").write_text(json.dumps(result), encoding="utf-8")
    check = outputs(analyse(Campaign.open(tmp_path / "c")))
    assert [None, "different"] == [pair.comparison and pair.comparison.equality for pair in check.pairs]
    assert check.pairs[0].error is not None
    assert "slots/panda/01-2-B/outputs/image-0.png" in check.pairs[0].error
    assert str(tmp_path) not in check.pairs[0].error


def test_lossy_files_without_raw_hashes_cannot_show_exactness(tmp_path: Path) -> None:
    path = {"path": "outputs/x.jpg"}
    more = {"has_raw": False, "output_overrides": {"A": path, "B": path}}
    check = outputs(checked(tmp_path, {"A": [(1,)], "B": [(1,)]}, **more))
    assert ".jpg is a lossy container, so exactness cannot be shown" in check.violations


def test_arms_without_outputs_are_not_compared(tmp_path: Path) -> None:
    check = outputs(checked(tmp_path, {"A": [()], "B": [()]}))
    assert ("none", None, ["NO_OUTPUTS"]) == (check.status, check.decided_by, codes(check))
    assert check.keeps_contract
