"""Pictures of a report: contact sheets, differences, two pictures over each other, and the files they are kept in."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import re
import shutil
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from skimage.color import rgb2lab

from fuseproof.errors import FuseproofError
from fuseproof.harness.analysis.campaign import CampaignAnalysis
from fuseproof.harness.analysis.runs import Run as AnalysedRun
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.report import render_html, render_markdown, stale_files, write_report
from fuseproof.harness.report.canvas import png, scale_text, scaled, scaled_levels, step_of
from fuseproof.harness.report.cell_pictures import cell_pictures
from fuseproof.harness.report.colour_map import coloured, palette
from fuseproof.harness.report.contact_sheet import MOST_COLUMNS, MOST_ROWS, WORST_COLOUR, contact_sheet, sheet_rows
from fuseproof.harness.report.figure_files import MOST_CELLS, draw_figures
from fuseproof.harness.report.pack import pack_campaign
from fuseproof.harness.report.shown_outputs import OutputReader
from fuseproof.harness.report.sums import checksums
from fuseproof.harness.verification.verify import verify_campaign
from fuseproof.schedules.order import arms_in_order, orientation
from tests.harness.campaign_builder import CampaignBuilder, Run, picture_pixels

TIMES = ((10.0, 9.5, 9.51, 10.02), (9.52, 10.01, 10.03, 9.5))
WAYS = ("ABBA", "BAAB")
DIFFERENCE, SHEET = "figures/panda-difference-B.png", "figures/panda-sheet.png"
CANDIDATE = "slots/panda/01-2-B/outputs/image-0.png"
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


def differing(
    folder: Path,
    a: Sequence[int] = (1,),
    b: Sequence[int] = (2,),
    cells: Sequence[str] = ("panda",),
    prompts: Sequence[str] = ("a red panda",),
) -> CampaignBuilder:
    """A campaign whose arms' outputs are these pictures, in every cell; one picture for both where they are equal."""
    builder = CampaignBuilder(folder / "campaign", cells=cells)
    for cell in cells:
        for block, (way, row) in enumerate(zip(WAYS, TIMES, strict=True), start=1):
            runs = [
                Run(worker_s=worker_s, denoise_s=5.0, pictures=a if arm == "A" else b, prompts=prompts)
                for arm, worker_s in zip(way, row, strict=True)
            ]
            builder.block(runs, cell=cell, block=block)
    return builder


def opened(folder: Path, name: str) -> np.ndarray:
    return np.asarray(Image.open(folder / name).convert("RGB"))


def test_differing_arms_get_a_difference_a_sheet_and_a_swipe(tmp_path: Path) -> None:
    folder = differing(tmp_path).write()
    write_report(folder)
    assert [DIFFERENCE, SHEET] == sorted(path.relative_to(folder).as_posix() for path in folder.glob("figures/*"))
    html = (folder / "report.html").read_text(encoding="utf-8")
    assert "panda, output 1: the worst pair of A and B" in html
    assert "amplified 63 times" in html and "the lightest colour 4.048 of 255; drawn 32:1" in html
    assert 4 == html.count('src="data:image/png;base64,'), "two outputs, their difference, the sheet"
    assert re.search(
        r'<p class="swipe" hidden>.*<input type="range" min="0" max="100" value="50" aria-label="Edge', html
    )


def test_the_only_script_is_allowed_by_its_hash(tmp_path: Path) -> None:
    html = render_html(write_report(differing(tmp_path).write()))
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    (policy,) = re.findall(r'Security-Policy" content="(.*?)"', html)
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy and "unsafe-inline" not in policy.partition("script-src")[2]


def test_the_difference_shows_how_far_every_pixel_is(tmp_path: Path) -> None:
    folder = differing(tmp_path).write()
    write_report(folder)
    distance = np.abs(picture_pixels(1).astype(int) - picture_pixels(2).astype(int)).max(axis=2)
    assert 4 == distance.max()
    expected = coloured(np.rint(distance * 63 / 255 * 255).astype(np.uint8)).repeat(32, axis=0).repeat(32, axis=1)
    drawn = opened(folder, DIFFERENCE)
    assert np.array_equal(expected, drawn[:512, :512])
    assert np.array_equal(palette(), drawn[520, 4:260]), "a legend of all colours"


def test_equal_pixels_show_one_picture_and_say_so(tmp_path: Path) -> None:
    folder = differing(tmp_path, a=(1, 3), b=(1, 3), prompts=("one", "two")).write()
    analysis = write_report(folder)
    html = render_html(analysis)
    assert "panda: identical: the 2 outputs of all 8 runs of A and B have equal pixels; output 1 is shown" in html
    assert 2 == html.count("<img "), "one output, one sheet"
    assert "<script" not in html and "script-src" not in html
    assert [SHEET] == list(draw_figures(analysis).files)


