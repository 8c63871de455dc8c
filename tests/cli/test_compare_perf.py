"""`fuseproof compare-perf` as a user meets it: streams, formats, exit codes, and every way to call it wrongly."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fuseproof.cli.main import main
from tests.harness.perf_dump_files import KLEIN, LONGLIVE2, dump_values, stage_list, step_list, write_block, write_dump

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``fuseproof compare-perf`` in this process: exit code, stdout, stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        code = main(["compare-perf", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_a_real_pair(run: Run) -> None:
    code, out, err = run(*LONGLIVE2[:2])
    assert (code, err) == (0, "")
    assert out.startswith("## Perf comparison\n")
    assert "−6.05 % latency (1.064× faster)" in out
    assert "\x1b" not in out


def test_a_slower_pair_is_no_verdict(run: Run) -> None:
    code, out, _ = run(KLEIN[1], KLEIN[0])
    assert code == 0
    assert "(0.974×, slower)" in out
    assert "not a verdict" in out


def test_sglangs_format(run: Run) -> None:
    code, out, err = run("--format", "sglang", *LONGLIVE2[:2])
    assert (code, err) == (0, "")
    assert out.startswith("### Performance Comparison Report\n\n#### 1. High-level Summary\n")
    assert "| **E2E Latency** | 5613.36 ms | 5273.72 ms | **-339.64 ms (-6.1%)** | ✅ |" in out


def test_sglangs_format_says_on_stderr_what_it_cannot_show(run: Run, tmp_path: Path) -> None:
    new = write_dump(tmp_path / "new.json", steps=stage_list(("DenoisingStage", 900.0), ("LTX2RefinementStage", 60.0)))
    code, out, err = run("--format=sglang", write_dump(tmp_path / "base.json"), new)
    assert code == 0
    assert "| LTX2RefinementStage | 0.00 | 60.00 |" in out
    assert "warning: base.json has no stage LTX2RefinementStage" in err


def test_sglangs_format_doubts_on_stderr(run: Run, tmp_path: Path) -> None:
    base = write_dump(tmp_path / "base.json", total_duration_ms=3500.0)
    code, _, err = run("--format=sglang", base, write_dump(tmp_path / "new.json"))
    assert code == 0
    assert "warning: new.json: the worker times are 3.50x apart: more than is usually believed" in err


def test_abba(run: Run) -> None:
    code, out, err = run("--abba", *LONGLIVE2)
    assert (code, err) == (0, "")
    assert "**FASTER**: Worker E2E −5.80 % latency" in out
    assert "[5.29, 6.32] %" in out


def test_abba_slower_exits_3(run: Run) -> None:
    code, out, _ = run("--abba", *[KLEIN[i] for i in (1, 0, 3, 2, 5, 4, 7, 6)])
    assert code == 3
    assert "## A-B-B-A comparison: SLOWER" in out


@pytest.mark.parametrize(
    ("word", "effect"), [("FASTER", "1%"), ("FASTER", "0.01"), ("SAME", "5 %"), ("INCONCLUSIVE", "2.6%")]
)
def test_min_effect(run: Run, word: str, effect: str) -> None:
    code, out, _ = run("--abba", "--min-effect", effect, *KLEIN)
    assert code == 0
    assert out.startswith(f"## A-B-B-A comparison: {word}\n")


def test_order(run: Run, tmp_path: Path) -> None:
    files = [
        *write_block(tmp_path, (10.0, 9.0, 9.0, 10.0)),
        *write_block(tmp_path, (9.0, 10.0, 10.0, 9.0), name="r2", order="baab"),
    ]
    code, out, _ = run("--abba", "--order", "ABBA,BAAB", *files)
    assert code == 0
    assert out.startswith("## A-B-B-A comparison: FASTER")
    code, out, err = run("--abba", *files)
    assert code == 6
    assert "--order mirrored" in out
    assert err.endswith("--order mirrored.\n")
    assert "--force" not in out + err


@pytest.mark.parametrize("mode", [(), ("--abba",)], ids=["pair", "abba"])
def test_json_is_strict_and_alone_on_stdout(run: Run, mode: tuple[str, ...]) -> None:
    code, out, err = run("--json", *mode, *KLEIN[:8] if mode else KLEIN[:2])
    assert (code, err) == (0, "")
    assert json.loads(out, parse_constant=pytest.fail)["schema"].startswith("fuseproof.")


def test_output_goes_to_a_file(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "new" / "report.md"
    code, out, err = run("--output", target, *KLEIN[:2])
    assert (code, out, err) == (0, "", f"Written: {target}\n")
    assert target.read_text(encoding="utf-8") == run(*KLEIN[:2])[1]


def test_output_never_overwrites_an_input(run: Run, tmp_path: Path) -> None:
    base, new = write_dump(tmp_path / "a.json"), write_dump(tmp_path / "b.json")
    code, out, err = run("--output", new, base, new)
    assert (code, out) == (2, "")
    assert "is one of the perf dumps to read" in err
    assert json.loads(new.read_text(encoding="utf-8")) == dump_values()


def test_unequal_work(run: Run, tmp_path: Path) -> None:
    base = write_dump(tmp_path / "base.json", denoise_steps_ms=step_list(*[9.0] * 50))
    new = write_dump(tmp_path / "new.json", denoise_steps_ms=step_list(*[9.0] * 27))
    code, out, err = run(base, new)
    assert code == 6
    assert "INVALID: unequal work" in out
    assert "unequal work: denoise steps: 50 against 27 (new.json)." in err
    assert "--force" in err
    code, out, err = run("--force", base, new)
    assert (code, err) == (0, "")
    assert "compared all the same (--force)" in out
    code, out, err = run("--json", base, new)
    assert (code, json.loads(out)["is_equal_work"]) == (6, False)
    code, out, err = run("--format=sglang", base, new)
    assert (code, out) == (6, "")
    code, out, err = run("--format=sglang", "--force", base, new)
    assert code == 0
    assert "warning: The dumps record unequal work" in err


def test_invalid_blocks(run: Run) -> None:
    code, out, err = run("--abba", *sorted(KLEIN))
    assert code == 6
    assert out.startswith("## A-B-B-A comparison: INVALID\n")
    assert "error: The blocks are invalid: arm A of block r1 is not one program" in err
    assert err.count("\n") == 2


@pytest.mark.parametrize("mode", [(), ("--format=sglang",), ("--json",), ("--abba",)])
@pytest.mark.parametrize("content", [None, "", '{"total', "[]", '{"total_duration_ms": NaN}'])
def test_a_bad_file_leaves_stdout_empty(run: Run, tmp_path: Path, mode: tuple[str, ...], content: str | None) -> None:
    bad = tmp_path / "bad.json"
    if content is not None:
        bad.write_text(content, encoding="utf-8")
    files = [KLEIN[0], bad, *KLEIN[2:4]] if mode == ("--abba",) else [KLEIN[0], bad]
    code, out, err = run(*mode, *files)
    assert (code, out) == (1, "")
    assert err.startswith(f"fuseproof: error: {bad}")
    assert err.count("\n") == 2


USAGE = {
    "no files": ((), "needs at least 2 perf dumps, got 0"),
    "one file": ((KLEIN[0],), "needs at least 2 perf dumps, got 1"),
    "three files as blocks": (("--abba", *KLEIN[:3]), "--abba reads blocks of 4 files"),
    "one file twice in a block": (("--abba", *KLEIN[:3], KLEIN[0]), "is given twice"),
    "sglang and abba": (("--abba", "--format=sglang", *KLEIN[:4]), "cannot be combined with --abba"),
    "sglang and json": (("--json", "--format=sglang", *KLEIN[:2]), "cannot be combined with --json"),
    "order without abba": (("--order", "ABBA", *KLEIN[:2]), "--order only means something with --abba"),
    "effect without abba": (("--min-effect", "1%", *KLEIN[:2]), "--min-effect only means something with --abba"),
    "unknown order": (("--abba", "--order", "AABB", *KLEIN[:4]), "--order AABB does not fit 1 block"),
    "effect of 100 %": (("--abba", "--min-effect", "1", *KLEIN[:4]), "write 1% or 0.01"),
    "negative effect": (("--abba", "--min-effect=-1%", *KLEIN[:4]), "write 1% or 0.01"),
    "effect NaN": (("--abba", "--min-effect", "nan", *KLEIN[:4]), "write 1% or 0.01"),
    "unknown format": (("--format", "html", *KLEIN[:2]), "'html' is not one of"),
}


@pytest.mark.parametrize(("arguments", "cause"), USAGE.values(), ids=USAGE.keys())
def test_a_wrong_call_exits_2_with_one_sentence(run: Run, arguments: tuple[object, ...], cause: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert cause in err
    assert err.count("\n") == 2


def test_the_same_file_twice_is_compared_and_said_so(run: Run) -> None:
    code, out, _ = run(KLEIN[0], KLEIN[0])
    assert code == 0
    assert "r1-a1.json (2) holds the same run as the baseline" in out
    assert "0.00 % latency (1.000×)" in out


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys; from fuseproof.cli.main import main; code = main(['compare-perf', '--help']); "
        "sys.exit(code or any(name in sys.modules for name in ('torch', 'numpy', 'scipy', 'pydantic')))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "Usage: fuseproof compare-perf" in result.stdout


def test_comparing_loads_no_torch() -> None:
    program = (
        "import sys; from fuseproof.cli.main import main; code = main(['compare-perf', '--abba', *sys.argv[1:]]); "
        "sys.exit(code or 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", program, *map(str, KLEIN)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
