"""``fastpaths bench`` as a guard and with counters: kernels in plain torch, a stopwatch that is told what to say."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fuseproof.cli import (
    fastpaths_bench,
    fastpaths_bench_again,
    fastpaths_bench_guard,
    fastpaths_bench_launches,
    fastpaths_names,
)
from fuseproof.cli.fastpaths_checks import calls_at
from fuseproof.cli.fastpaths_guide import Guide, read_guide
from fuseproof.cli.main import main
from fuseproof.errors import FuseproofError
from fuseproof.fastpaths import benchmarking
from fuseproof.fastpaths.benchmarking import ROUNDS
from fuseproof.fastpaths.tracing import SiteCall, with_stand_ins
from fuseproof.fastpaths.user_sites import UserSites
from fuseproof.fastpaths.verification import Case, labelled
from fuseproof.pipelines.fastpath_workloads import real_calls
from fuseproof.pipelines.skeletons import skeleton_of
from tests.cli.test_fastpaths_verify import WRONG
from tests.fastpaths.test_verification import exact, residual_call
from tests.fastpaths.test_verification import own as own_site
from tests.harness.test_counters import FUSED, MARK, MUL, NOTHING, QUICK, SLOW, raw_page

_command_of_the_product = partial(fastpaths_bench_again._command, Path("order.json"), Path("measured.json"))
SELECTION = ["--site", "gated_residual"]
FORMS = ("eager", "fused", "floor")


class ToldStopwatch:
    """Says what ``microseconds`` holds for each form, a little more in each round."""

    def __init__(self, microseconds: dict[str, float]) -> None:
        self.microseconds = microseconds
        self.asked = 0

    def milliseconds(self, call: Callable[[int], Any], rotation: int) -> list[float]:
        form, turn = FORMS[self.asked % len(FORMS)], self.asked // len(FORMS) % ROUNDS
        self.asked += 1
        return [self.microseconds[form] / 1e3 * (1 + 0.001 * turn)]


def calls_here(_model: Any, _shapes: Any, own: UserSites | None, _device: Any) -> list[tuple[str, SiteCall]]:
    """A residual in two workloads, and what one's own sites put in its place."""
    plain = residual_call(own_site(exact))
    calls = [plain, *with_stand_ins([plain], own.sites if own is not None else ())]
    return [(workload, call) for workload in ("odd", "even") for call in calls]


@pytest.fixture(scope="module")
def guide() -> Guide:
    """Read once: it parses every file of the room."""
    return read_guide()


@pytest.fixture
def stopwatch(guide: Guide, monkeypatch: pytest.MonkeyPatch) -> ToldStopwatch:
    told = ToldStopwatch({"eager": 90.0, "fused": 30.0, "floor": 20.0})
    monkeypatch.setattr(fastpaths_bench, "card", lambda _: torch.device("cpu"))
    monkeypatch.setattr(fastpaths_bench, "_stopwatch", lambda _: told)
    monkeypatch.setattr(benchmarking, "LARGEST_ROTATION", 2)
    monkeypatch.setattr(fastpaths_names, "read_guide", lambda: guide)
    for module in (fastpaths_bench, fastpaths_bench_again, fastpaths_bench_launches):
        monkeypatch.setattr(module, "calls_of", calls_here)

    def afresh(wanted: dict[str, Any], keys: list[Any]) -> dict[str, Any]:
        return fastpaths_bench_again.measure_again({**wanted, "keys": keys}, torch.device("cpu"), told)

    monkeypatch.setattr(fastpaths_bench_guard, "measured_afresh", afresh)
    return told


