"""Every kind of lie about a campaign is found, whoever signed it, and named with file and value."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuseproof.errors import FuseproofError
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.media.files import array_sha256, file_sha256
from fuseproof.harness.report import write_report
from fuseproof.harness.report.sums import checksums
from fuseproof.harness.verification.findings import Finding, Verification
from fuseproof.harness.verification.verify import verify_campaign
from tests.harness.campaign_builder import CampaignBuilder, Run, picture_png

FASTER = ((10.0, 9.5, 9.51, 10.02), (9.52, 10.01, 10.03, 9.5))
SLOT = "slots/panda/01-2-B"
PICTURE = f"{SLOT}/outputs/image-0.png"
PERF, RESULT = f"{SLOT}/perf.json", f"{SLOT}/result.json"

Lie = Callable[[Path], None]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed campaign whose arms' pictures differ, so that there are metrics."""
    builder = CampaignBuilder(tmp_path_factory.mktemp("t") / "c", cells={"panda": {"contract": "close: ssim>=0.5"}})
    for index, (way, row) in enumerate(zip(("ABBA", "BAAB"), FASTER, strict=True)):
        runs = [
            Run(worker_s=s, denoise_s=5.0, pictures=(1 if arm == "A" else 2,), work={"transformer_calls": 8})
            for arm, s in zip(way, row, strict=True)
        ]
        builder.block(runs, block=index + 1)
    folder = builder.write()
    write_report(folder)
    return folder


@pytest.fixture
def folder(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "c"))


def sign(folder: Path) -> None:
    """What somebody who edits a file would do."""
    (folder / "SHA256SUMS").write_text(checksums(Campaign.open(folder)), encoding="utf-8")


def put(file: str, *keys: str | int, value: Any) -> Lie:
    def change(folder: Path) -> None:
        document = json.loads((folder / file).read_text(encoding="utf-8"))
        values = document
        for key in keys[:-1]:
            values = values[key]
        values[keys[-1]] = value
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        (folder / file).write_text(text, encoding="utf-8")

    return change


def replace(file: str, old: str, new: str) -> Lie:
    def change(folder: Path) -> None:
        text = (folder / file).read_text(encoding="utf-8")
        assert old in text
        (folder / file).write_text(text.replace(old, new, 1), encoding="utf-8")

    return change


def write(file: str, content: bytes) -> Lie:
    def change(folder: Path) -> None:
        (folder / file).write_bytes(content)

    return change


def remove(name: str) -> Lie:
    def change(folder: Path) -> None:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


def failed(verification: Verification) -> set[str]:
    return {check.name for check in verification.checks if check.findings}


def first(verification: Verification) -> Finding:
    found = verification.first
    assert found is not None
    return found


def test_campaign_that_says_what_it_holds(folder: Path) -> None:
    verification = verify_campaign(folder)
    assert [] == [finding.text for finding in verification.findings]
    assert verification.is_verified and verification.first is None
    totals = verification.totals()
    assert {"records": 8, "hashes": 32, "metrics": 4} == {key: totals[key] for key in ("records", "hashes", "metrics")}
    notes = [note for check in verification.checks for note in check.notes]
    assert any("16 hashes recorded, not recomputed" in note and "8 of raw arrays" in note for note in notes)


