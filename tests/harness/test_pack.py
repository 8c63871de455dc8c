"""One archive: the evidence verifies when it is unpacked, the body has no broken image, the bytes never change."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import zipfile
from pathlib import Path

import pytest

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.report import stale_files, write_report
from fuseproof.harness.report.pack import Packed, pack_campaign
from fuseproof.harness.report.pull_request import LONGEST_BODY, checked_base_url
from fuseproof.harness.verification.verify import verify_campaign
from tests.harness.campaign_builder import CampaignBuilder, Run, picture_png
from tests.harness.old_evidence import imported, write_block, write_picture

FASTER = ((10.0, 9.5, 9.51, 10.02), (9.52, 10.01, 10.03, 9.5))
ASSETS = ("panda-01-1-A-1.png", "panda-01-2-B-1.png")
LOG = "slots/panda/01-2-B/stderr.log"
SECRET = "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("template") / "campaign"
    builder = CampaignBuilder(directory, cells={"panda": {"contract": "close: ssim>=0.5"}})
    for index, (way, row) in enumerate(zip(("ABBA", "BAAB"), FASTER, strict=True)):
        runs = [
            Run(worker_s=s, denoise_s=5.0, pictures=(1 if arm == "A" else 2,)) for arm, s in zip(way, row, strict=True)
        ]
        builder.block(runs, block=index + 1)
    folder = builder.write()
    (folder / LOG).write_text("starting\n", encoding="utf-8")
    write_report(folder)
    return folder


@pytest.fixture
def folder(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "campaign"))


def body_of(archive: Path) -> str:
    with zipfile.ZipFile(archive) as stream:
        return stream.read("pull-request.md").decode("utf-8")


def unpacked(archive: Path, place: Path) -> Path:
    with zipfile.ZipFile(archive) as stream:
        stream.extractall(place)
    return place / "campaign"


def test_archive_holds_evidence_body_and_pictures(folder: Path, tmp_path: Path) -> None:
    packed = pack_campaign(folder, tmp_path / "c.zip")
    with zipfile.ZipFile(packed.archive) as stream:
        names = stream.namelist()
        assert picture_png(2) == stream.read(f"assets/{ASSETS[1]}")
    assert sorted(names) == names
    assert ASSETS == packed.assets
    evidence = {f"campaign/{path.relative_to(folder)}" for path in folder.rglob("*") if path.is_file()}
    assert evidence | {"pull-request.md", *(f"assets/{name}" for name in ASSETS)} == set(names)
    assert packed.is_verified and len(names) == packed.files
    assert verify_campaign(unpacked(packed.archive, tmp_path / "there")).is_verified


def test_same_folder_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    archives = [pack_campaign(folder, tmp_path / name).archive for name in ("c.zip", "again/c.zip")]
    assert archives[0].read_bytes() == archives[1].read_bytes()


def test_body_without_a_host_has_no_image(folder: Path, tmp_path: Path) -> None:
    body = body_of(pack_campaign(folder, tmp_path / "c.zip").archive)
    assert "![" not in body and "<img" not in body
    assert all(f"`assets/{name}`" in body for name in ASSETS)
    assert "unpack it and run `fuseproof verify campaign`" in body
    assert len(body) < LONGEST_BODY


@pytest.mark.parametrize("url", ["https://example.org/evidence/42", "https://example.org/evidence/42/"])
def test_body_with_a_host_links_every_picture(folder: Path, tmp_path: Path, url: str) -> None:
    body = body_of(pack_campaign(folder, tmp_path / "c.zip", base_url=checked_base_url(url)).archive)
    images = re.findall(r"!\[\w+\]\((.*?)\)", body)
    assert [f"https://example.org/evidence/42/{name}" for name in ASSETS] == images


@pytest.mark.parametrize(
    "url", ["example.org", "file:///etc", "https://a b", "https://a)x", "", "javascript:alert(1)", "https://x?y"]
)
def test_url_that_is_none(url: str) -> None:
    with pytest.raises(UsageError, match="--asset-base-url"):
        checked_base_url(url)


def test_folder_that_does_not_verify_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "notes.txt").write_text("x", encoding="utf-8")
    with pytest.raises(FuseproofError, match=r"notes\.txt is not in SHA256SUMS") as caught:
        pack_campaign(folder, tmp_path / "c.zip")
    assert "--unverified" in (caught.value.next_step or "")
    assert not (tmp_path / "c.zip").exists()


def test_unverified_folder_says_so_first(folder: Path, tmp_path: Path) -> None:
    (folder / "notes.txt").write_text("x", encoding="utf-8")
    packed = pack_campaign(folder, tmp_path / "c.zip", allows_unverified=True)
    line = body_of(packed.archive).split("\n")[0]
    assert line.startswith("> **NOT VERIFIED.** 1 difference, the first: notes.txt is not in SHA256SUMS")
    assert not packed.is_verified


def test_missing_picture_of_an_unverified_folder(folder: Path, tmp_path: Path) -> None:
    (folder / "slots/panda/02-1-B/outputs/image-0.png").unlink()
    packed = pack_campaign(folder, tmp_path / "c.zip", allows_unverified=True)
    assert "image-0.png is missing" in body_of(packed.archive).split("\n")[0]


def test_hostile_name_is_inert_in_the_body(folder: Path, tmp_path: Path) -> None:
    (folder / "![x](y) <img src=x>.txt").write_text("x", encoding="utf-8")
    line = body_of(pack_campaign(folder, tmp_path / "c.zip", allows_unverified=True).archive).split("\n")[0]
    assert "![" not in line and "<img" not in line


def test_logs_may_stay_behind(folder: Path, tmp_path: Path) -> None:
    packed = pack_campaign(folder, tmp_path / "c.zip", has_logs=False)
    there = unpacked(packed.archive, tmp_path / "there")
    assert [] == list(there.rglob("*.log"))
    verification = verify_campaign(there)
    assert verification.is_verified
    assert any("9 logs were left out" in note for check in verification.checks for note in check.notes)
    (there / LOG.replace("stderr.log", "result.json")).unlink()
    assert not verify_campaign(there).is_verified


def test_logs_that_hold_a_time_stay(folder: Path, tmp_path: Path) -> None:
    (folder / LOG).write_text("Pixel data generated successfully in 9.60 seconds\n", encoding="utf-8")
    result = folder / "slots/panda/01-2-B/result.json"
    values = json.loads(result.read_text(encoding="utf-8"))
    values["times"]["client_s"] = 9.6
    result.write_text(json.dumps(values), encoding="utf-8")
    (folder / "SHA256SUMS").unlink()
    write_report(folder)
    there = unpacked(pack_campaign(folder, tmp_path / "c.zip", has_logs=False).archive, tmp_path / "there")
    assert ["stderr.log", "stdout.log"] == sorted(path.name for path in there.rglob("*.log"))
    assert verify_campaign(there).is_verified


@pytest.fixture
def light(folder: Path, tmp_path: Path) -> Path:
    """The campaign, whose arms drew different pictures, unpacked from an archive without them."""
    return unpacked(pack_campaign(folder, tmp_path / "c.zip", has_outputs=False).archive, tmp_path / "there")


def test_outputs_may_stay_behind(light: Path) -> None:
    assert [] == [path for path in light.rglob("*") if path.suffix in (".png", ".html")]
    verification = verify_campaign(light)
    assert "" == verification.first_text
    notes = " ".join(note for check in verification.checks for note in check.notes)
    assert "8 outputs and 3 drawn files were left out when the folder was packed" in notes
    assert "8 of files" in notes and "8 of pixels" in notes
    assert "metrics of 1 pair recorded, not recomputed" in notes


def test_report_of_a_folder_without_outputs_is_read_and_not_rewritten(light: Path) -> None:
    before = {path: path.read_bytes() for path in light.rglob("*") if path.is_file()}
    analysis = write_report(light)
    assert [] == stale_files(analysis)
    assert ["FASTER"] == [cell.word.value for cell in analysis.cells]
    assert before == {path: path.read_bytes() for path in light.rglob("*") if path.is_file()}


def test_body_without_outputs_names_no_picture(folder: Path, tmp_path: Path) -> None:
    packed = pack_campaign(folder, tmp_path / "c.zip", has_outputs=False)
    assert () == packed.assets
    assert "assets/" not in packed.body and "The campaign without its outputs is in" in packed.body


def test_folder_without_outputs_packs_again(light: Path, tmp_path: Path) -> None:
    again = unpacked(pack_campaign(light, tmp_path / "again.zip").archive, tmp_path / "again")
    assert (light / "left-out.txt").read_bytes() == (again / "left-out.txt").read_bytes()
    assert verify_campaign(again).is_verified


def test_pictures_that_stay_behind_have_no_url(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--asset-base-url shows pictures"):
        pack_campaign(folder, tmp_path / "c.zip", base_url="https://example.org/", has_outputs=False)


@pytest.mark.parametrize(
    ("file", "old", "new", "found"),
    [
        ("slots/panda/01-2-B/result.json", '"file_sha256": "', '"file_sha256": "0', "file_sha256"),
        ("report.json", '"ssim": 0.', '"ssim": 0.0', "report.json"),
        ("left-out.txt", "slots", "slits", "left-out.txt"),
        ("slots/panda/01-2-B/perf.json", '"total_duration_ms": ', '"total_duration_ms": 1', "perf.json"),
    ],
)
def test_lie_in_a_folder_without_outputs(light: Path, file: str, old: str, new: str, found: str) -> None:
    path = light / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    verification = verify_campaign(light)
    assert not verification.is_verified and found in verification.first_text


def test_output_that_is_gone_from_a_whole_folder_is_missing(folder: Path) -> None:
    (folder / "slots/panda/02-1-B/outputs/image-0.png").unlink()
    texts = [finding.text for finding in verify_campaign(folder).findings]
    assert any("image-0.png is missing" in text for text in texts)


def test_signed_list_of_what_was_left_out_excuses_nothing(folder: Path) -> None:
    """Whoever signs a folder again has no claim to what an unsigned list would excuse."""
    lines = (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    gone = "slots/panda/02-1-B/outputs/image-0.png"
    (folder / gone).unlink()
    (folder / "left-out.txt").write_text("\n".join(line for line in lines if gone in line), encoding="utf-8")
    kept = [line for line in lines if gone not in line]
    digest = hashlib.sha256((folder / "left-out.txt").read_bytes()).hexdigest()
    (folder / "SHA256SUMS").write_text("\n".join(sorted([*kept, f"{digest}  left-out.txt"])) + "\n", encoding="utf-8")
    assert any(gone == finding.file for finding in verify_campaign(folder).findings)


def test_text_to_paste_lies_beside_the_archive(folder: Path, tmp_path: Path) -> None:
    packed = pack_campaign(folder, tmp_path / "c.zip")
    assert tmp_path / "c.pull-request.md" == packed.body_file
    assert body_of(packed.archive) == packed.body_file.read_text(encoding="utf-8") == packed.body
    (tmp_path / "d.pull-request.md").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match=r"d\.pull-request\.md exists, and is not replaced"):
        pack_campaign(folder, tmp_path / "d.zip")
    assert not (tmp_path / "d.zip").exists()


def test_body_says_what_fuseproof_is_and_how_to_check(folder: Path, tmp_path: Path) -> None:
    body = pack_campaign(folder, tmp_path / "c.zip").body
    assert "fuseproof runs baseline and candidate in fresh processes in A-B-B-A order" in body
    assert "Measured with the Python package `fuseproof " in body
    assert "fuseproof verify ." in (folder / "report.md").read_text(encoding="utf-8")


def test_only_logs_and_outputs_may_be_called_left_out(folder: Path) -> None:
    telemetry = "slots/panda/01-2-B/perf.json"
    lines = (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    (folder / telemetry).unlink()
    (folder / "left-out.txt").write_text("\n".join(line for line in lines if telemetry in line), encoding="utf-8")
    assert any(telemetry == finding.file for finding in verify_campaign(folder).findings)


def test_secrets_in_logs_are_pointed_out(folder: Path, tmp_path: Path) -> None:
    (folder / LOG).write_text(f"{SECRET}\n", encoding="utf-8")
    (folder / "SHA256SUMS").unlink()
    write_report(folder)
    assert (f"campaign/{LOG}",) == pack_campaign(folder, tmp_path / "c.zip").suspicious
    assert () == pack_campaign(folder, tmp_path / "d.zip", has_logs=False).suspicious


@pytest.mark.parametrize(
    ("target", "error", "sentence"),
    [
        pytest.param("there.zip", UsageError, "exists, and is not replaced", id="exists"),
        pytest.param("campaign/c.zip", UsageError, "lies inside the campaign folder", id="inside"),
        pytest.param("nowhere/c.zip", FuseproofError, "could not be written", id="no folder"),
    ],
)
def test_target_that_cannot_be(
    folder: Path, tmp_path: Path, target: str, error: type[FuseproofError], sentence: str
) -> None:
    (tmp_path / "there.zip").write_text("old", encoding="utf-8")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(error, match=sentence):
        pack_campaign(folder, tmp_path / target)
    assert before == sorted(tmp_path.rglob("*"))
    assert "old" == (tmp_path / "there.zip").read_text(encoding="utf-8")


def test_body_of_many_cells_still_fits(tmp_path: Path) -> None:
    cells = [f"cell-{number:02d}" for number in range(40)]
    builder = CampaignBuilder(tmp_path / "campaign", cells=cells, blocks=2)
    for cell in cells:
        builder.blocks(FASTER, cell=cell, denoise_s=5.0)
    write_report(builder.write())
    packed: Packed = pack_campaign(builder.directory, tmp_path / "c.zip")
    assert packed.body_characters < LONGEST_BODY


def test_secrets_in_whatever_was_kept_are_pointed_out(folder: Path, tmp_path: Path) -> None:
    slot = "slots/panda/01-2-B"
    (folder / slot / "telemetry.jsonl").write_text('{"x": "ghp_0123456789abcdef0123"}\n', encoding="utf-8")
    (folder / "inputs").mkdir()
    (folder / "inputs/config.toml").write_text('token = "hf_0123456789abcdef0123"\n', encoding="utf-8")
    (folder / "SHA256SUMS").unlink()
    write_report(folder)
    packed = pack_campaign(folder, tmp_path / "x.zip")
    assert {f"{folder.name}/inputs/config.toml", f"{folder.name}/{slot}/telemetry.jsonl"} == set(packed.suspicious)


def test_link_is_never_packed(folder: Path, tmp_path: Path) -> None:
    picture = folder / "slots/panda/01-2-B/outputs/image-0.png"
    (tmp_path / "private.png").write_bytes(picture_png(9))
    picture.unlink()
    picture.symlink_to(tmp_path / "private.png")
    with pytest.raises(FuseproofError, match=r"image-0\.png is a link"):
        pack_campaign(folder, tmp_path / "x.zip", allows_unverified=True)


@pytest.mark.parametrize(
    ("name", "archived"),
    [
        ("-rf", "rf"),
        ("pull-request.md", "campaign-pull-request.md"),
        ("assets", "campaign-assets"),
        ("CON", "campaign-CON"),
        ("a b;$(x)", "a-b---x-"),
        ("x\\..\\evil", "x-..-evil"),
    ],
)
def test_folder_has_a_harmless_name_in_the_archive(folder: Path, tmp_path: Path, name: str, archived: str) -> None:
    renamed = folder.rename(folder.with_name(name))
    packed = pack_campaign(renamed, tmp_path / "x.zip")
    assert {archived, "pull-request.md", "assets"} == {
        entry.split("/")[0] for entry in zipfile.ZipFile(packed.archive).namelist()
    }
    assert f"fuseproof verify {archived}" in body_of(packed.archive)


def test_name_that_other_systems_unpack_elsewhere_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "..\\evil.bat").write_text("x", encoding="utf-8")
    (folder / "SHA256SUMS").unlink()
    write_report(folder)
    with pytest.raises(FuseproofError, match="unpack elsewhere"):
        pack_campaign(folder, tmp_path / "x.zip")


@pytest.mark.parametrize("url", ["https://anna:pw@example.org/x", "https://example.org/../x", "https://", "https:///x"])
def test_url_that_tells_too_much_or_leads_elsewhere(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        checked_base_url(url)
    assert "anna" not in str(caught.value)


def test_what_a_killed_session_left_is_not_packed(folder: Path, tmp_path: Path) -> None:
    (folder / ".fuseproof-17-0123abcd.tmp").write_text("x", encoding="utf-8")
    packed = pack_campaign(folder, tmp_path / "x.zip")
    assert not [name for name in zipfile.ZipFile(packed.archive).namelist() if name.endswith(".tmp")]


def test_imported_campaign_without_outputs(tmp_path: Path) -> None:
    dumps = write_block(tmp_path / "old")
    for dump, number in zip(dumps, (1, 2, 2, 1), strict=True):
        write_picture(dump, number)
    folder = imported(tmp_path, tmp_path / "old").directory
    light = unpacked(pack_campaign(folder, tmp_path / "c.zip", has_outputs=False).archive, tmp_path / "there")
    assert "" == verify_campaign(light).first_text
    assert [] == list(light.rglob("*.png"))


def test_cells_that_are_read_against_each_other_without_outputs(tmp_path: Path) -> None:
    cells = {"panda": {}, "quick": {"contract": "close: ssim>=0.5", "reference": "panda"}}
    builder = CampaignBuilder(tmp_path / "campaign", cells=cells, blocks=1)
    for cell, pictures in (("panda", (1, 1)), ("quick", (1, 3))):
        builder.block(
            [
                Run(worker_s=s, denoise_s=5.0, pictures=(pictures[arm == "B"],))
                for arm, s in zip("ABBA", FASTER[0], strict=True)
            ],
            cell=cell,
        )
    write_report(builder.write())
    packed = pack_campaign(builder.directory, tmp_path / "c.zip", has_outputs=False)
    assert "" == verify_campaign(unpacked(packed.archive, tmp_path / "there")).first_text
