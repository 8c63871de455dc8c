"""The report files: what they say, what they keep to themselves, and that the same folder gives the same bytes."""

from __future__ import annotations

import gc
import hashlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from fuseproof.errors import FuseproofError
from fuseproof.harness.report import render_html, render_markdown, stale_files, write_report
from fuseproof.harness.report.layout import MAIN_LIMIT_BYTES, WHOLE_LIMIT, main_part
from fuseproof.schedules.order import arms_in_order, orientation
from tests.harness.campaign_builder import CampaignBuilder, Run
from tests.harness.test_seed_tables import LONGLIVE, PUBLISHED_GROUPS

FASTER = ((10.0, 9.5, 9.51, 10.02), (9.52, 10.01, 10.03, 9.5))
SECTIONS = (
    "Summary",
    "Setup",
    "Result",
    "Output check",
    "Memory",
    "Raw runs",
    "Environment",
    "Reproduce",
    "Limitations",
    "Claims",
)
FILES = ("SHA256SUMS", "report.html", "report.json", "report.md")
HOSTILE = (
    "a | b ` c <script>alert(1)</script> </details> **x** [l](http://e) ![i](http://e)\n# head\n| a |\n``` $x$ ~~s~~"
)
SECRET = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWx"


def simple(folder: Path, **plan: Any) -> CampaignBuilder:
    return CampaignBuilder(folder / "campaign", **plan).blocks(FASTER, denoise_s=5.0)


def written(builder: CampaignBuilder) -> dict[str, str]:
    """The report files of a campaign, by name."""
    folder = builder.write()
    write_report(folder)
    return {name: (folder / name).read_text(encoding="utf-8") for name in FILES}


def longlive(folder: Path) -> CampaignBuilder:
    """The published LongLive 2 runs as a campaign: sgl-project/sglang#40405."""
    modes = ("i2v", "t2v")
    builder = CampaignBuilder(folder / "campaign", name="longlive2", blocks=4, cells=modes, order="ABBA")
    for mode in modes:
        for block in (1, 2, 3, 4):
            worker, denoise, client = LONGLIVE[f"{mode}-r{block}"]
            reserved = [59.6426 * 1024 if arm == "A" else 61.0195 * 1024 for arm in "ABBA"]
            rows = zip(worker, denoise, client, reserved, strict=True)
            runs = [
                Run(worker_s=w, denoise_s=d, client_s=c, peak_reserved_mib=r, peak_allocated_mib=50_000.0)
                for w, d, c, r in rows
            ]
            builder.block(runs, cell=mode, block=block)
    return builder


def many_cells(folder: Path, count: int, blocks: int, timers: tuple[str, ...] = ()) -> CampaignBuilder:
    names = [f"workload-{index:03d}" for index in range(count)]
    builder = CampaignBuilder(folder / "campaign", cells=names, blocks=blocks)
    for number, name in enumerate(names):
        for block in range(blocks):
            wobble = (number * 7 + block * 3) % 5 / 1000
            arms = arms_in_order(orientation(block, "mirrored"))
            seconds = [(10.0 if arm == "A" else 9.5) + wobble + slot / 500 for slot, arm in enumerate(arms)]
            builder.block([Run(worker_s=s, **dict.fromkeys(timers, s)) for s in seconds], cell=name, block=block + 1)
    return builder


def table_rows(markdown: str) -> list[list[str]]:
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def digits(text: str) -> list[float]:
    return [float(found.replace("−", "-")) for found in re.findall(r"−?\d+\.\d+", text)]


def test_sections_stand_in_the_order_of_a_pull_request(tmp_path: Path) -> None:
    files = written(simple(tmp_path))
    assert list(SECTIONS) == re.findall(r"^## (.+)$", files["report.md"], re.MULTILINE)
    assert list(SECTIONS) == re.findall(r"<h2>(.+)</h2>", files["report.html"])