def test_the_sheet_frames_the_worst_pair(tmp_path: Path) -> None:
    analysis = write_report(differing(tmp_path, a=(1, 3, 5), b=(1, 4, 5), prompts=("x", "y", "z")).write())
    sheet = contact_sheet(analysis.cells[0], OutputReader(analysis.directory))
    assert sheet is not None
    framed = (sheet.pixels == WORST_COLOUR).all(axis=2)
    middles = {(row, column): bool(framed[100 + 150 * row, 90 + 144 * column : 102 + 144 * column].any())
               for row in range(2) for column in range(3)}  # fmt: skip
    assert {(0, 1), (1, 1)} == {place for place, is_framed in middles.items() if is_framed}
    assert (
        "8 runs, of each arm those with the same pixels in one row that names the first of them; drawn 8:1"
        == sheet.words
    )


def test_a_sheet_has_an_end_and_still_holds_the_worst_pair(tmp_path: Path) -> None:
    pictures = tuple(range(1, MOST_COLUMNS + 4))
    builder = CampaignBuilder(tmp_path / "campaign", blocks=6)
    for block in range(1, 7):
        way = arms_in_order(orientation(block - 1, "mirrored"))
        runs = [
            Run(worker_s=10.0, pictures=(*pictures[:-1], 100 * block + place) if arm == "B" else pictures)
            for place, arm in enumerate(way)
        ]
        builder.block(runs, block=block)
    analysis = write_report(builder.write())
    worst = analysis.cells[0].outputs.worst
    assert worst is not None and MOST_COLUMNS + 2 == worst.request
    sheet = contact_sheet(analysis.cells[0], OutputReader(analysis.directory))
    assert sheet is not None
    assert f"{13 - MOST_ROWS} more rows not drawn; 3 more outputs of each run not drawn" in sheet.words
    assert (sheet.pixels == WORST_COLOUR).all(axis=2).any()


def test_rendering_again_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = differing(tmp_path).write()
    write_report(folder)
    first = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "slots" not in path.parts}
    copy = Path(shutil.copytree(folder, tmp_path / "elsewhere"))
    shutil.rmtree(copy / "figures")
    write_report(copy)
    again = {path.name: path.read_bytes() for path in copy.rglob("*") if path.is_file() and "slots" not in path.parts}
    assert first == again
    for name in (DIFFERENCE, SHEET):
        with Image.open(folder / name) as image:
            assert {} == image.info, "no time and no other text"
        assert f"  {name}\n" in (folder / "SHA256SUMS").read_text(encoding="utf-8")


def test_equal_pixels_compressed_otherwise_are_kept(tmp_path: Path) -> None:
    folder = differing(tmp_path).write()
    write_report(folder)
    with Image.open(folder / SHEET) as image:
        image.load()
        image.save(folder / SHEET, "PNG", compress_level=0)
    other = (folder / SHEET).read_bytes()
    analysis = write_report(folder)
    assert other == (folder / SHEET).read_bytes()
    assert [] == stale_files(analysis)
    assert verify_campaign(folder).is_verified


@pytest.mark.parametrize(
    ("problem", "change"),
    [
        ("does not show what the outputs in the slots give", "pixel"),
        ("does not show what the outputs in the slots give", "text"),
        ("is missing", "gone"),
        ("belongs to no picture of this report", "strange"),
    ],
)
def test_a_figure_that_lies_is_found_and_drawn_again(tmp_path: Path, problem: str, change: str) -> None:
    folder = differing(tmp_path).write()
    analysis = write_report(folder)
    right = (folder / SHEET).read_bytes()
    name = "figures/owl-sheet.png" if change == "strange" else SHEET
    if change == "pixel":
        pixels = opened(folder, SHEET).copy()
        pixels[40, 140] ^= 1
        (folder / SHEET).write_bytes(png(pixels))
    elif change == "gone":
        (folder / SHEET).unlink()
    else:
        (folder / name).write_bytes(right if change == "strange" else b"no picture")
    assert name in stale_files(analysis)
    assert f"{name} {problem}" in {finding.text for finding in verify_campaign(folder).findings}
    write_report(folder)
    assert right == (folder / SHEET).read_bytes()
    assert verify_campaign(folder).is_verified