LIES = [
    pytest.param(put(PERF, "timers", "worker_ms", value=9600.0), "9.6", RESULT, "numbers", id="perf"),
    pytest.param(put(PERF, "timers", "denoise_ms", value=4000.0), "4.0", RESULT, "numbers", id="perf denoise"),
    pytest.param(put(RESULT, "times", "worker_s", value=9.4), "9.4", RESULT, "numbers", id="result"),
    pytest.param(put(RESULT, "times", "save_s", value=1.0), "1.0", RESULT, "numbers", id="invented timer"),
    pytest.param(put(RESULT, "times", "denoise_s", value=None), "nothing", RESULT, "numbers", id="hidden timer"),
    pytest.param(put(RESULT, "memory", "peak_allocated_mib", value=1.5), "1.5", RESULT, "numbers", id="memory"),
    pytest.param(put(RESULT, "work", "transformer_calls", value=7), "7", RESULT, "numbers", id="work"),
    pytest.param(put(RESULT, "wall_s", value=18.0), "18.0", RESULT, "slots", id="wall time"),
    pytest.param(put(RESULT, "label", value="A1"), '"A1"', RESULT, "slots", id="label"),
    pytest.param(put(RESULT, "outputs", 0, "width", value=17), "17", RESULT, "hashes", id="width"),
    pytest.param(put(RESULT, "outputs", 0, "pixels_sha256", value="0" * 64), "000", RESULT, "hashes", id="pixel hash"),
    pytest.param(write(PICTURE, picture_png(3)), "outputs/image-0.png", RESULT, "hashes", id="picture"),
    pytest.param(write(PICTURE, picture_png(2, 9)), "outputs/image-0.png", RESULT, "hashes", id="picture, same pixels"),
    pytest.param(write(PICTURE, picture_png(2)[:-40]), "", RESULT, "hashes", id="cut picture"),
    pytest.param(remove(PICTURE), "is missing", PICTURE, "hashes", id="no picture"),
    pytest.param(remove(PERF), "is missing", PERF, "numbers", id="no dump"),
    pytest.param(remove(SLOT), "is missing", RESULT, "slots", id="no slot"),
    pytest.param(
        put("campaign.json", "slots", 1, "state", value="invalid"), '"invalid"', "campaign.json", "slots", id="index"
    ),
    pytest.param(
        put("campaign.json", "plan", "min_effect", value=0.5), "0.01", "report.json", "report", id="campaign.json"
    ),
    pytest.param(
        put("campaign.json", "environment", "cpu", value="Another"), "Another", "report.md", "report", id="environment"
    ),
    pytest.param(replace("report.md", "9.5100", "9.4100"), "line ", "report.md", "report", id="report.md"),
    pytest.param(replace("report.html", "9.5100", "9.4100"), "line ", "report.html", "report", id="report.html"),
    pytest.param(
        put("report.json", "cells", 0, "verdict", "word", value="SAME"),
        '"SAME"',
        "report.json",
        "report",
        id="report.json",
    ),
    pytest.param(
        put("report.json", "cells", 0, "outputs", "pairs", 0, "comparison", "ssim", value=0.9999),
        "cells[0].outputs.pairs[0].comparison.ssim is 0.9999",
        "report.json",
        "metrics",
        id="metric",
    ),
    pytest.param(remove("report.html"), "is missing", "report.html", "report", id="no report.html"),
    pytest.param(write("raw-runs.md", b"old"), "belongs to no report", "raw-runs.md", "report", id="old raw runs"),
    pytest.param(
        write(f"{SLOT}/outputs/image-1.png", picture_png(1)),
        "does not name",
        f"{SLOT}/outputs/image-1.png",
        "hashes",
        id="extra output",
    ),
]


@pytest.mark.parametrize(("lie", "value", "file", "check"), LIES)
def test_lie_that_was_signed_again(folder: Path, lie: Lie, value: str, file: str, check: str) -> None:
    lie(folder)
    sign(folder)
    verification = verify_campaign(folder)
    assert check in failed(verification) and "signature" not in failed(verification)
    assert file == first(verification).file
    assert value in first(verification).text


@pytest.mark.parametrize(("lie", "value", "file", "check"), LIES)
def test_lie_that_was_not_signed(folder: Path, lie: Lie, value: str, file: str, check: str) -> None:
    lie(folder)
    verification = verify_campaign(folder)
    assert {check, "signature"} <= failed(verification)
    json.dumps(verification.to_json(), allow_nan=False)