def test_summary_leads_with_the_word_effect_and_interval(tmp_path: Path) -> None:
    text = written(simple(tmp_path))["report.md"]
    effect = "−5.07 % latency (1.053× faster), 95 % interval of the reduction [4.84, 5.30] %"
    assert f"**FASTER** · panda: Worker E2E {effect}, 2 blocks (df 3)." == text.splitlines()[4]


def test_published_longlive_groups_are_in_the_result_table(tmp_path: Path) -> None:
    text = written(longlive(tmp_path))["report.md"]
    rows = {row[0]: row for row in table_rows(text) if row[1:2] == ["ABBA"]}
    assert list(PUBLISHED_GROUPS) == list(rows)
    for group, timers in PUBLISHED_GROUPS.items():
        for cell, (baseline_s, candidate_s, reduction) in zip(rows[group][2:], timers, strict=True):
            shown = digits(cell)
            assert [baseline_s, candidate_s] == pytest.approx(shown[:2], abs=1.01e-4), group
            assert reduction == pytest.approx(shown[2], abs=0.0101), group


def test_published_longlive_words_tails_and_memory(tmp_path: Path) -> None:
    text = written(longlive(tmp_path))["report.md"]
    summary = text.split("## Setup")[0]
    assert "2 FASTER" in summary
    assert "reduction 5.84 %" in summary or "5.835" in text
    assert "Peak reserved | 59.6426 | 61.0195 | +1.38 GiB" in text
    assert "1.38 GiB more reserved memory" in text
    raw = [row for row in table_rows(text) if row[:2] == ["t2v-r1", "B1"]]
    assert [["t2v-r1", "B1", "2.2457", "0.5804", "5.9300", "61.0195", ""]] == raw


def test_client_tail_is_reported_beside_a_faster_worker(tmp_path: Path) -> None:
    text = written(longlive(tmp_path))["report.md"]
    assert "POST_WORKER_TAIL: block r1 slot 2 (B1): post-worker gap 3.68 s" in text
    (client,) = [row for row in table_rows(text) if row[1] == "Client E2E incl. save" and "not quoted" in row[3]][-1:]
    assert "INCONCLUSIVE" in client[-1]


def test_no_p_values(tmp_path: Path) -> None:
    files = written(longlive(tmp_path))
    assert not re.search(r"\bp\s*[=<]|p-value", files["report.md"] + files["report.html"])


@pytest.mark.parametrize("place", ["prompt", "flags", "reason"])
def test_hostile_text_stays_text(tmp_path: Path, place: str) -> None:
    builder = CampaignBuilder(tmp_path / "campaign")
    if place == "flags":
        builder.plan["arms"]["candidate"]["flags"] = f"--prompt {json.dumps(HOSTILE)}"
    more: dict[str, Any] = {"prompts": (HOSTILE,)} if place == "prompt" else {}
    builder.blocks(FASTER, **more)
    if place == "reason":
        lost = Run(state="invalid", reason_code="EXIT", reason=HOSTILE, log_tail=(HOSTILE, "```"))
        builder.block([lost], block=3)
        builder.plan["blocks"] = 3
    files = written(builder)
    html = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(files["report.md"])
    for rendered in (html, files["report.html"]):
        page = Page(rendered)
        assert "script" not in page.tags
        assert not {"a", "s", "del"} & page.tags
        assert page.is_balanced, page.problem
        assert "alert(1)" in page.text
    assert list(SECTIONS) == Page(html).headings
    assert {len(set(map(len, group))) for group in Page(html).tables} == {1}, "a | must not add a column"


def test_overlong_prompt_is_cut_and_its_length_said(tmp_path: Path) -> None:
    text = written(CampaignBuilder(tmp_path / "campaign").blocks(FASTER, prompts=("word " * 400,)))["report.md"]
    assert "(2,000 characters)" in text
    assert len(main_part(text).encode()) < MAIN_LIMIT_BYTES


