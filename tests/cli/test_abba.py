"""Whole campaigns through the command line, with the fake arm: its times are told, so every verdict is reached fast."""

from __future__ import annotations

import errno
import itertools
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fuseproof.cli import terminal_picture
from fuseproof.cli.main import main
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.locking import campaign_locks
from fuseproof.harness.machine import activity
from fuseproof.harness.machine.gpus import GpuSurvey
from fuseproof.schedules.plan import PLANS_FOLDER
from tests.cli.deaf_telemetry import be_deaf_to_the_load
from tests.harness.fake_commands import fake_command

ONE_BLOCK = ["--blocks=1"]
REQUIRED = ["--require=faster"]
FUSED = ["--require-fastpaths", "--blocks=1"]
NOISY_A = "1000,1021,993,1012"
NOISY_B = "1010,990,1019,1003"


class Result(NamedTuple):
    code: int
    out: str
    err: str


Abba = Callable[..., Result]


@pytest.fixture
def abba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Abba:
    """``fuseproof abba`` in an empty folder, with locks of its own and deaf to the load of this machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path.parent))
    be_deaf_to_the_load(monkeypatch)

    def call(*arguments: str, allow_busy: bool = True) -> Result:
        capfd.readouterr()
        code = main(["abba", *arguments, *(["--allow-busy"] if allow_busy else [])])
        captured = capfd.readouterr()
        return Result(code, captured.out, captured.err)

    return call


def arms(baseline: dict[str, Any] | None = None, candidate: dict[str, Any] | None = None) -> list[str]:
    first, second = {"worker_ms": 1000} | (baseline or {}), {"worker_ms": 1001} | (candidate or {})
    return ["--baseline-command", fake_command(**first), "--candidate-command", fake_command(**second)]


def states(directory: Path) -> dict[str, str]:
    return {slot.id.removeprefix("command/"): slot.state for slot in Campaign.open(directory).slots()}


@pytest.mark.parametrize(
    ("baseline", "candidate", "extra", "code", "word"),
    [
        pytest.param({"worker_ms": 1000}, {"worker_ms": 900}, REQUIRED, 0, "FASTER", id="faster"),
        pytest.param({"worker_ms": 1000}, {"worker_ms": 1100}, REQUIRED, 3, "SLOWER", id="slower"),
        pytest.param({"worker_ms": 1000}, {"worker_ms": 1000.1}, [], 0, "SAME", id="same"),
        pytest.param({"worker_ms": 1000}, {"worker_ms": 980}, [*REQUIRED, "--min-effect=5%"], 5, "SAME", id="small"),
        pytest.param({"worker_ms": 1000}, {"worker_ms": 900}, ONE_BLOCK, 0, "INCONCLUSIVE", id="one-block"),
        pytest.param({}, {"worker_ms": 900, "warmup_steps": 50}, ONE_BLOCK, 6, "INVALID", id="unequal-warm-up"),
        pytest.param({}, {"worker_ms": 900, "steps": 2}, ONE_BLOCK, 6, "INVALID", id="unequal-work"),
        pytest.param({}, {"grey": 9}, ONE_BLOCK, 4, "INCONCLUSIVE", id="other-picture"),
        pytest.param({}, {"fused_calls": 0}, FUSED, 6, "INCONCLUSIVE", id="no-fused-call"),
        pytest.param({}, {"fused_calls": 8}, FUSED, 0, "INCONCLUSIVE", id="fused-calls"),
    ],
)
def test_verdicts_and_exit_codes(
    abba: Abba, baseline: dict[str, Any], candidate: dict[str, Any], extra: list[str], code: int, word: str
) -> None:
    result = abba(*arms(baseline, candidate), "--output=c", *extra)
    assert code == result.code, result.err
    assert result.out.startswith(f"{word}: command")
    assert f"report: {Path('c/report.md')}" in result.out.splitlines()
    assert Path("c/report.md").is_file()


def test_impossible_times_fail_their_arm(abba: Abba) -> None:
    result = abba(*arms({}, {"worker_ms": 3_600_000_000}), "--output=c")
    assert (1, True) == (result.code, "claims 3600.000 s of worker time" in result.err)
    assert "IMPOSSIBLE_TIME" in Path("c/report.md").read_text()


def test_times_that_repeat_themselves_are_remarked_upon(abba: Abba) -> None:
    result = abba(*arms({"repeats_itself": 1}), "--output=c", "--blocks=1")
    assert "warning: all 2 baseline runs of command claim 1 ms" in result.err
    assert [("IDENTICAL_TIMES", "A")] == [(item.code, item.arm) for item in Campaign.open("c").warnings]


def test_noise_is_inconclusive(abba: Abba, tmp_path: Path) -> None:
    baseline = {"worker_ms": NOISY_A, "counter": tmp_path / "a"}
    candidate = {"worker_ms": NOISY_B, "counter": tmp_path / "b"}
    result = abba(*arms(baseline, candidate), "--output=c")
    assert (0, True) == (result.code, result.out.startswith("INCONCLUSIVE")), result


@pytest.mark.parametrize("flags", [[], ["--show"]], ids=["plain", "shown"])
def test_the_end_names_report_and_picture(abba: Abba, flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Path] = []
    monkeypatch.setattr(terminal_picture, "show_picture", lambda path, environment: shown.append(path))
    result = abba(*arms(), "--output=c", "--blocks=1", *flags)
    assert ["image.png"] * len(flags) == [path.name for path in shown]
    lines = result.out.splitlines()
    assert ["report: c/report.md", "picture: c/slots/command/01-2-B/outputs/image.png"] == lines[-2:]
    assert "\x1b" not in result.out + result.err
    slots = ("01-0-A: warm-up, discarded", "01-1-A: done", "01-2-B: done", "01-3-B: done", "01-4-A: done")
    expected = [f"fuseproof: slot {number} of 5, command/{slot} after" for number, slot in enumerate(slots, start=1)]
    assert expected == [line.partition(" after")[0] + " after" for line in result.err.splitlines()]


def test_json_is_strict(abba: Abba, tmp_path: Path) -> None:
    result = abba(*arms({}, {"worker_ms": 900}), "--output=c", "--json", "--blocks=1")
    values = json.loads(result.out, parse_constant=pytest.fail)
    assert ("complete", 0, "INCONCLUSIVE") == (
        values["status"],
        values["exit_code"],
        values["analysis"]["cells"][0]["word"],
    )
    assert str(tmp_path / "c" / "report.md") == values["report"]


def test_slots_run_in_the_recorded_order_and_never_overlap(abba: Abba) -> None:
    abba(*arms(), "--output=c")
    slots = Campaign.open("c").slots()
    assert "A ABBA BAAB".replace(" ", "") == "".join(slot.arm for slot in slots)
    assert ["warmup"] + ["timed"] * 8 == [slot.kind for slot in slots]
    moments = [(slot.started_monotonic_s or 0.0, slot.ended_monotonic_s or 0.0) for slot in slots]
    assert all(ended <= started for (_, ended), (started, _) in itertools.pairwise(moments))


def test_dry_run_shows_everything_and_writes_nothing(abba: Abba, tmp_path: Path) -> None:
    result = abba(*arms(), "--dry-run", "--output=c")
    heads = [line.split() for line in result.out.splitlines() if line.startswith("  command/")]
    ids = ["01-0-A", "01-1-A", "01-2-B", "01-3-B", "01-4-A", "02-1-B", "02-2-A", "02-3-A", "02-4-B"]
    assert [f"command/{slot_id}" for slot_id in ids] == [words[0] for words in heads]
    assert ["A1", "B1", "B2", "A2", "B1", "A1", "A2", "B2"] == [words[-1] for words in heads[1:]]
    in_one_line = " ".join(result.out.split())  # where a line breaks depends on how long the checkout's path is
    assert "--perf-dump SLOT/perf.json" in in_one_line and "SLOT is c/slots/" in in_one_line
    assert "OMP_NUM_THREADS=" in result.out and "time: " in result.out and "disk: " in result.out
    assert [] == list(tmp_path.iterdir())


def test_dry_run_says_shared_things_once_and_fits_a_terminal(abba: Abba) -> None:
    result = abba("--dry-run")
    lines = result.out.splitlines()
    for words in (
        "--guidance-scale",
        "OMP_NUM_THREADS=",
        "--fastpaths=off",
        "--fastpaths=auto",
        "'a red circle above a blue square on a white background'",
    ):
        assert 1 == result.out.count(words), words
    assert [] == [line for line in lines if len(line) > 80 and " " in line.strip()]
    assert any(line.split() == ["shapes/01-2-B", "arm", "B", "ABBA", "B1"] for line in lines)


def test_dry_run_of_a_released_size_says_what_it_needs(abba: Abba, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuseproof.harness.machine.gpus.survey_gpus", GpuSurvey)
    text = " ".join(abba("longcat-image-edit", "--dry-run").out.split())
    assert "{plan_dir}" not in text and f"{PLANS_FOLDER}/assets/window-cat.jpg" in text
    assert "note: graph, high have one block: they describe, and are never FASTER or SLOWER" in text
    assert "no CUDA device here, and --load-format dummy in lossless, graph, high makes 27.3 GiB of weights" in text
    remarks = json.loads(abba("longcat-image-edit", "--dry-run", "--json").out)["remarks"]
    assert 2 == len(remarks) and all(remark in text for remark in remarks)
    assert "note: " not in abba("--dry-run").out


def test_dry_run_of_the_default_plan(abba: Abba, tmp_path: Path) -> None:
    values = json.loads(abba("--dry-run", "--json").out)
    baseline, candidate = values["slots"][1]["command"], values["slots"][2]["command"]
    assert ["-m", "fuseproof", "generate", "--model-path", "embedded:longcat-image"] == baseline[1:6]
    assert ("a red circle above a blue square on a white background", "--fastpaths=off", "--fastpaths=auto") == (
        baseline[7],
        baseline[-5],
        candidate[-5],
    )
    assert 9 * 14 == values["estimated_s"] and 4.5 == values["estimated_mib"]
    assert "campaigns/embedded-" in values["directory"]
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        pytest.param(["--blocks=0"], "--blocks", id="no-blocks"),
        pytest.param(["--order=BABA"], "BABA", id="order"),
        pytest.param(["--primary=gpu"], "gpu", id="primary"),
        pytest.param(["--min-effect=much"], "min_effect", id="min-effect"),
        pytest.param(["--contract=nearly"], "nearly", id="contract"),
        pytest.param(["--timeout=0"], "--timeout", id="timeout"),
        pytest.param(["--timeout=nan"], "--timeout", id="timeout-nan"),
        pytest.param(["--name=../../x"], "../../x", id="name"),
        pytest.param(["--require=slower"], "slower", id="require"),
        pytest.param(["--output=."], "already holds files", id="output-is-here"),
        pytest.param(["--output="], "--output is ''; a path was expected", id="output-is-empty"),
        pytest.param([""], "plan ''", id="empty-plan"),
        pytest.param(["no-such-plan"], "no-such-plan", id="plan"),
        pytest.param(["no-such-plan.toml"], "no-such-plan.toml", id="plan-file"),
        pytest.param(["--baseline=--seed=1", "--candidate=--seed=1"], "same command", id="same-arms"),
        pytest.param(["--baseline=x", "--baseline-command=y {perf_dump}"], "exclude", id="two-baselines"),
        pytest.param(["--baseline-command=true {perf_dump} {x}", "--aa"], "{x}", id="placeholder"),
        pytest.param(["--baseline=", "--candidate-command=true"], "{perf_dump}", id="no-perf-dump"),
        pytest.param(
            ["--baseline=", "--candidate-command=no-such-program {perf_dump}"], "no-such-program", id="no-program"
        ),
        pytest.param(["--candidate=--output-path=x"], "--output-path", id="slot-flag"),
        pytest.param(["--candidate=--prompt 'x"], "quotation", id="open-quote"),
        pytest.param(["--aa", "--candidate=--seed=1"], "exclude", id="aa-with-candidate"),
        pytest.param(["--resume=c", "--output=d"], "exclude", id="resume-elsewhere"),
        pytest.param([*arms(), "--flags=--seed=1"], "--flags", id="flags-without-effect"),
        pytest.param(["--candidate=--token=abcdefgh12345678"], "secret", id="secret"),
        pytest.param(["--baseline=--seed=1"], "--candidate", id="lone-baseline"),
        pytest.param(["--baseline-command=x {perf_dump}"], "without --candidate-command", id="lone-baseline-command"),
        pytest.param(["--candidate-command=x {perf_dump}"], "without --baseline-command", id="lone-command"),
        pytest.param(["--baseline-command=python3 -u no.py {perf_dump}", "--aa"], "runs 'no.py' with", id="no-script"),
        pytest.param(
            ["--baseline=", "--candidate-command=sh no.sh", "--time-pattern=x"], "named s or ms", id="no-group"
        ),
        pytest.param(["--candidate=--seed=1", "--time-pattern=(?P<s>.)"], "both arms are `generate`", id="no-command"),
        pytest.param([*arms(), "--time-pattern=(?P<s>.)"], "names {perf_dump} beside a time_pattern", id="two-times"),
        pytest.param([*arms(), *("--candidate-name=x",) * 2], "the number of candidates is 1", id="too-many-names"),
        pytest.param(["--candidate=--sed=1"], "Cell shapes, candidate: generate would refuse", id="unknown-flag"),
        pytest.param(["--candidate=--seed=-1"], "'-1' is not a whole number", id="bad-value"),
        pytest.param(["--flags=--seed=1"], "neither --prompt nor --prompt-path", id="no-prompt"),
        pytest.param(["--candidate=--device=tpu"], "--device is 'tpu'", id="rule-of-generate"),
        pytest.param(["--candidate=--config=none.toml"], "none.toml cannot be read", id="no-config"),
        pytest.param(["--candidate=--help"], "--help runs nothing", id="help"),
        pytest.param(["--candidate=--sed=1", "--dry-run"], "candidate: generate would refuse", id="dry-run"),
        pytest.param(["--candidate=stray"], "stray", id="stray-word"),
        pytest.param(["--candidate=--fastpaths-from k/no.py"], "--fastpaths-from k/no.py is no file", id="no-sites"),
        pytest.param(["--candidate=--image-path=no.png", "--dry-run"], "no.png", id="no-image"),
    ],
)
def test_usage_errors_write_nothing(abba: Abba, tmp_path: Path, arguments: list[str], named: str) -> None:
    (tmp_path / "note.txt").write_text("mine")
    result = abba(*arguments)
    assert (2, "") == (result.code, result.out)
    assert named in result.err and "Traceback" not in result.err
    assert ["note.txt"] == [path.name for path in tmp_path.iterdir()]


def test_the_same_arm_twice_needs_aa(abba: Abba) -> None:
    command = fake_command(worker_ms=1000)
    same = ["--baseline-command", command, "--candidate-command", command, "--output=c"]
    assert 2 == abba(*same).code
    result = abba("--baseline-command", command, "--aa", "--output=c")
    assert (0, True) == (result.code, result.out.startswith("SAME")), result
    assert Campaign.open("c").plan.aa


def test_a_used_folder_is_refused(abba: Abba, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "old.png").write_text("old")
    result = abba(*arms(), "--output=c")
    assert (2, True) == (result.code, "already holds files" in result.err)
    assert ["old.png"] == [path.name for path in (tmp_path / "c").iterdir()]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_named(abba: Abba, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    result = abba(*arms(), "--output=locked/c")
    assert (1, True) == (result.code, "locked/c" in result.err)


def test_a_folder_below_a_file_is_named(abba: Abba, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    result = abba(*arms(), "--output=file/c")
    assert (1, True) == (result.code, f"{tmp_path}/file/c" in result.err)
    assert "Traceback" not in result.err


@pytest.mark.parametrize("name", ["with space", "-dash", "Ünïcödé 熊猫 🐼", "a/b/c", "x" * 200])
def test_odd_folder_names(abba: Abba, name: str) -> None:
    result = abba(*arms(), f"--output={name}", "--blocks=1")
    assert (0, True) == (result.code, (Path(name) / "report.md").is_file()), result.err


def test_the_default_folder_is_named_by_plan_and_time(abba: Abba, tmp_path: Path) -> None:
    assert 0 == abba(*arms(), "--blocks=1", "--name=mine").code
    (folder,) = (tmp_path / "campaigns").iterdir()
    assert folder.name.startswith("mine-20") and folder.name.endswith("Z")


@pytest.mark.parametrize(
    ("mode", "code", "named"),
    [
        pytest.param("exit", "EXIT", "exit status 1", id="exit"),
        pytest.param("oom", "OOM", "out of memory", id="oom"),
        pytest.param("no-dump", "NO_DUMP", "perf.json", id="no-dump"),
        pytest.param("old-dump", "BAD_DUMP", "old run", id="old-dump"),
        pytest.param("truncated-output", "BAD_OUTPUT", "image.png", id="bad-output"),
    ],
)
def test_a_failing_candidate_is_named_and_no_ratio_printed(abba: Abba, mode: str, code: str, named: str) -> None:
    result = abba(*arms({}, {"mode": mode}), "--output=c")
    assert 1 == result.code
    assert named in result.err and "command/01-2-B" in result.err
    assert "its log: c/slots/command/01-2-B/stderr.log" in result.err
    report = Path("c/report.md").read_text()
    assert code in report and "candidate" in report and "faster)" not in result.out + report
    assert {"01-0-A": "done", "01-1-A": "done", "01-2-B": "invalid"} == states(Path("c"))
    assert "failed" == Campaign.open("c").status


def test_a_hanging_candidate_is_ended(abba: Abba) -> None:
    result = abba(*arms({}, {"mode": "hang"}), "--output=c", "--timeout=0.5")
    assert (1, True) == (result.code, "did not end within 0.5 s" in result.err)


def test_a_killed_child_costs_its_block_once(abba: Abba, tmp_path: Path) -> None:
    killed_once = {"counter": tmp_path / "b", "mode": "kill", "fail_on": 2}
    result = abba(*arms({}, {"worker_ms": 900} | killed_once), "--output=c")
    assert (0, True) == (result.code, result.out.startswith("FASTER")), result
    assert "killed by SIGKILL" in result.err and "starts again" in result.err
    first = {"01-0-A": "superseded", "01-1-A": "superseded", "01-2-B": "superseded", "01-3-B": "invalid"}
    again = dict.fromkeys(["01.2-0-A", "01.2-1-A", "01.2-2-B", "01.2-3-B", "01.2-4-A"], "done")
    found = states(Path("c"))
    assert list((first | again).items()) == list(found.items())[:9]
    assert "01.2" in Path("c/report.md").read_text() or "attempt" in Path("c/report.md").read_text()


def test_a_child_killed_every_time_is_given_up(abba: Abba) -> None:
    result = abba(*arms({}, {"mode": "kill"}), "--output=c")
    assert (1, True) == (result.code, "given up" in result.err)
    assert ["01-2-B", "01.2-2-B"] == [slot for slot, state in states(Path("c")).items() if state == "invalid"]


def test_interrupt_in_slot_3_then_resume(abba: Abba, tmp_path: Path) -> None:
    calls = {"counter": tmp_path / "calls"}
    command = arms(calls, {"worker_ms": 900, "mode": "interrupt", "fail_on": 4} | calls)
    result = abba(*command, "--output=c")
    assert (130, "") == (result.code, result.out)
    assert "fuseproof abba --resume c" in result.err
    kept = states(Path("c"))
    assert {"01-0-A": "done", "01-1-A": "done", "01-2-B": "done", "01-3-B": "interrupted"} == kept
    assert "interrupted" == Campaign.open("c").status
    measured = (tmp_path / "c/slots/command/01-2-B/perf.json").read_bytes()

    resumed = abba("--resume=c")
    assert (0, True) == (resumed.code, resumed.out.startswith("FASTER")), resumed
    found = states(Path("c"))
    assert ["superseded", "superseded", "superseded", "interrupted"] == list(found.values())[:4]
    block = ["01.2-0-A", "01.2-1-A", "01.2-2-B", "01.2-3-B", "01.2-4-A"]
    assert block == list(found)[4:9]
    assert measured == (tmp_path / "c/slots/command/01-2-B/perf.json").read_bytes()
    assert 2 == len(Campaign.open("c").sessions)


def test_an_interrupted_campaign_is_told_in_json(abba: Abba) -> None:
    result = abba(*arms({"mode": "interrupt"}), "--output=c", "--json")
    values = json.loads(result.out)
    assert (130, "interrupted", 130) == (result.code, values["status"], values["exit_code"])


def test_resume_takes_the_same_plan_only(abba: Abba) -> None:
    command = arms({"mode": "interrupt"})
    abba(*command, "--output=c")
    result = abba(*command, "--blocks=3", "--resume=c")
    assert (2, True) == (result.code, "differ in blocks" in result.err)
    assert 130 == abba(*command, "--resume=c").code


@pytest.mark.parametrize(
    ("folder", "code", "named"),
    [
        pytest.param("missing", 1, "no campaign folder", id="missing"),
        pytest.param(".", 1, "no campaign folder", id="no-campaign"),
    ],
)
def test_resume_needs_a_campaign(abba: Abba, folder: str, code: int, named: str) -> None:
    result = abba(f"--resume={folder}")
    assert (code, True) == (result.code, named in result.err)


def test_resuming_a_complete_campaign_only_reports(abba: Abba) -> None:
    abba(*arms(), "--output=c", "--blocks=1")
    before = states(Path("c"))
    result = abba("--resume=c")
    assert (0, before) == (result.code, states(Path("c")))
    assert "report: c/report.md" in result.out


def test_slots_of_a_resumed_campaign_run_where_it_was_begun(
    abba: Abba, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = arms({"mode": "interrupt", "fail_on": 1, "counter": "calls"})
    assert 130 == abba(*command, "--output=c", "--blocks=1").code
    monkeypatch.chdir(tmp_path.parent)
    assert 0 == abba(f"--resume={tmp_path}/c").code


def test_a_second_campaign_is_refused_and_the_holder_named(abba: Abba, tmp_path: Path) -> None:
    with campaign_locks(tmp_path / "other", ["cpu"]):
        result = abba(*arms(), "--output=c")
    assert 6 == result.code
    assert f"process {os.getpid()}" in result.err and str(tmp_path / "other") in result.err
    assert [] == list(tmp_path.iterdir())


def test_a_busy_machine_is_refused_unless_allowed(abba: Abba, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    busy = activity.Activity(0.5, 2, 1.5, 0.0, (activity.ActiveProcess("make", 77, 1.5),))
    monkeypatch.setattr("fuseproof.harness.campaign.readiness.sample_activity", lambda: busy)
    result = abba(*arms(), "--output=c", allow_busy=False)
    assert (6, True) == (result.code, "make (pid 77, 1.5 cores)" in result.err and "--allow-busy" in result.err)
    assert [] == list(tmp_path.iterdir())
    assert 0 == abba(*arms(), "--output=c", "--blocks=1").code


def test_a_full_disk_is_one_sentence_and_can_be_resumed(abba: Abba, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.fsync, iter(range(1000))

    def full_at_last(descriptor: int) -> None:
        if next(calls) > 12:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_at_last)
        result = abba(*arms(), "--output=c")
    assert (1, "") == (result.code, result.out)
    lines = [line for line in result.err.splitlines() if not line.startswith("fuseproof: slot ")]
    assert 2 == len(lines) and "No space left on device" in lines[0] and "--resume" in lines[1], result.err
    assert [] == list(Path("c").rglob("*.tmp"))
    assert 0 == abba("--resume=c").code


def test_nothing_private_is_stored(abba: Abba, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrstuvwxyz")
    assert 0 == abba(*arms(), "--output=c", "--blocks=1").code
    for path in Path("c").rglob("*"):
        if path.suffix in {".json", ".md", ".html", ".jsonl", ".sha256"} and path.name != "perf.json":
            text = path.read_text()
            assert str(tmp_path) not in text, path
            assert "hf_abcdef" not in text, path


def test_shared_flags_replace_the_default_request_and_extend_a_plan(abba: Abba) -> None:
    def request(*arguments: str) -> list[str]:
        values = json.loads(abba(*arguments, "--dry-run", "--json").out)
        command = values["slots"][1]["command"]
        return list(command[4 : command.index("--perf-dump-path")])

    assert ["--prompt=x", "--fastpaths=off"] == request("--flags=--prompt=x")
    assert ["--prompt=x", "--seed=1"] == request("--flags=--prompt=x", "--baseline=--seed=1", "--candidate=--seed=2")
    assert "--seed=1" == request("embedded", "--baseline=--seed=1")[-1], "the plan has a candidate"
    assert ["--seed", "7", "--fastpaths=off"] == request("embedded", "--flags=--seed 7")[-3:]
    assert ["--seed", "42"] == [word for word in request("embedded") if word in ("--seed", "42")]
    assert ["--warmup-steps", "1"] == request("--candidate=--seed=8")[-2:], "the baseline is plain generate"


def test_a_plan_file_runs(abba: Abba, tmp_path: Path) -> None:
    text = "\n".join(
        [
            'name = "mine"',
            "blocks = 1",
            f"[arms.baseline]\nname = 'old'\ncommand = {fake_command(worker_ms=1000)!r}",
            f"[arms.candidate]\nname = 'new'\ncommand = {fake_command(worker_ms=900)!r}",
            '[[cells]]\nname = "one"',
            '[[cells]]\nname = "two"',
        ]
    )
    (tmp_path / "mine.toml").write_text(text)
    result = abba("mine.toml", "--output=c", "--require=faster")
    assert 5 == result.code
    assert "one is INCONCLUSIVE, two is INCONCLUSIVE" in result.err
    assert {"one", "two"} == {slot.cell for slot in Campaign.open("c").slots()}


def test_help_loads_nothing_heavy() -> None:
    code = "import sys; from fuseproof.cli.main import main; main(['abba', '--help']); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set() == {"torch", "numpy", "scipy", "pydantic", "rich", "skimage", "psutil"} & set(loaded)