def test_signature_tells_which_of_two_files_was_edited(folder: Path) -> None:
    put(PERF, "timers", "worker_ms", value=9600.0)(folder)
    found = first(verify_campaign(folder))
    assert (PERF, "timers.worker_ms", 9600.0, 9.5) == (found.file, found.place, found.stated, found.expected)
    assert f"{PERF}: timers.worker_ms is 9600.0, but 9.5 by result.json times.worker_s" == found.text


def test_edited_campaign_comes_before_the_report_that_follows_from_it(folder: Path) -> None:
    put("campaign.json", "plan", "min_effect", value=0.5)(folder)
    verification = verify_campaign(folder)
    assert "campaign.json" == first(verification).file
    assert "campaign.json is not the file that SHA256SUMS lists; report.json: min_effect is 0.01, but 0.5" in (
        verification.first_text
    )


def test_lie_told_in_both_files_is_found_in_the_report(folder: Path) -> None:
    put(PERF, "timers", "worker_ms", value=9400.0)(folder)
    put(RESULT, "times", "worker_s", value=9.4)(folder)
    sign(folder)
    verification = verify_campaign(folder)
    assert {"report"} == failed(verification)
    assert "report.json" == first(verification).file


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        pytest.param("notes.txt", "is not in SHA256SUMS", id="extra file"),
        pytest.param(f"{SLOT}/stdout.log", "is not the file that SHA256SUMS lists", id="log"),
    ],
)
def test_file_that_no_number_rests_on(folder: Path, name: str, problem: str) -> None:
    (folder / name).write_text("x", encoding="utf-8")
    verification = verify_campaign(folder)
    assert {"signature"} == failed(verification)
    assert f"{name} {problem}" == first(verification).text


def test_link_is_no_evidence(folder: Path) -> None:
    (folder / PICTURE).unlink()
    (folder / PICTURE).symlink_to(folder / "slots/panda/01-3-B/outputs/image-0.png")
    assert any("is a link" in finding.text for finding in verify_campaign(folder).findings)


def test_unsigned_folder(folder: Path) -> None:
    (folder / "SHA256SUMS").unlink()
    verification = verify_campaign(folder)
    assert {"signature"} == failed(verification)
    assert "SHA256SUMS is missing or lists nothing, so nothing was signed" == first(verification).text


def test_copied_dump(folder: Path) -> None:
    shutil.copyfile(folder / PERF, folder / "slots/panda/01-3-B/perf.json")
    sign(folder)
    texts = [finding.text for finding in verify_campaign(folder).findings]
    assert any(text.startswith(f"{PERF} is a copy: ") for text in texts)


def test_line_names_both_texts(folder: Path) -> None:
    replace("report.md", "9.5100", "9.4100")(folder)
    sign(folder)
    found = first(verify_campaign(folder))
    lines = (folder / "report.md").read_text(encoding="utf-8").split("\n")
    number = next(index for index, line in enumerate(lines, start=1) if "9.4100" in line)
    assert f"line {number}" == found.place
    assert "9.4100" in found.stated and "9.5100" in found.expected


def test_other_spelling_of_the_same_numbers_is_found(folder: Path) -> None:
    path = folder / "report.json"
    path.write_text(path.read_text(encoding="utf-8").replace("{\n", '{\n  "exit_code": 0,\n', 1), encoding="utf-8")
    sign(folder)
    assert "report.json" == first(verify_campaign(folder)).file


def test_last_digits_of_another_machine_are_no_lie(folder: Path) -> None:
    values = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    psnr_db = values["cells"][0]["outputs"]["pairs"][0]["comparison"]["psnr_db"]
    put("report.json", "cells", 0, "outputs", "pairs", 0, "comparison", "psnr_db", value=psnr_db * (1 + 1e-14))(folder)
    sign(folder)
    verification = verify_campaign(folder)
    assert verification.is_verified
    assert any("in the last digits only" in note for check in verification.checks for note in check.notes)