def test_nothing_private_reaches_a_report(tmp_path: Path) -> None:
    environment = {
        "python": {"executable": "/home/anna/venv/bin/python", "version": "3.12"},
        "note": f"token={SECRET}",
        "cache": "/data/secret-project/cache",
    }
    command = [
        "/home/anna/venv/bin/fuseproof",
        "abba",
        "--candidate",
        "--model-path /root/models/m",
        f"--hf-token={SECRET}",
    ]
    builder = CampaignBuilder(
        tmp_path / "campaign", environment=environment, command=command, candidate_flags="--model-path ~/models/m"
    )
    builder.blocks(FASTER, commit="c" * 40)
    tail = (f"File /home/anna/x/y.py: Bearer {SECRET}",)
    builder.block([Run(state="invalid", reason_code="EXIT", reason="see /home/anna/log", log_tail=tail)], block=3)
    files = written(builder)
    for name in ("report.md", "report.html", "report.json"):
        for private in (SECRET, "/home/", "/root/", "anna", "/data/secret-project", str(tmp_path)):
            assert private not in files[name], (name, private)
    assert "~/models/m" in files["report.md"]
    assert "--perf-dump-path reproduce/baseline/perf.json" in files["report.md"]


def test_rendering_again_and_elsewhere_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = longlive(tmp_path)
    first = written(builder)
    stamps = {name: (builder.directory / name).stat().st_mtime_ns for name in FILES}
    write_report(builder.directory)
    assert stamps == {name: (builder.directory / name).stat().st_mtime_ns for name in FILES}, "nothing to write again"
    elsewhere = tmp_path / "other place" / "ünïcode"
    shutil.copytree(builder.directory, elsewhere)
    for name in FILES:
        (elsewhere / name).unlink()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    write_report(elsewhere)
    assert first == {name: (elsewhere / name).read_text(encoding="utf-8") for name in FILES}


def test_checksums_cover_every_file_in_order(tmp_path: Path) -> None:
    builder = simple(tmp_path)
    lines = written(builder)["SHA256SUMS"].splitlines()
    names = [line[66:] for line in lines]
    present = {
        path.relative_to(builder.directory).as_posix() for path in builder.directory.rglob("*") if path.is_file()
    }
    assert present - {"SHA256SUMS"} == set(names)
    assert sorted(names) == names
    for line in lines:
        assert line[:64] == hashlib.sha256((builder.directory / line[66:]).read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "name", ["report.md", "slots/panda/01-1-A/outputs/image-0.png", "slots/panda/02-4-B/stdout.log"]
)
def test_changed_file_is_found(tmp_path: Path, name: str) -> None:
    builder = simple(tmp_path)
    analysis = write_report(builder.write())
    assert [] == stale_files(analysis)
    with (builder.directory / name).open("ab") as stream:
        stream.write(b"x")
    assert name in stale_files(analysis)


def test_numbers_are_strict_json(tmp_path: Path) -> None:
    numbers = json.loads(written(longlive(tmp_path))["report.json"], parse_constant=pytest.fail)
    assert ("fuseproof.report/2", 0) == (numbers["schema"], numbers["exit_code"])
    assert 0.05835 == pytest.approx(numbers["cells"][0]["verdict"]["comparison"]["reduction"], abs=2e-5)


def test_html_is_one_file_with_both_pictures_and_no_script(tmp_path: Path) -> None:
    html = written(simple(tmp_path))["report.html"]
    page = Page(html)
    assert page.is_balanced, page.problem
    assert "script" not in page.tags
    assert 2 == len(page.pictures) and all(source.startswith("data:image/png;base64,") for source in page.pictures)
    assert 'name="viewport"' in html
    assert not re.search(r"(?:src|href)=\"(?!data:)", html), "everything needed is inside"


def test_large_pictures_are_links_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuseproof.harness.report.html.LARGEST_EMBEDDED_BYTES", 10)
    pictures = Page(written(simple(tmp_path))["report.html"]).pictures
    assert ["slots/panda/01-1-A/outputs/image-0.png", "figures/panda-sheet.png"] == pictures