@pytest.mark.parametrize("place", ["figures", SHEET, "figures/other.txt", "report.md", "SHA256SUMS", "floor", "x"])
def test_a_report_writes_and_signs_nothing_through_a_link(tmp_path: Path, place: str) -> None:
    """Verification refuses links, so a report that kept them would send its reader in a circle."""
    folder = differing(tmp_path).write()
    analysis = write_report(folder)
    outside = tmp_path / "outside"
    if (folder / place).exists():
        (folder / place).rename(outside)
    else:
        outside.write_text("mine")
    (folder / place).symlink_to(outside)
    before = {path: path.read_bytes() for path in (outside, *outside.rglob("*")) if path.is_file()}
    assert place in stale_files(analysis)
    with pytest.raises(FuseproofError, match=f"{re.escape(place)} is a link or a special file"):
        write_report(folder)
    assert before == {path: path.read_bytes() for path in (outside, *outside.rglob("*")) if path.is_file()}
    assert [place] == [finding.file for finding in verify_campaign(folder).findings]


def sign_again(folder: Path) -> None:
    (folder / "SHA256SUMS").write_text(checksums(Campaign.open(folder)), encoding="utf-8")


@pytest.mark.parametrize("name", ["figures/x.html", "figures/below/panda-sheet.png", "figures/x-sheet.PNG"])
def test_what_is_no_picture_of_the_report_is_never_signed_as_one(tmp_path: Path, name: str) -> None:
    folder = differing(tmp_path).write()
    analysis = write_report(folder)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("<script>alert(1)</script>")
    assert name in stale_files(analysis)
    with pytest.raises(FuseproofError, match=f"{name} is no picture of this report") as caught:
        write_report(folder)
    assert "Move it out" in str(caught.value.next_step)
    sign_again(folder)
    assert f"{name} belongs to no picture of this report" in {
        finding.text for finding in verify_campaign(folder).findings
    }
    assert (folder / name).is_file()


def bomb() -> bytes:
    """A PNG that says that it has 3.6 thousand million pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def test_a_figure_that_says_it_is_huge_is_another_picture(tmp_path: Path) -> None:
    folder = differing(tmp_path).write()
    write_report(folder)
    right = (folder / SHEET).read_bytes()
    (folder / SHEET).write_bytes(bomb())
    sign_again(folder)
    assert [f"{SHEET} does not show what the outputs in the slots give"] == [
        finding.text for finding in verify_campaign(folder).findings
    ]
    write_report(folder)
    assert right == (folder / SHEET).read_bytes()


def damaged(folder: Path, content: bytes) -> CampaignAnalysis:
    (folder / CANDIDATE).write_bytes(content)
    record = folder / "slots/panda/01-2-B/result.json"
    text = record.read_text(encoding="utf-8")
    known = re.findall(r'"file_sha256": "(\w+)"', text)[0]
    record.write_text(text.replace(known, hashlib.sha256(content).hexdigest()), encoding="utf-8")
    return write_report(folder)


def test_a_damaged_output_is_named_where_it_would_be_shown(tmp_path: Path) -> None:
    analysis = damaged(differing(tmp_path).write(), b"\x89PNG\r\n\x1a\nhalf a picture")
    html = render_html(analysis)
    assert f"panda, output 1: {CANDIDATE} cannot be compared: it is" in html
    assert f"panda, contact sheet: {CANDIDATE} cannot be compared" in html
    assert f"{analysis.directory}/" not in html
    assert DIFFERENCE not in draw_figures(analysis).files


def test_other_sizes_stand_beside_each_other_and_have_no_difference(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.arange(8 * 24 * 3, dtype=np.uint8).reshape(8, 24, 3)).save(buffer, "PNG")
    html = render_html(damaged(differing(tmp_path).write(), buffer.getvalue()))
    assert "no difference is drawn: geometry: A is 16x16 px, B is 24x8 px." in html
    assert '<div class="compare">' in html and 'class="swipe"' not in html and "<script" not in html


def test_only_some_cells_are_drawn_those_that_differ_first(tmp_path: Path) -> None:
    names = [f"cell{index}" for index in range(MOST_CELLS + 3)]
    builder = differing(tmp_path, b=(1,), cells=names[:-1])
    builder.plan["cells"].append(builder.plan["cells"][0] | {"name": names[-1]})
    for block, way in enumerate(WAYS, start=1):
        runs = [Run(worker_s=10.0, pictures=(1,) if arm == "A" else (2,)) for arm in way]
        builder.block(runs, cell=names[-1], block=block)
    analysis = write_report(builder.write())
    figures = draw_figures(analysis)
    assert [names[-1], *names[: MOST_CELLS - 1]] == list(figures.parts)
    html = render_html(analysis, figures)
    assert f"Drawn are {MOST_CELLS} of {MOST_CELLS + 3} cells: those whose outputs differ first." in html
    assert "Pictures of the other cells" in html


def test_every_candidate_has_pictures_of_its_own_and_all_arms_on_its_sheet(tmp_path: Path) -> None:
    analysis = write_report(differing(tmp_path).write())
    cell = analysis.cells[0]
    blocks = tuple(dataclasses.replace(block, runs=tuple(map(as_c, block.runs))) for block in cell.runs.blocks)
    whole = dataclasses.replace(cell.runs, blocks=blocks)
    third = dataclasses.replace(cell, runs=whole.against("C", "../new: kernel"))
    reader = OutputReader(analysis.directory)
    pictures = cell_pictures(third, reader)
    assert ["figures/panda-difference-C.png", "figures/panda-sheet-C.png"] == list(pictures.drawn)
    (comparison,) = [part for part in pictures.parts if part.kind == "comparison"]
    assert comparison.title.endswith("the worst pair of A and C")
    assert ["baseline", "candidate C"] == [side.label for side in comparison.sides]
    assert ["A", "B", "C"] == [row.arm for row in sheet_rows(third.runs.everything)]


def as_c(run: AnalysedRun) -> AnalysedRun:
    """The second block's candidate runs as those of a third arm."""
    is_third = run.record.arm == "B" and run.record.block == 2
    return dataclasses.replace(run, record=dataclasses.replace(run.record, arm="C")) if is_third else run


