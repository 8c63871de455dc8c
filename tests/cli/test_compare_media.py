"""``fuseproof compare-media``: exit codes, what is said on which stream, folders, and paths that want to break it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuseproof.cli.main import main
from fuseproof.cli.media_numbers import ssim_text
from tests.harness.media_samples import save, smooth_picture

PICTURE = smooth_picture(48, 64)


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} is not strict JSON"))


class Workplace:
    """A folder with standard pictures, and the command run inside it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys
        changed = PICTURE.copy()
        changed[10, 10, 0] += 1
        for name, pixels in {
            "a.png": PICTURE,
            "noisy.png": smooth_picture(48, 64, seed=1),
            "one_bit.png": changed,
            "wide.png": smooth_picture(48, 80),
            "black.png": np.zeros((48, 64, 3), np.uint8),
            "a.jpg": PICTURE,
            "float.npy": (PICTURE / 255).astype(np.float32),
            "nan.npy": np.where(PICTURE == PICTURE[0, 0, 0], np.nan, PICTURE / 255).astype(np.float32),
        }.items():
            save(folder / name, pixels)
        save(folder / "again.png", PICTURE, compress_level=0)
        (folder / "html.png").write_text("<!DOCTYPE html>")
        (folder / "empty.png").touch()

    def run(self, *arguments: str) -> Outcome:
        code = main(["compare-media", *arguments])
        captured = self._capsys.readouterr()
        assert "Traceback" not in captured.err
        assert "\x1b" not in captured.out + captured.err
        return Outcome(code, captured.out, captured.err)

    def folders(self) -> None:
        """A and B with one pair of each kind: equal, different, mismatched, unreadable, missing, extra, no media."""
        for folder in ("A", "B"):
            (self.folder / folder).mkdir()
            for name in ("equal", "worse", "size", "broken"):
                save(self.folder / folder / f"{name}.png", smooth_picture(48, 64, seed=len(name)))
        save(self.folder / "A" / "missing.png", PICTURE)
        save(self.folder / "B" / "extra.png", PICTURE)
        save(self.folder / "B" / "worse.png", PICTURE // 2)
        save(self.folder / "B" / "size.png", PICTURE[:40])
        (self.folder / "B" / "broken.png").write_bytes(b"")
        (self.folder / "A" / "notes.txt").touch()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Workplace:
    monkeypatch.chdir(tmp_path)
    return Workplace(tmp_path, capsys)


@pytest.mark.parametrize(
    ("expected", "arguments"),
    [
        pytest.param(0, "a.png again.png", id="equal pixels"),
        pytest.param(0, "a.png noisy.png", id="different, nothing was required"),
        pytest.param(0, "a.png again.png --contract exact", id="exact holds"),
        pytest.param(0, "a.png one_bit.png --contract close:ssim>=0.99,psnr>=60", id="close holds"),
        pytest.param(4, "a.png one_bit.png --contract exact", id="one bit breaks exact"),
        pytest.param(4, "a.png noisy.png --contract close:psnr>=60", id="close broken"),
        pytest.param(4, "a.jpg a.jpg --contract exact", id="equal JPEG files"),
        pytest.param(4, "black.png black.png --contract close:ssim>=0.5", id="black is no proof"),
        pytest.param(4, "a.png wide.png --contract close:ssim>=0", id="geometry breaks a contract"),
        pytest.param(4, "float.npy nan.npy --contract close:psnr>=0 --data-range 1", id="NaN breaks a contract"),
        pytest.param(1, "a.png wide.png", id="geometry"),
        pytest.param(1, "float.npy nan.npy", id="non-finite values"),
        pytest.param(1, "a.png float.npy", id="bit depth"),
        pytest.param(1, "a.png html.png", id="HTML"),
        pytest.param(1, "empty.png a.png --contract exact", id="0 bytes is not a broken contract"),
        pytest.param(1, "a.png missing.png", id="missing"),
        pytest.param(1, ". missing", id="missing folder"),
        pytest.param(1, "clip.mp4 clip.mp4", id="video that is not there"),
        pytest.param(1, "/dev/zero a.png", id="device"),
        pytest.param(2, "a.png .", id="file and folder"),
        pytest.param(2, "a.png", id="one argument"),
        pytest.param(2, "a.png a.png --contract ssim>=0.9", id="bad contract"),
        pytest.param(2, "a.png a.png --contract=", id="empty contract"),
        pytest.param(2, "a.png again.png --data-range 0", id="data range 0"),
        pytest.param(2, "a.png missing.png --data-range nan", id="usage before reading"),
        pytest.param(2, "a.png again.png --diff-image nowhere/d.png", id="diff into a missing folder"),
        pytest.param(2, "a.png again.png --diff-image a.png", id="diff onto an input"),
        pytest.param(2, "a.png again.png --diff-image ./../{here}/again.png", id="diff onto an input by another path"),
        pytest.param(2, "a.png again.png --diff-image d.jpg", id="diff that is no PNG"),
    ],
)
def test_exit_codes(expected: int, arguments: str, place: Workplace) -> None:
    outcome = place.run(*arguments.format(here=place.folder.name).split())
    assert expected == outcome.code
    if expected == 2 or not outcome.out:
        assert outcome.err.startswith("fuseproof: error: ")
        assert "next: " in outcome.err
        assert "" == outcome.out


def test_identical_pictures_as_text(place: Workplace) -> None:
    outcome = place.run("a.png", "again.png")
    lines = outcome.out.splitlines()
    assert "" == outcome.err, "no warning of a division by zero"
    assert "equality        pixel-identical: decoded values are the same, file bytes differ" in lines
    assert "SSIM            1 (all values are equal, so it is not computed)" in lines
    assert "PSNR            ∞ dB (all values are equal, so it is not computed)" in lines
    assert "max |Δ|         0 of 255" in lines


def test_one_bit_does_not_print_as_ssim_1(place: Workplace) -> None:
    out = place.run("a.png", "one_bit.png").out
    ssim = next(line for line in out.splitlines() if line.startswith("SSIM"))
    assert "scikit-image" in ssim
    assert "uniform 7x7 window" in ssim
    assert ssim.split()[1:4] != ["1", "(scikit-image"]
    assert "1.000000" not in ssim
    assert "1 of 9,216 (0.0109 %) values" in out


@pytest.mark.parametrize(
    ("expected", "value"),
    [("1", 1.0), ("1 - 1e-12", 1 - 1e-12), ("0.999999", 0.999999), ("0.500000", 0.5), ("n/a", None)],
)
def test_ssim_text_is_1_only_for_1(expected: str, value: float | None) -> None:
    assert expected == ssim_text(value)


@pytest.mark.parametrize("pair", ["a.png again.png", "a.png noisy.png", "a.png wide.png", "float.npy nan.npy"])
def test_json_is_strict_and_complete(pair: str, place: Workplace) -> None:
    document = place.run(*pair.split(), "--contract", "close: ssim >= 0.5", "--json").document
    assert "fuseproof.media/1" == document["schema"]
    assert "close:ssim>=0.5" == document["contract"]["text"]
    comparison = document["pairs"][0]["comparison"]
    assert (comparison["equality"] != "different") == comparison["identical"]
    assert (pair == "a.png again.png") == comparison["psnr_is_infinite"]
    if comparison["identical"]:
        assert (1.0, None) == (comparison["ssim"], comparison["psnr_db"])


def test_json_shows_no_home_folder(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    home = place.folder / "anna"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    paths = [str(save(home / name, PICTURE)) for name in ("x.png", "y.png")]
    out = place.run(*paths, "--json").out
    assert str(home) not in out
    assert "~/x.png" in out


def test_warnings_go_to_stderr(place: Workplace) -> None:
    outcome = place.run("a.png", "a.jpg", "--json")
    assert "warning: B: JPEG is a lossy container" in outcome.err
    assert ["B: JPEG is a lossy container, so exactness cannot be shown"] == outcome.document["pairs"][0]["comparison"][
        "lossy"
    ]


def test_an_unused_data_range_is_said(place: Workplace) -> None:
    assert "--data-range 2 was not used" in place.run("a.png", "noisy.png", "--data-range", "2").err


def test_the_broken_contract_names_its_number(place: Workplace) -> None:
    outcome = place.run("a.png", "noisy.png", "--contract", "close:psnr>=99")
    assert "contract close:psnr>=99: BROKEN" in outcome.out
    assert outcome.out.splitlines()[-1].startswith("  PSNR ")
    assert outcome.out.splitlines()[-1].endswith(" dB is below 99 dB")


def test_the_diff_image_is_written_and_its_factor_printed(place: Workplace) -> None:
    outcome = place.run("a.png", "one_bit.png", "--diff-image", "d.png")
    assert "diff image: d.png (A | B | difference amplified 255 times)" in outcome.out
    assert (place.folder / "d.png").read_bytes().startswith(b"\x89PNG")
    document = place.run("a.png", "one_bit.png", "--diff-image", "d.png", "--json").document
    assert {"path": "d.png", "pair": "one_bit.png", "amplification": 255, "frame": None} == document["diff_image"]


def test_no_diff_image_of_a_mismatch(place: Workplace) -> None:
    outcome = place.run("a.png", "wide.png", "--diff-image", "d.png")
    assert 1 == outcome.code
    assert "no diff image was written" in outcome.err
    assert not (place.folder / "d.png").exists()


def test_folders_compare_every_pair_and_name_the_worst(place: Workplace) -> None:
    place.folders()
    outcome = place.run("A", "B", "--contract", "close:psnr>=30", "--diff-image", "d.png")
    assert 1 == outcome.code
    for line in (
        "equal.png    identical",
        "size.png     MISMATCH",
        "broken.png   UNREADABLE",
        "missing.png  MISSING IN B",
        "extra.png    MISSING IN A",
        "ignored, no media: notes.txt",
        "Worst pair: broken.png",
        "  missing.png is missing in B",
        "  worse.png: PSNR ",
        "diff image of worse.png: d.png",
    ):
        assert line in outcome.out
    assert "mean PSNR" not in outcome.out


@pytest.mark.parametrize(("expected", "contract"), [(4, ["--contract", "close:ssim>=0"]), (1, [])])
def test_a_missing_partner_is_never_success(expected: int, contract: list[str], place: Workplace) -> None:
    place.folders()
    for folder in ("A", "B"):
        for name in ("broken", "size", "worse"):
            (place.folder / folder / f"{name}.png").unlink()
    assert expected == place.run("A", "B", *contract).code


def test_folders_as_json_hold_no_mean(place: Workplace) -> None:
    place.folders()
    document = place.run("A", "B", "--json").document
    assert ["broken.png", "equal.png", "size.png", "worse.png"] == [pair["name"] for pair in document["pairs"]]
    assert (["missing.png"], ["extra.png"]) == (document["only_in_a"], document["only_in_b"])
    assert document["pairs"][0]["comparison"] is None
    assert "empty (0 bytes)" in document["pairs"][0]["error"]
    assert "broken.png" == document["worst"]


def test_folders_without_a_shared_name(place: Workplace) -> None:
    (place.folder / "E").mkdir()
    outcome = place.run(".", "E")
    assert 1 == outcome.code
    assert "share no media file name" in outcome.err


def test_a_diff_image_may_not_join_a_compared_folder(place: Workplace) -> None:
    place.folders()
    outcome = place.run("A", "B", "--diff-image", "B/d.png")
    assert 2 == outcome.code
    assert "would overwrite or join" in outcome.err


@pytest.mark.parametrize(
    ("shown", "name"),
    [
        ("with space.png", "with space.png"),
        ("ünïcode-画像-🐼.png", "ünïcode-画像-🐼.png"),
        ("new\ufffdline.png", "new\nline.png"),
        ("esc\ufffd[31m.png", "esc\x1b[31m.png"),
        ("a|b`.PNG", "a|b`.PNG"),
    ],
)
def test_strange_names_are_shown_on_one_line(shown: str, name: str, place: Workplace) -> None:
    (place.folder / name).write_bytes((place.folder / "a.png").read_bytes())
    outcome = place.run("a.png", name, "--contract", "exact")
    assert 0 == outcome.code
    assert f"B               {shown}: 64x48 px, RGB, 8 bits a value (uint8), PNG" in outcome.out.splitlines()


def test_a_name_that_is_no_utf_8(place: Workplace) -> None:
    name = b"\xff\xfe.png".decode("utf-8", "surrogateescape")
    (place.folder / name).write_bytes((place.folder / "a.png").read_bytes())
    assert 0 == place.run("a.png", name).code
    assert "\ufffd\ufffd.png" == place.run("a.png", name, "--json").document["pairs"][0]["name"]


def test_a_leading_dash_after_two_dashes(place: Workplace) -> None:
    (place.folder / "-dash.png").write_bytes((place.folder / "a.png").read_bytes())
    assert 0 == place.run("--contract", "exact", "--", "-dash.png", "a.png").code
    assert 2 == place.run("-dash.png", "a.png").code


def test_the_same_file_twice_and_through_a_link_is_said(place: Workplace) -> None:
    (place.folder / "link.png").symlink_to("a.png")
    for other in ("a.png", "link.png", "./a.png"):
        outcome = place.run("a.png", other)
        assert 0 == outcome.code
        assert "A and B are the same file" in outcome.err
    assert 2 == place.run("a.png", "again.png", "--diff-image", "link.png").code


def test_a_video_beside_a_picture_is_one_clear_sentence(place: Workplace) -> None:
    (place.folder / "clip.mp4").write_bytes(b"\0\0\0\x18ftypisom")
    outcome = place.run("clip.mp4", "a.png")
    assert 1 == outcome.code
    assert outcome.err.startswith(
        "fuseproof: error: clip.mp4 cannot be compared: it is a video and a.png is a picture.\n"
    )