@pytest.mark.parametrize("is_true", [True, False])
def test_kept_raw_arrays_are_hashed(folder: Path, is_true: bool) -> None:
    array = np.linspace(0.0, 1.0, 16 * 16 * 3, dtype=np.float32).reshape(16, 16, 3)
    put(RESULT, "outputs", 0, "raw_sha256", value=array_sha256(array))(folder)
    (folder / SLOT / "frames.sha256").write_text(f"{array_sha256(array)}  outputs/image-0.png\n", encoding="utf-8")
    (folder / SLOT / "raw").mkdir()
    np.save(folder / SLOT / "raw/image-0.npy", array if is_true else array + np.float32(1e-6))
    write_report_again(folder)
    verification = verify_campaign(folder)
    assert is_true == verification.is_verified
    hashes = next(check for check in verification.checks if check.name == "hashes")
    assert 1 == hashes.counts["raw arrays kept"]
    assert is_true or "outputs[0].raw_sha256" == first(verification).place


@pytest.mark.parametrize("kind", ["text", "archive", "objects"])
def test_kept_array_that_is_none(folder: Path, kind: str) -> None:
    (folder / SLOT / "raw").mkdir()
    path = folder / SLOT / "raw/image-0.npy"
    with path.open("wb") as stream:
        if kind == "text":
            stream.write(b"x")
        elif kind == "archive":
            np.savez(stream, np.zeros(3))
        else:
            np.save(stream, np.array([{}], dtype=object), allow_pickle=True)
    sign(folder)
    assert first(verify_campaign(folder)).text.startswith(f"{SLOT}/raw/image-0.npy is ")


def test_numbers_that_are_none_are_told_in_strict_json(folder: Path) -> None:
    replace("report.json", '"exit_code": 0', '"exit_code": NaN')(folder)
    sign(folder)
    values = verify_campaign(folder).to_json()
    assert "exit_code" == values["first"]["place"]
    assert "nan" == json.loads(json.dumps(values, allow_nan=False))["first"]["stated"]


def test_pipe_is_no_evidence(folder: Path) -> None:
    os.mkfifo(folder / SLOT / "pipe")
    assert f"{SLOT}/pipe is no regular file" in first(verify_campaign(folder)).text


def write_report_again(folder: Path) -> None:
    (folder / "SHA256SUMS").unlink()
    write_report(folder)


def test_frames_listing(folder: Path) -> None:
    (folder / SLOT / "frames.sha256").write_text(f"{'0' * 64}  outputs/image-0.png\n", encoding="utf-8")
    sign(folder)
    found = first(verify_campaign(folder))
    assert (f"{SLOT}/frames.sha256", "line 1") == (found.file, found.place)


def origin_of(folder: Path) -> dict[str, Any]:
    """The origin of an import of all that a folder's slots hold, its second slot first."""
    slots = sorted((folder / "slots/panda").iterdir(), key=lambda slot: slot.name != Path(SLOT).name)
    kinds = {"perf.json": "perf dump", "stdout.log": "log", "outputs/image-0.png": "output"}
    files = [
        {
            "path": f"x/{slot.name}.{kind}",
            "sha256": file_sha256(slot / name),
            "kind": kind,
            "slot": f"panda/{slot.name}",
        }
        for slot in slots
        for name, kind in kinds.items()
    ]
    return {"imported_by": "x", "created_from": "x", "labels": None, "baseline": {}, "candidate": {}, "files": files}


def test_imported_dump_is_held_to_the_hash_of_its_import(folder: Path) -> None:
    put("campaign.json", "origin", value=origin_of(folder))(folder)
    write_report_again(folder)
    assert set() == failed(verify_campaign(folder))
    put(PERF, "steps", 0, "name", value="Other")(folder)
    put(RESULT, "times", "denoise_s", value=5.0)(folder)
    write_report_again(folder)
    found = first(verify_campaign(folder))
    assert (PERF, "its SHA-256") == (found.file, found.place)
    assert "campaign.json origin.files[0].sha256" == found.source


