"""Campaigns whose outputs are videos: what decides, what is named, what a report shows, what verify recomputes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from fuseproof.harness.analysis.campaign import CampaignAnalysis, analyse
from fuseproof.harness.analysis.recorded_pairs import recorded_comparison
from fuseproof.harness.analysis.sentences import outputs_line
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.report import stale_files, write_report
from fuseproof.harness.report.layout import fits_main, fits_whole
from fuseproof.harness.report.sheet_columns import sheet_columns
from fuseproof.harness.verification.verify import verify_campaign
from tests.harness.campaign_builder import Run
from tests.harness.clip_samples import ClipCampaign, darkened, one_bit_changed, raw_clip

RAW = raw_clip()
CANDIDATE = "slots/panda/01-2-B"


def campaign(folder: Path, candidate: np.ndarray, *, contract: str = "exact", keeps_raw: bool = False) -> Path:
    builder = ClipCampaign(
        folder / "c", {1: RAW, 2: candidate}, keeps_raw=keeps_raw, blocks=1, cells={"panda": {"contract": contract}}
    )
    builder.block([Run(denoise_s=5.0, pictures=(1 if arm == "A" else 2,)) for arm in "ABBA"])
    return builder.write()


def analysed(folder: Path) -> CampaignAnalysis:
    return analyse(Campaign.open(folder))


def test_equal_raw_frames_are_identical_and_proven(tmp_path: Path) -> None:
    analysis = analysed(campaign(tmp_path, RAW))
    check = analysis.cells[0].outputs
    assert ("identical", "raw", True, ()) == (check.status, check.decided_by, check.keeps_contract, check.violations)


def test_equal_mp4_files_with_one_raw_bit_changed_are_never_lossless(tmp_path: Path) -> None:
    folder = campaign(tmp_path, one_bit_changed(RAW, 3))
    files = {path.read_bytes() for path in folder.glob("slots/panda/*/outputs/*.mp4")}
    assert 1 == len(files), "the encoder hides the difference"
    analysis = analysed(folder)
    check = analysis.cells[0].outputs
    assert ("pixels identical", False) == (check.status, check.keeps_contract)
    assert check.violations == (
        "2 of 4 outputs differ from the first baseline output in their raw arrays",
        "output 1 of panda/01-2-B: 1 of 4 raw frames differs (number 3) from the first baseline run's",
    )
    assert "contract exact is not met" in outputs_line(check)
    assert 4 == analysis.exit_code()


@pytest.mark.parametrize("kept", [4, 3], ids=["another-frame", "one-frame-fewer"])
def test_an_equal_hash_of_the_whole_with_another_of_a_frame_is_no_equality(kept: int, tmp_path: Path) -> None:
    folder = campaign(tmp_path, RAW)
    for slot in ("01-2-B", "01-3-B"):
        path = folder / f"slots/panda/{slot}/result.json"
        record = json.loads(path.read_text())
        frames = record["outputs"][0]["frames_sha256"]
        record["outputs"][0]["frames_sha256"] = [frames[0], "0" * 64, *frames[2:]][:kept]
        path.write_text(json.dumps(record))
    check = analysed(folder).cells[0].outputs
    assert ("pixels identical", False) == (check.status, check.keeps_contract)
    assert check.violations[0] == "2 of 4 outputs differ from the first baseline output in their raw arrays"
    assert all(len(shown) == 64 for shown in check.hashes)


def test_frames_sha256_has_a_line_for_each_raw_frame(tmp_path: Path) -> None:
    folder = campaign(tmp_path, one_bit_changed(RAW, 3))
    own, other = ((folder / f"slots/panda/{slot}/frames.sha256").read_text() for slot in ("01-1-A", "01-2-B"))
    assert [f"outputs/clip-0.mp4 frame {number}" for number in (1, 2, 3, 4)] == [
        line.split("  ")[1] for line in own.splitlines()
    ]
    changed = [a == b for a, b in zip(own.splitlines(), other.splitlines(), strict=True)]
    assert [True, True, False, True] == changed


def test_a_changed_frame_is_named_with_its_distances(tmp_path: Path) -> None:
    check = analysed(campaign(tmp_path, darkened(RAW, 2), contract="close:ssim>=0.92,psnr>=24")).cells[0].outputs
    assert not check.keeps_contract
    comparison = check.worst.comparison.to_json()  # type: ignore[union-attr]
    assert (4, 2, 2) == (comparison["frames"], comparison["worst_frame"], comparison["psnr_frame"])
    assert 2 in comparison["changed_frames"]
    assert comparison["psnr_db"] < 24 < comparison["mean_psnr_db"]
    assert "(frame 2), mean " in outputs_line(check)
    assert "is below 24 dB" in " ".join(check.violations)


def test_the_report_shows_frames_a_plot_and_keeps_its_limits(tmp_path: Path) -> None:
    folder = campaign(tmp_path, darkened(RAW, 2))
    write_report(folder)
    assert ["panda-difference-B.png", "panda-pair-B-A.png", "panda-pair-B-B.png", "panda-sheet.png"] == sorted(
        path.name for path in folder.glob("figures/*")
    )
    html, markdown = ((folder / name).read_text(encoding="utf-8") for name in ("report.html", "report.md"))
    assert "panda, output 1, frame 2: the worst pair of A and B" in html
    assert "PSNR of frames 1 to 4" in html and "SSIM of frames 1 to 4" in html
    assert 2 <= html.count('<polyline class="trace"')
    assert not re.search(r"!\[[^]]*\]\([^)]*\.mp4", markdown), "a video is no picture of a markdown page"
    assert fits_main(markdown) and fits_whole(markdown)
    assert [] == stale_files(analysed(folder))


def test_verify_recomputes_frames_metrics_and_kept_raw_frames(tmp_path: Path) -> None:
    folder = campaign(tmp_path, darkened(RAW, 2), keeps_raw=True)
    write_report(folder)
    verification = verify_campaign(folder)
    assert [] == [str(finding) for check in verification.checks for finding in check.findings]
    hashes = next(check for check in verification.checks if check.counts.get("frames decoded"))
    assert (16, 4) == (hashes.counts["frames decoded"], hashes.counts["raw arrays kept"])


@pytest.mark.parametrize(
    ("expected", "where", "old", "new"),
    [
        ("frames_sha256", f"{CANDIDATE}/result.json", "frames_sha256", None),
        ("fps", f"{CANDIDATE}/result.json", '"fps": 16.0', '"fps": 24.0'),
        ("pixels_sha256", f"{CANDIDATE}/result.json", "pixels_sha256", None),
        ("mean_psnr_db", "report.json", '"mean_psnr_db": ', '"mean_psnr_db": 9'),
    ],
)
def test_verify_finds_a_changed_hash_rate_or_metric(
    expected: str, where: str, old: str, new: str | None, tmp_path: Path
) -> None:
    folder = campaign(tmp_path, darkened(RAW, 2), keeps_raw=True)
    write_report(folder)
    path = folder / where
    text = path.read_text(encoding="utf-8")
    if new is None:
        values = json.loads(text)
        own = values["outputs"][0][old]
        values["outputs"][0][old] = ["0" * 64, *own[1:]] if isinstance(own, list) else "0" * 64
        text = json.dumps(values, indent=1)
    else:
        text = text.replace(old, new, 1)
    path.write_text(text, encoding="utf-8")
    found = [str(finding) for check in verify_campaign(folder).checks for finding in check.findings]
    assert any(expected in finding for finding in found), found


def test_a_comparison_is_read_back_from_the_report_as_it_was_made(tmp_path: Path) -> None:
    folder = campaign(tmp_path, darkened(RAW, 2))
    write_report(folder)
    before = analysed(folder).cells[0].outputs.to_json()
    pair = before["pairs"][0]
    recorded = recorded_comparison(folder, pair["baseline"], pair["candidate"])
    assert recorded is not None
    own = recorded.to_json()
    own["a"]["path"], own["b"]["path"] = pair["baseline"], pair["candidate"]
    assert pair["comparison"] == own


def test_a_long_video_shows_some_frames_and_the_worst_one_among_them(tmp_path: Path) -> None:
    raw = raw_clip(12)
    builder = ClipCampaign(tmp_path / "c", {1: raw, 2: darkened(raw, 5)}, blocks=1)
    builder.block([Run(denoise_s=5.0, pictures=(1 if arm == "A" else 2,)) for arm in "ABBA"])
    cell = analysed(builder.write()).cells[0]
    columns = sheet_columns(cell, 1, 6)
    assert [1, 3, 5, 8, 10, 12] == [column.frame for column in columns.shown]
    assert "6 of 12 frames drawn" == columns.rest
    assert ["output 1, frame 5"] == [column.title for column in columns.shown if columns.is_worst(column)]
