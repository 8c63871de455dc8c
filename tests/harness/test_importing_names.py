"""What names and manifests say of imported files: labels, workloads, tools and their quality words."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fuseproof.errors import UsageError
from fuseproof.harness.importing.labels import Label, fitting_pattern, parse_pattern
from fuseproof.harness.importing.manifest import (
    Machine,
    Manifest,
    ManifestArm,
    ManifestCell,
    ManifestSlot,
    manifest_from,
)
from fuseproof.harness.importing.placing import cell_names
from fuseproof.harness.importing.planning import Choices
from fuseproof.harness.report import render_markdown
from tests.harness.old_evidence import (
    KLEIN,
    ORDER,
    imported,
    origin_of,
    with_manifest,
    write_block,
    write_log,
    write_picture,
)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("klein/r1-a1", Label("klein", "r1", "A", 1, None)),
        ("klein/1-B2", Label("klein", "1", "B", 2, None)),
        ("x/i2v-r3-b1", Label("i2v", "r3", "B", 1, None)),
        ("x/t2v_block-2_baseline-1", Label("t2v", "block-2", "A", 1, None)),
        ("x/block-2-candidate-2", Label("x", "block-2", "B", 2, None)),
        ("x/01-1-A", Label("x", "01", "A", None, 1)),
        ("x/a2", Label("x", "1", "A", 2, None)),
        ("x/wan2.2-a1", Label("wan2.2", "1", "A", 1, None)),
        ("x/r2/b1", Label("x", "r2", "B", 1, None)),
        ("x/two words|é-r1-a1", Label("two words|é", "r1", "A", 1, None)),
    ],
)
def test_known_forms_of_names(name: str, label: Label) -> None:
    path = Path(f"{name}.json")
    assert label == fitting_pattern([path]).label(path)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["old/foo", "old/bar"], "No file name says which block and arm it is, for example foo.json, bar.json; tried"),
        (["old/r1-a1", "old/t2v-r1-a1"], "The file names can be read in two ways"),
    ],
)
def test_names_that_no_known_form_reads(names: list[str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        fitting_pattern([Path(f"{name}.json") for name in names])
    assert words in caught.value.message
    assert "{block}-{arm} (r1-a1)" in caught.value.message
    assert "--labels" in str(caught.value.next_step)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("{block}-{side}", "has no field {side}; the fields are {cell}, {block}, {arm}, {position}"),
        ("{arm}-{arm}", "names {arm} twice"),
        ("r{block}", "does not say where {arm} stands"),
    ],
)
def test_patterns_that_are_none(pattern: str, words: str) -> None:
    with pytest.raises(UsageError, match="--labels") as caught:
        parse_pattern(pattern)
    assert words in caught.value.message


def test_a_pattern_with_a_slash_reads_folders() -> None:
    pattern = parse_pattern("{cell}/{block}-{position}-{arm}/perf")
    assert Label("panda", "01", "B", None, 2) == pattern.label(Path("slots/panda/01-2-B/perf.json"))
    assert pattern.label(Path("perf.json")) is None


def test_workloads_get_names_that_a_folder_can_have() -> None:
    found = cell_names(["two words|é", "two words|ü", "日本", "i2v"])
    assert ["two-words", "two-words-2", "workload", "i2v"] == list(found.values())


MANIFEST = """
schema = 1
title = "Klein, QK norm"
min_effect = "2%"
[arms.baseline]
name = "main"
tool = "sglang"
tool_version = "0.5.23"
quality = "exact"
command = "sglang generate --quality exact"
[arms.candidate]
name = "fused"
tool = "sglang"
tool_version = "0.5.23"
quality = "lossless"
command = "sglang generate --quality lossless"
[machine]
gpus = "NVIDIA H200"
libraries = { torch = "2.9.1" }
[[cells]]
name = "flux2-klein"
label = "klein"
contract = "close:ssim>=0.95"
workload = "1024x1024, 50 steps"
"""


def test_quality_words_stand_with_their_tool(tmp_path: Path) -> None:
    analysis = imported(tmp_path, KLEIN, manifest=with_manifest(tmp_path, MANIFEST))
    report = render_markdown(analysis)
    assert (
        "| Quality, in that tool's words | sglang 0.5.23 quality 'exact' | sglang 0.5.23 quality 'lossless' |" in report
    )
    assert "8 perf dumps measured by sglang 0.5.23, not by this program" in report
    assert "Machine, as the manifest says: NVIDIA H200, torch 2.9.1." in report
    assert "1024x1024, 50 steps" in report
    assert report.startswith("# Klein, QK norm\n")
    assert "flux2-klein" == analysis.cells[0].name
    assert ("sglang", "generate", "--quality", "exact") == analysis.cells[0].runs.runs[0].record.command
    assert 0.02 == analysis.plan.min_effect
    assert "manifest" in {entry.kind for entry in origin_of(analysis).files}


def test_a_quality_in_a_foreign_dump_is_never_printed_bare(tmp_path: Path) -> None:
    for block in (1, 2):
        write_block(tmp_path / "old", block, config={"quality": "lossless", "width": 640})
    report = render_markdown(imported(tmp_path, tmp_path / "old"))
    assert "sglang (version not recorded) quality 'lossless'" in report
    assert report.count("lossless") == report.count("quality 'lossless'")
    assert "width 640" in report


def test_a_manifest_may_name_every_slot(tmp_path: Path) -> None:
    folder = tmp_path / "scattered"
    slots = []
    for index, arm in enumerate(ORDER):
        (path,) = write_block(folder / str(index), 1, arm, is_timed=False)
        write_picture(path)
        write_log(path)
        near = f"scattered/{index}/r1-{arm}"
        slots.append(
            f'[[slots]]\ncell = "t2v"\nblock = 1\narm = "{arm}"\nperf_dump = "{near}.json"\n'
            f'log = "{near}.log"\noutputs = ["{near}.png"]\n'
        )
    analysis = imported(tmp_path, manifest=with_manifest(tmp_path, "".join(slots)))
    (cell,) = analysis.cells
    assert ("t2v", 1, "identical") == (cell.name, len(cell.runs.blocks), cell.outputs.status)
    assert 10.3 == cell.runs.runs[0].record.times.client_s
    assert "scattered/0/r1-a1.json" in {entry.path for entry in origin_of(analysis).files}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"arm": {}}, "key arm is not known"),
        ({"schema": 2}, "key schema"),
        ({"cells": [{"name": "a b"}]}, "key cells.0.name: a name is 1 to 64 letters"),
        ({"cells": [{"name": "a", "contract": "near"}]}, "key cells.0.contract"),
        ({"cells": [{"name": "a"}, {"name": "b", "label": "a"}]}, "two cells are labelled 'a'"),
        ({"slots": [{"cell": "a", "block": 1, "arm": "c1", "perf_dump": "x"}]}, "key slots.0.arm: an arm's run is a1"),
        ({"slots": [{"cell": "a", "block": 0, "arm": "a1", "perf_dump": "x"}]}, "key slots.0.block"),
        ({"slots": [{"cell": "a", "block": 1, "arm": "a1"}]}, "key slots.0.perf_dump is missing"),
        ({"arms": {"baseline": {"quality": 3}}}, "key arms.baseline.quality"),
    ],
)
def test_manifest_errors_name_file_and_key(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        manifest_from(values, "manifest x.toml")
    assert caught.value.message.startswith("manifest x.toml: ")
    assert words in caught.value.message


def test_commits_that_the_manifest_contradicts_are_named(tmp_path: Path) -> None:
    manifest = with_manifest(tmp_path, '[arms.candidate]\ncommit = "deadbeef"\n')
    report = render_markdown(imported(tmp_path, KLEIN, manifest=manifest))
    assert "The manifest says that the candidate is commit deadbeef; other commits stand in klein/r1-b1.json" in report


def test_a_secret_in_a_manifest_is_refused(tmp_path: Path) -> None:
    manifest = with_manifest(tmp_path, '[arms.baseline]\ncommand = "run --token abcdefghij"\n')
    with pytest.raises(UsageError, match="looks like a secret"):
        imported(tmp_path, KLEIN, manifest=manifest)


def test_choices_of_the_command_line_win(tmp_path: Path) -> None:
    choices = Choices(name="mine", title="T", contract="close:psnr>=28", primary="denoise", min_effect=0.05)
    analysis = imported(tmp_path, KLEIN, manifest=with_manifest(tmp_path, MANIFEST), choices=choices)
    plan = analysis.plan
    assert ("mine", "T", "denoise", 0.05) == (plan.name, plan.title, plan.primary, plan.min_effect)
    assert "close:psnr>=28" == plan.cells[0].contract


@pytest.mark.parametrize("name", ["a name", "x|y", "-x"])
def test_a_name_that_no_folder_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="key name"):
        imported(tmp_path, KLEIN, choices=Choices(name=name))


def test_hostile_names_are_escaped_and_renamed(tmp_path: Path) -> None:
    folder = tmp_path / "old <b>"
    for block in (1, 2):
        for path in write_block(folder, block, name="wan 2|<i>é-r{block}-{arm}"):
            write_picture(path)
    analysis = imported(tmp_path, folder)
    assert "wan-2-i" == analysis.cells[0].name
    report = render_markdown(analysis)
    assert "<i>" not in report
    assert "Workloads are named anew" in report


def test_the_manifest_of_the_docs_is_one_and_names_every_key() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "import.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    manifest = manifest_from(tomllib.loads(example), "docs/import.md")
    assert "lossless" == manifest.arms.baseline.quality
    models = (Manifest, ManifestArm, ManifestCell, ManifestSlot, Machine)
    keys = {field.alias or name for model in models for name, field in model.model_fields.items()}
    assert set() == {key for key in keys if key not in example}


def test_dump_that_fits_no_label_is_not_dropped(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    write_block(folder, 1, name="i2v-r{block}-{arm}")
    write_block(folder, 2)
    (folder / "notes.json").write_text("{}", encoding="utf-8")
    with pytest.raises(
        UsageError, match=r"4 of 8 perf dumps do not fit --labels .*r2-a1\.json, .* and 1 more"
    ) as caught:
        imported(tmp_path, folder, labels="{cell}-{block}-{arm}")
    assert "give the files to import by name" in (caught.value.next_step or "")
    given = sorted(folder.glob("i2v-*.json"))
    assert 4 == origin_of(imported(tmp_path, *given, labels="{cell}-{block}-{arm}")).dump_count


@pytest.mark.parametrize(("labels", "names"), [(None, ("baseline", "candidate")), ("{arm}", ("a", "b"))])
def test_two_dumps_without_numbers_are_no_block(tmp_path: Path, labels: str | None, names: tuple[str, str]) -> None:
    folder = tmp_path / "pair"
    paths = write_block(folder)
    for path, name in zip(paths[:2], names, strict=True):
        path.rename(folder / f"{name}.json")
    for path in paths[2:]:
        path.unlink()
    with pytest.raises(UsageError, match="which arm but not which of its two runs") as caught:
        imported(tmp_path, folder, labels=labels)
    assert "fuseproof compare-perf BASELINE CANDIDATE" in (caught.value.next_step or "")
    assert "baseline-1" in (caught.value.next_step or "")