def test_kept_input_is_held_to_the_hash_of_the_beginning(folder: Path) -> None:
    (folder / "inputs").mkdir()
    (folder / "inputs/prompts.txt").write_text("a red panda\n", encoding="utf-8")
    kept = {"argument": "prompts.txt", "size_bytes": 12, "copy": "inputs/prompts.txt"}
    hash_ = file_sha256(folder / "inputs/prompts.txt")
    put("campaign.json", "inputs", value=[kept | {"sha256": hash_}])(folder)
    write_report_again(folder)
    assert set() == failed(verify_campaign(folder))
    (folder / "inputs/prompts.txt").write_text("a blue bird\n", encoding="utf-8")
    write_report_again(folder)
    assert "inputs/prompts.txt" == first(verify_campaign(folder)).file


def test_client_time_that_only_the_log_holds(folder: Path) -> None:
    (folder / SLOT / "stdout.log").write_text("Pixel data generated successfully in 9.60 seconds\n", encoding="utf-8")
    put(RESULT, "times", "client_s", value=9.6)(folder)
    write_report_again(folder)
    assert set() == failed(verify_campaign(folder))
    put(RESULT, "times", "client_s", value=9.5)(folder)
    sign(folder)
    assert "times.client_s" == first(verify_campaign(folder)).place


REQUEST = {
    "index": 0,
    "worker_ms": 9500.0,
    "unattributed_ms": 4750.0,
    "steps": [{"name": "DenoisingStage", "duration_ms": 4750.0}],
}


@pytest.mark.parametrize(
    ("place", "lie"),
    [
        pytest.param("total_duration_ms", put(PERF, "total_duration_ms", value=9400.0), id="first request"),
        pytest.param("steps[0].duration_ms", put(PERF, "steps", 0, "duration_ms", value=4751.0), id="stage on top"),
        pytest.param(
            "requests[0].unattributed_ms",
            put(PERF, "requests", 0, "unattributed_ms", value=4751.0),
            id="worker less stages",
        ),
        pytest.param("timers.worker_ms", put(PERF, "requests", 0, "worker_ms", value=9400.0), id="sum"),
    ],
)
def test_dump_that_contradicts_itself(folder: Path, place: str, lie: Lie) -> None:
    put(PERF, "requests", value=[REQUEST])(folder)
    put(RESULT, "work", value=None)(folder)
    write_report_again(folder)
    assert set() == failed(verify_campaign(folder))
    lie(folder)
    sign(folder)
    findings = [finding for finding in verify_campaign(folder).findings if finding.file == PERF]
    assert place in [finding.place for finding in findings]


@pytest.mark.parametrize("file", ["campaign.json", RESULT])
def test_damaged_file_is_an_error_that_names_it(folder: Path, file: str) -> None:
    (folder / file).write_text("{", encoding="utf-8")
    with pytest.raises(FuseproofError, match=file):
        verify_campaign(folder)


def test_damaged_dump_is_a_finding(folder: Path) -> None:
    (folder / PERF).write_text("{", encoding="utf-8")
    assert f"{PERF} cannot be used" in first(verify_campaign(folder)).text


def test_nothing_is_written(folder: Path) -> None:
    def state() -> dict[str, str]:
        files = (path for path in folder.rglob("*") if path.is_file())
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    before = state()
    verify_campaign(folder)
    assert before == state()


@pytest.mark.parametrize(
    ("copy", "file", "why"),
    [
        ("../../../../etc/hostname", "campaign.json", "outside the folder"),
        ("/etc/hostname", "campaign.json", "outside the folder"),
        ("inputs/gone.txt", "inputs/gone.txt", "is missing"),
    ],
)
def test_a_kept_input_lies_in_the_folder(folder: Path, copy: str, file: str, why: str) -> None:
    kept = {"argument": "prompts.txt", "size_bytes": 12, "copy": copy, "sha256": "0" * 64}
    put("campaign.json", "inputs", value=[kept])(folder)
    sign(folder)
    found = [finding for finding in verify_campaign(folder).findings if why in finding.text]
    assert [file] == [finding.file for finding in found]