def test_prompts_and_seeds_are_a_matrix_with_its_worst_case(tmp_path: Path) -> None:
    analysis = write_report(differing(tmp_path, (1, 3, 5), (1, 4, 5), prompts=("one", HOSTILE, "three")).write())
    html, markdown = render_html(analysis), render_markdown(analysis)
    rows = re.findall(
        r"<tr><td>(\d)</td><td><code>.*?</code></td><td>(\d+)</td><td.*?>4 of 4</td><td.*?>(\d) of 4", html
    )
    assert [("1", "42", "4"), ("2", "42", "0"), ("3", "42", "4")] == rows
    assert 1 == html.count("<td><strong>worst case</strong></td>")
    assert "Outputs of panda by prompt and seed" in markdown and "**worst case**" in markdown
    assert "<script>alert" not in html and "<img src=x" not in html + markdown


def test_names_of_files_are_no_markup(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "campaign")
    name = HOSTILE.replace("/", "")
    for block, way in enumerate(WAYS, start=1):
        runs = [
            Run(pictures=(1,) if arm == "A" else (2,), output_overrides={"path": f"outputs/{name}.png"}) for arm in way
        ]
        builder.block(runs, block=block)
    html = render_html(write_report(builder.write()))
    assert "onerror=alert" in html and "<img src=x" not in html and "<script>alert" not in html


def test_figures_are_linked_only_where_someone_serves_them(tmp_path: Path) -> None:
    folder = differing(tmp_path).write()
    analysis = write_report(folder)
    assert "figures/" not in render_markdown(analysis)
    assert pack_campaign(folder, tmp_path / "plain.zip").is_verified
    packed = pack_campaign(folder, tmp_path / "c.zip", base_url="https://example.org/42/")
    with zipfile.ZipFile(packed.archive) as stream:
        body = stream.read("pull-request.md").decode("utf-8")
        for name in ("panda-difference-B.png", "panda-sheet.png"):
            assert f"](https://example.org/42/{name})" in body
            assert (folder / "figures" / name).read_bytes() == stream.read(f"assets/{name}")
    with zipfile.ZipFile(tmp_path / "plain.zip") as stream:
        assert "![" not in stream.read("pull-request.md").decode("utf-8")


@pytest.mark.parametrize(
    ("expected", "text", "size", "longest"),
    [
        pytest.param(-4, "1:4", (2048, 1024), 512, id="large"),
        pytest.param(-2, "1:2", (513, 20), 512, id="just larger"),
        pytest.param(1, "1:1", (512, 512), 512, id="fits"),
        pytest.param(32, "32:1", (16, 16), 512, id="tiny"),
        pytest.param(-129, "1:129", (1, 66000), 512, id="line"),
    ],
)
def test_scales_are_whole_numbers(expected: int, text: str, size: tuple[int, int], longest: int) -> None:
    step = step_of(*size, longest)
    assert expected == step and text == scale_text(step)


def test_one_differing_pixel_stays_visible_at_any_scale() -> None:
    levels = np.zeros((1030, 517), dtype=np.uint8)
    levels[1029, 516] = 255
    small = scaled_levels(levels, -4)
    assert (258, 130) == small.shape
    assert 255 == small[-1, -1] and 255 == small.sum()
    assert (3, 5, 3) == scaled(np.zeros((11, 18, 3), dtype=np.uint8), -4).shape


def test_lightness_rises_evenly_over_the_colours() -> None:
    lightness = rgb2lab(palette()[None] / 255.0)[0, :, 0]
    steps = np.diff(lightness)
    assert (steps >= 0).all()
    assert np.allclose(np.linspace(1.0, 97.0, 256), lightness, atol=1.5)
    assert (np.diff(palette().astype(int).sum(axis=1)) >= 0).mean() > 0.95
