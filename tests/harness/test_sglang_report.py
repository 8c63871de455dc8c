"""sglang's report. The expected files were printed by sglang 0.5.23's own compare_perf.py from the same dumps."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from fuseproof.harness.perf.dump import read_perf_dump
from fuseproof.harness.perf.sglang_report import missing_stage_notes, render_sglang_report
from tests.harness.perf_dump_files import DATA, KLEIN, LONGLIVE2, REAL_DUMPS, stage_list, write_dump

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901)
LEGACY = [REAL_DUMPS / "legacy" / "baseline.json", REAL_DUMPS / "legacy" / "candidate.json"]


def report(*paths: Path) -> str:
    return render_sglang_report([read_perf_dump(path) for path in paths], timestamp=MOMENT)


@pytest.mark.parametrize(
    ("expected", "paths"),
    [
        ("longlive2-pair.md", LONGLIVE2[:2]),
        ("klein-slower.md", [KLEIN[1], KLEIN[0]]),
        ("klein-four.md", KLEIN[:4]),
        ("legacy-pair.md", LEGACY),
    ],
    ids=["faster", "slower", "several candidates", "old dumps, marks and a missing stage"],
)
def test_the_report_is_sglangs_byte_for_byte(expected: str, paths: list[Path]) -> None:
    assert (DATA / "sglang_reports" / expected).read_text(encoding="utf-8") == report(*paths)


@pytest.mark.parametrize(
    ("mark", "before_ms", "after_ms"),
    [
        ("⚪️", 550.99, 612.44),
        ("🟢", 639.75, 412.13),
        ("🔴", 1000.0, 1120.1),
        ("⚪️", 1000.0, 1120.0),
        ("🔴", 2000.0, 2200.1),
        ("⚪️", 2000.0, 2199.9),
        ("🟢", 1000.0, 879.9),
        ("⚪️", 1000.0, 880.0),
    ],
)
def test_stage_marks_need_ten_percent_and_120_ms(tmp_path: Path, mark: str, before_ms: float, after_ms: float) -> None:
    paths = [
        write_dump(tmp_path / f"{name}.json", steps=stage_list(("X", time_ms)))
        for name, time_ms in (("a", before_ms), ("b", after_ms))
    ]
    assert report(*paths).splitlines()[12].endswith(f"| {mark} |")


@pytest.mark.parametrize(("mark", "total_ms"), [("✅", 979.9), ("⚪️", 980.0), ("⚪️", 1020.0), ("❌", 1020.1)])
def test_the_end_to_end_mark_needs_two_percent(tmp_path: Path, mark: str, total_ms: float) -> None:
    paths = [write_dump(tmp_path / "a.json"), write_dump(tmp_path / "b.json", total_duration_ms=total_ms)]
    assert report(*paths).splitlines()[5].endswith(f"| {mark} |")


def test_equal_names_are_told_apart_and_pipes_escaped(tmp_path: Path) -> None:
    paths = [
        write_dump(tmp_path / folder / "perf.json", steps=stage_list(("a|b", 1.0), ("a|b", 1.0)))
        for folder in ("x", "y", "z")
    ]
    lines = report(*paths).splitlines()
    assert "| Metric | Baseline | y/perf.json | z/perf.json |" in lines
    assert "| a\\|b | 2.00 | 2.00 (+0.0%) ⚪️ | 2.00 (+0.0%) ⚪️ |" in lines


def test_a_missing_stage_is_noted_beside_the_report(tmp_path: Path) -> None:
    paths = [
        write_dump(tmp_path / "base.json", steps=stage_list(("DenoisingStage", 900.0))),
        write_dump(tmp_path / "new.json", steps=stage_list(("DenoisingStage", 900.0), ("LTX2RefinementStage", 60.0))),
    ]
    notes = missing_stage_notes([read_perf_dump(path) for path in paths])
    assert ["base.json has no stage LTX2RefinementStage; sglang's report shows it as 0.00"] == notes