def test_forty_cells_of_eight_runs_fit_a_pull_request(tmp_path: Path) -> None:
    builder = many_cells(tmp_path, 40, 2, ("denoise_s", "client_s", "save_s", "load_s"))
    text = written(builder)["report.md"]
    assert len(text) < WHOLE_LIMIT and len(text.encode()) < WHOLE_LIMIT
    assert len(main_part(text).encode()) < MAIN_LIMIT_BYTES
    assert "moved to raw-runs.md" in text
    raw = (builder.directory / "raw-runs.md").read_text(encoding="utf-8")
    assert 320 == sum(
        row[0].startswith("workload-") and row[1][:1] in "AB" for row in table_rows(raw.split("## Stat")[0])
    )
    assert "raw-runs.md" in (builder.directory / "SHA256SUMS").read_text(encoding="utf-8")


def test_raw_runs_file_goes_when_no_longer_needed(tmp_path: Path) -> None:
    folder = simple(tmp_path).write()
    (folder / "raw-runs.md").write_text("old", encoding="utf-8")
    write_report(folder)
    assert not (folder / "raw-runs.md").exists()


@pytest.fixture
def without_others_objects() -> Iterator[None]:
    """Collections do not walk through what a thousand other tests of this process have left alive."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("without_others_objects")
def test_thousand_slots_in_under_five_seconds(tmp_path: Path) -> None:
    folder = many_cells(tmp_path, 250, 1).write()
    started_s = time.process_time()
    analysis = write_report(folder)
    assert time.process_time() - started_s < 5.0
    assert 1000 == sum(len(cell.runs.runs) for cell in analysis.cells)
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert len(main_part(text).encode()) < MAIN_LIMIT_BYTES
    assert len(text.encode()) < WHOLE_LIMIT


def test_lost_runs_are_counted_with_their_reasons(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "campaign", blocks=3, status="failed").blocks(FASTER)
    builder.warmup(Run(worker_s=12.0))
    gone = Run(state="superseded", reason_code="SUPERSEDED", reason="block 3 started again")
    failed = Run(state="invalid", reason_code="TIMEOUT", reason="it did not end within 60 s", log_tail=("last words",))
    builder.block([gone, failed], block=3).block([failed], block=3, attempt=2)
    text = written(builder)["report.md"]
    line = "12 records: 8 accepted, 1 discarded warm-up, 2 invalid because TIMEOUT (2), 1 superseded."
    assert f"{line} All are kept on disk. Blocks begun again: panda block 3 (2 attempts)." in text
    assert "**panda**: block 3 lost: candidate TIMEOUT in panda/03.2-1-B: it did not end within 60 s" in text
    assert "last words" in text
    assert "Note: the campaign is failed: 2 of 3 planned blocks are complete" in text


def test_one_block_prints_that_it_tests_nothing(tmp_path: Path) -> None:
    text = written(CampaignBuilder(tmp_path / "campaign", blocks=1).blocks([(10.0, 9.0, 9.0, 10.0)]))["report.md"]
    assert "1 block. TOO_FEW_BLOCKS: 1 block tests nothing: its numbers describe, they do not decide." in text
    assert "10.0000 → 9.0000 (10.00%)" in text


def test_degenerate_outputs_are_loud(tmp_path: Path) -> None:
    text = written(CampaignBuilder(tmp_path / "campaign").blocks(FASTER, pictures=(-1,)))["report.md"]
    assert "**exact: PROVES NOTHING**" in text


def test_different_outputs_show_the_worst_case_with_its_variant(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "campaign")
    for block, row in enumerate(FASTER, start=1):
        arms = arms_in_order(orientation(block - 1, "mirrored"))
        runs = [Run(worker_s=s, pictures=(1 if arm == "A" else 2,)) for s, arm in zip(row, arms, strict=True)]
        builder.block(runs, block=block)
    text = written(builder)["report.md"]
    assert re.search(r"worst case output 1 .*SSIM 0\.\d+, PSNR \d+\.\d\d dB, max .* of values differ \(SSIM: ", text)
    assert "4 of 8" in text


def test_unwritable_folder_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = simple(tmp_path).write()

    def refuse(path: Path, text: str) -> None:
        raise FuseproofError(f"Cannot write {path}: No space left on device.")

    monkeypatch.setattr("fuseproof.harness.report.write.write_text_atomically", refuse)
    with pytest.raises(FuseproofError, match=r"Cannot write .*report\.md: No space left"):
        write_report(folder)


@pytest.mark.parametrize("status", ["running", "interrupted", "failed"])
def test_campaign_without_a_slot_still_renders(tmp_path: Path, status: str) -> None:
    text = written(CampaignBuilder(tmp_path / "campaign", status=status, cells=("one", "two")))["report.md"]
    assert list(SECTIONS) == re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert "2 INCONCLUSIVE" in text
    shown = "unfinished (it still runs, or was killed; --resume goes on)" if status == "running" else status
    assert f"the campaign is {shown}: 0 of 4 planned blocks" in text


def test_odd_file_names_reach_every_file(tmp_path: Path) -> None:
    builder = simple(tmp_path)
    folder = builder.write()
    odd = ["a\nb.png", "back\\slash", "ünï |`<b>.png", ".hidden"]
    for name in odd:
        (folder / "slots/panda/01-1-A/outputs" / name).write_bytes(b"x")
    analysis = write_report(folder)
    sums = (folder / "SHA256SUMS").read_text(encoding="utf-8")
    assert len(sums.splitlines()) == sum(path.is_file() for path in folder.rglob("*")) - 1
    assert "\\" + hashlib.sha256(b"x").hexdigest() + "  slots/panda/01-1-A/outputs/a\\nb.png" in sums
    assert [] == stale_files(analysis)


def test_undecodable_output_name_is_spelled_out(tmp_path: Path) -> None:
    path = {"path": "outputs/\udcff.png"}
    builder = CampaignBuilder(tmp_path / "campaign").blocks(FASTER, output_overrides=path)
    folder = builder.write()
    analysis = write_report(folder)
    assert "outputs/%FF.png" in (folder / "report.md").read_text(encoding="utf-8")
    assert [] == stale_files(analysis)
    check = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    assert 0 == subprocess.run(check, cwd=folder, check=False).returncode


def test_renderers_do_not_write(tmp_path: Path) -> None:
    folder = simple(tmp_path).write()
    analysis = write_report(folder)
    for name in FILES:
        (folder / name).unlink()
    assert render_markdown(analysis).startswith("# A synthetic campaign\n")
    assert render_html(analysis).startswith("<!DOCTYPE html>")
    assert not any((folder / name).exists() for name in FILES)


class Page(HTMLParser):
    """What a browser would see of a page: its tags, headings, tables, pictures, text, and whether tags are closed."""

    VOID = frozenset({"meta", "img", "br", "hr", "link", "circle", "rect", "p", "li", "input"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.headings: list[str] = []
        self.pictures: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self.problem = ""
        self._open: list[str] = []
        self.feed(html)
        self.is_balanced = not self.problem and not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "img":
            self.pictures.append(dict(attrs).get("src") or "")
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.VOID:
            return
        if not self._open or self._open.pop() != tag:
            self.problem = self.problem or f"</{tag}> closes nothing at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._open and self._open[-1] == "h2":
            self.headings.append(data)


@pytest.mark.parametrize(
    ("expected", "asked"),
    [("requested size 960x928, width 16, height 16", "960x928"), ("; width 16", "16x16"), ("; width 16", "width 16")],
)
def test_a_size_that_an_input_image_decided_stands_beside_the_one_that_was_asked_for(
    expected: str, asked: str, tmp_path: Path
) -> None:
    builder = CampaignBuilder(tmp_path / "c", blocks=1)
    builder.block([Run(config={"requested_size": asked}) for _ in range(4)])
    write_report(builder.write())
    assert expected in (tmp_path / "c" / "report.md").read_text(encoding="utf-8")