@pytest.fixture
def baseline(stopwatch: ToldStopwatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "kernels.json"
    assert main(["fastpaths", "bench", *SELECTION, "--save-baseline", str(path)]) == 0
    assert f"stored in {path}" in capsys.readouterr().err
    return path


@pytest.mark.parametrize(
    ("code", "standing", "changes"),
    [
        pytest.param(0, "same", {}, id="the same"),
        pytest.param(3, "slower", {"fused": 33.0}, id="slower"),
        pytest.param(0, "card", {"fused": 33.0, "eager": 99.0}, id="the card was slower"),
        pytest.param(0, "faster", {"fused": 27.0}, id="faster"),
    ],
)
def test_a_run_is_held_against_its_baseline(
    code: int, standing: str, changes: dict[str, float], stopwatch: ToldStopwatch, baseline: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    stopwatch.microseconds |= changes
    before = stopwatch.asked
    assert main(["fastpaths", "bench", *SELECTION, "--baseline", str(baseline), "--json"]) == code
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert standing in {row["standing"] for row in document["guard"]["rows"]}
    assert (code == 0) is document["guard"]["passed"]
    looks = (stopwatch.asked - before) / len(FORMS) / ROUNDS / len(document["calls"])
    assert (2 if standing == "slower" else 1) == looks
    assert ("look slower and are measured once more" in printed.err) is (standing == "slower")


def child(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """The process of the second look runs ``program`` instead; ORDER and RESULT are its words."""
    command = [sys.executable, "-c", program]
    monkeypatch.setattr(fastpaths_bench_again, "_command", lambda *paths: [*command, *map(str, paths)])


def test_the_second_look_is_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [("gelu_tanh", "gelu_tanh", "1024x1024", "1x8")]
    child(monkeypatch, "import shutil, sys; shutil.copy(*sys.argv[1:])")
    assert {"seed": 3, "keys": [list(key) for key in keys]} == fastpaths_bench_again.measured_afresh({"seed": 3}, keys)
    child(monkeypatch, "raise SystemExit(7)")
    with pytest.raises(FuseproofError, match=r"^1 rows look slower, .* failed: it ended with 7\."):
        fastpaths_bench_again.measured_afresh({}, keys)
    assert ["-m", "fuseproof.cli.fastpaths_bench_again"] == _command_of_the_product()[1:3]


def test_a_failed_second_look_loses_no_baseline(
    stopwatch: ToldStopwatch, baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopwatch.microseconds["fused"] = 33.0
    monkeypatch.setattr(fastpaths_bench_guard, "measured_afresh", fastpaths_bench_again.measured_afresh)
    child(monkeypatch, "raise SystemExit(7)")
    other = tmp_path / "other.json"
    assert main(["fastpaths", "bench", *SELECTION, "--baseline", str(baseline), "--save-baseline", str(other)]) == 1
    assert other.is_file()


def test_wrong_bits_get_no_time_fail_the_guard_and_are_never_stored(
    baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = tmp_path / "mine.py", tmp_path / "other.json"
    file.write_text(WRONG, encoding="utf-8")
    selection = ["--site", "mine", "--fastpaths-from", str(file)]
    flags = ["--baseline", str(baseline), "--save-baseline", str(other)]
    assert main(["fastpaths", "bench", *selection, *flags]) == 1
    printed = capsys.readouterr()
    assert "no time is given for other bits" in printed.out.split("against ")[0]
    assert "  differs  mine (gated_residual)" in printed.out
    assert "was not written: the bits of gated_residual are not eager's" in printed.err
    assert not other.exists()


def test_a_baseline_of_another_card_is_refused_before_anything_is_measured(
    stopwatch: ToldStopwatch, baseline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = json.loads(baseline.read_text(encoding="utf-8"))
    stored["card"] |= {"name": "NVIDIA H100", "power_limit_w": 350.0}
    stored["versions"]["triton"] = "2.0"
    baseline.write_text(json.dumps(stored), encoding="utf-8")
    before = stopwatch.asked
    assert main(["fastpaths", "bench", *SELECTION, "--baseline", str(baseline)]) == 2
    printed = capsys.readouterr()
    assert "card name: NVIDIA H100 in the baseline, cpu here; card power_limit_w: 350.0 in the base" in printed.err
    assert "triton: 2.0 in the baseline" in printed.err
    assert ("", before) == (printed.out, stopwatch.asked)


@pytest.mark.usefixtures("stopwatch")
@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("exists and holds no times of kernels", ["--save-baseline", "notes.txt"]),
        ("is the same file as --baseline", ["--save-baseline", "old.json", "--baseline", "old.json"]),
        ("--ncu 'gelu_tan' is no fast path", ["--ncu", "gelu_tan"]),
        ("--ncu is not given", ["--ncu-report", "a.ncu-rep"]),
        ("are two forms of the same result", ["--markdown", "--json"]),
        ("does not end in .ncu-rep", ["--ncu", "gelu_tanh", "--ncu-report", "a.csv"]),
        ("exists and is not replaced", ["--ncu", "gelu_tanh", "--ncu-report", "a.ncu-rep"]),
    ],
)
def test_mistakes_are_one_sentence(
    words: str, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("notes.txt", "old.json", "a.ncu-rep"):
        Path(name).write_text("{}", encoding="utf-8")
    assert main(["fastpaths", "bench", *flags]) == 2
    assert words in capsys.readouterr().err


FAKE_NCU = """\
#!{python}
import json, sys
from pathlib import Path
words = sys.argv[1:]
if "--version" in words:
    print("NVIDIA (R) Nsight Compute Command Line Profiler\\nVersion 2025.3.0.0 (build 36273991) (public-release)")
elif "--import" in words:
    print(Path(words[words.index("--import") + 1]).read_text())
else:
    assert "--profile-from-start" in words and "fuseproof.cli.fastpaths_bench_launches" in words
    order, result = words[-2:]
    Path(result).write_text(json.dumps(json.loads(Path(order).read_text())["keys"]))
    Path(words[words.index("--export") + 1]).write_text({page!r})
    print("==PROF== Disconnected from process 1")
    {ending}
"""


def fake_ncu(folder: Path, page: str, ending: str = "") -> Path:
    """An ``ncu`` that launches nothing, and whose report is ``page``."""
    program = folder / "bin" / "ncu"
    program.parent.mkdir()
    program.write_text(FAKE_NCU.format(python=sys.executable, page=page, ending=ending), encoding="utf-8")
    program.chmod(0o755)
    return program.parent


def ranges(calls: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    for _ in range(calls):
        yield from ((MARK, NOTHING), (MUL, SLOW), (MUL, QUICK), (MARK, NOTHING), ("_gated_residual_kernel", FUSED))


@pytest.mark.usefixtures("stopwatch")
@pytest.mark.parametrize("kind", ["counted", "absent", "forbidden", "short", "endless", "coloured"])
def test_counters_stand_below_the_times_or_why_there_are_none(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ending = "print('==ERROR== ERR_NVGPUCTRPERM - The user ...'); sys.exit(1)" if kind == "forbidden" else ""
    ending = "print('==ERROR== \\x1b[31mno'); sys.exit(1)" if kind == "coloured" else ending
    page = raw_page(*ranges(2))
    page = page.replace("_gated_residual_kernel", "k" * 140_000) if kind == "endless" else page
    folder = fake_ncu(tmp_path, page if kind != "short" else raw_page(*list(ranges(2))[:7]), ending)
    monkeypatch.setenv("PATH", "/nowhere" if kind == "absent" else str(folder))
    monkeypatch.setattr("fuseproof.harness.counters.ncu.find_ncu.__defaults__", (None, ()))
    stored = tmp_path / "stored.json"
    assert main(["fastpaths", "bench", "--ncu", "gated_residual", "--save-baseline", str(stored)]) == 0
    assert stored.is_file()
    out = capsys.readouterr().out
    assert 2 == sum("3.00x" in line for line in out.splitlines())
    if kind == "counted":
        assert "ncu 2025.3.0.0; clocks as the card has them" in out
        assert 2 == out.count("| kernel time, summed (us) | 400.000 | 315.104 | 1.27 |")
        assert "42.27% less measured DRAM traffic" in out
        assert page == Path("gated_residual.ncu-rep").read_text(encoding="utf-8")
    said = {"absent": "was not found", "forbidden": "--cap-add=SYS_ADMIN", "short": "3 marked ranges, and 4 were"}
    said |= {"endless": "field larger than field limit", "coloured": r"\u001b[31mno"}
    assert kind == "counted" or said[kind] in out.split("no hardware counters: ")[1]


@pytest.mark.usefixtures("stopwatch")
def test_an_interrupt_while_counters_are_read_loses_no_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fuseproof.cli.fastpaths_bench_counters.counters_of", interrupted)
    assert main(["fastpaths", "bench", "--ncu", "gated_residual", "--json"]) == 130
    document = json.loads(capsys.readouterr().out)
    assert None is document["counters"]
    assert [30, 30] == [round(row["fused"]["median_us"]) for row in document["calls"]]


@pytest.mark.usefixtures("stopwatch")
def test_the_counted_program_launches_the_rows_own_calls(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the profiler: every form is called once before it counts, and once in its range."""
    assert main(["fastpaths", "bench", *SELECTION, "--json"]) == 0
    calls = json.loads(capsys.readouterr().out)["calls"]
    keys = [[call[name] for name in ("site", "kernel", "workload", "shapes")] for call in calls]
    wanted: dict[str, Any] = {"model": None, "sites": ["gated_residual"], "shapes": []}
    wanted |= {"captured": None, "fastpaths_from": None, "seed": 0, "keys": keys[1:]}
    ranges_heard: list[Any] = []
    monkeypatch.setattr(fastpaths_bench_launches, "_counted", lambda form: ranges_heard.append(form(0)))
    assert keys[1:] == fastpaths_bench_launches.launch_all(wanted, torch.device("cpu"))
    assert [(1, 40, 64)] * 2 == [tuple(result.shape) for result in ranges_heard]


def test_a_table_for_a_pull_request(stopwatch: ToldStopwatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fastpaths", "bench", *SELECTION, "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| 90.18 [90.00, 90.36] | 30.06 [30.00, 30.12] | 3.00x | 20.04 [20.00, 20.08] | 1.50x |" in lines[4]
    assert {9} == {line.count("|") for line in lines[2:]}


def test_frames_of_a_vae_are_calls_in_every_layout_and_pair_of_dtypes() -> None:
    calls = calls_at((1, 8, 1, 3, 4), "longcat-image", None)
    cases = labelled(Case(call, "1x8x1x3x4", "random") for call in calls)
    norms = [str(case.text) for case in cases if case.call.layout.operation == "wan_norm_silu"]
    assert 6 == len(norms)
    assert 3 == sum("channels-last" in text for text in norms)
    assert 2 == sum("x in bfloat16, gamma in float32" in text for text in norms)
    assert 6 == sum(case.call.layout.operation.startswith("norm + wan_norm_silu") for case in cases)
    assert len(cases) == len({(case.call.layout.operation, case.text) for case in cases})


def test_a_family_that_accepts_an_image_has_the_kernels_of_its_encode() -> None:
    model = skeleton_of("embedded:longlive2")
    operations = {call.layout.operation for _, call in real_calls(model, (), torch.device("cpu"))}
    assert {"bordered_frames", "average_downsample_add"} <= operations


@pytest.mark.gpu
def test_a_kernel_is_no_slower_than_itself_on_a_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "kernels.json")
    selection = ["--site", "layernorm_modulate", "--shape", "1x512x3072"]
    assert main(["fastpaths", "bench", *selection, "--save-baseline", path]) == 0
    capsys.readouterr()
    assert main(["fastpaths", "bench", *selection, "--baseline", path, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["guard"]["passed"]
    assert document["card"]["driver"]


@pytest.mark.gpu
def test_counters_on_a_card_or_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--site", "wan_norm_silu", "--shape", "1x256x1x60x104", "--ncu", "wan_norm_silu", "--json"]
    assert main(["fastpaths", "bench", *flags]) == 0
    counters = json.loads(capsys.readouterr().out)["counters"]
    if counters["reason"] is not None:
        pytest.skip(counters["reason"])
    assert Path("wan_norm_silu.ncu-rep").is_file()
    for call in counters["calls"]:
        eager, fused = call["eager"], call["fused"]
        assert (1, True) == (fused["kernels"], eager["kernels"] > 1)
        assert eager["dram_read_bytes"] > 0
        assert fused["registers_per_thread"] > 0
        assert fused["stalls"]
