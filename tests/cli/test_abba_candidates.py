"""Three and more arms through the command line: planned, refused, run with fake arms, verified, and caught lying."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fuseproof.cli.main import main
from tests.cli.test_abba import Abba, abba  # noqa: F401 (a fixture)
from tests.harness.fake_commands import fake_command

LATIN = "ABCCBA BCAACB CABBAC"


def three(first: float = 1000, second: float = 900, third: float = 1001, **options: Any) -> list[str]:
    """A baseline and two candidates, each a fake arm with its own time."""
    commands = [fake_command(worker_ms=worker, **options) for worker in (first, second, third)]
    flags = ("--baseline-command", "--candidate-command", "--candidate-command")
    return [word for flag, command in zip(flags, commands, strict=True) for word in (flag, command)]


def test_dry_run_lists_every_arm_in_every_place(abba: Abba) -> None:  # noqa: F811
    values = json.loads(abba(*three(), "--dry-run", "--json").out)
    timed = [slot for slot in values["slots"] if slot["kind"] == "timed"]
    assert LATIN.replace(" ", "") == "".join(slot["arm"] for slot in timed)
    assert ["A1", "B1", "C1", "C2", "B2", "A2"] == [slot["label"] for slot in timed[:6]]
    text = abba(*three(), "--dry-run").out
    assert "arm A, the baseline:" in text
    assert "arm B, a candidate:" in text
    assert "arm C, a candidate:" in text


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        pytest.param([], LATIN.split(), id="as many blocks as arms"),
        pytest.param(["--blocks=2"], LATIN.split()[:2], id="as many as asked for"),
        pytest.param(["--order=ABBA"], ["ABCCBA"] * 3, id="one order repeated"),
    ],
)
def test_order_of_the_blocks(abba: Abba, more: list[str], expected: list[str]) -> None:  # noqa: F811
    values = json.loads(abba(*three(), *more, "--dry-run", "--json").out)
    orders = [slot["orientation"] for slot in values["slots"] if slot["kind"] == "timed" and slot["label"] == "A1"]
    assert expected == orders


def test_flags_and_refs_pair_up_in_their_order(abba: Abba) -> None:  # noqa: F811
    both = ["--candidate=--seed=1", "--candidate=--seed=2", "--flags=--prompt x", "--dry-run", "--json"]
    slots = json.loads(abba("--baseline=--seed=0", *both).out)["slots"]
    seeds = {slot["arm"]: next(word for word in slot["command"] if word.startswith("--seed")) for slot in slots}
    assert {"A": "--seed=0", "B": "--seed=1", "C": "--seed=2"} == seeds


PLAN = """
name = "three"
[arms.baseline]
name = "old"
[arms.candidate]
name = "new"
flags = "--seed=1"
[arms.ablation]
name = "without the trick"
flags = "--seed=2"
[[cells]]
name = "panda"
flags = "--prompt x"
"""


def test_a_plan_names_its_further_candidates(abba: Abba, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "three.toml").write_text(PLAN)
    text = abba("three.toml", "--dry-run").out
    assert "arm C, a candidate (without the trick):" in text
    assert "19 slots" in text
    again = abba("three.toml", "--candidate=--seed=3", "--candidate=--seed=4", "--dry-run").out
    assert "--seed=3" in again
    assert "--seed=4" in again
    assert "--seed=2" not in again


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        pytest.param(["three.toml", "--aa"], "--aa runs the baseline as both arms, and this plan has 3", id="aa"),
        pytest.param(["three.toml", "--quick"], "--quick compares two arms, and this plan has 3", id="quick"),
        pytest.param(
            ["three.toml", "--candidate=--seed=9"], "has 2 candidates, and the command line names 1", id="few"
        ),
        pytest.param(
            ["--candidate=--seed=1", "--candidate=--seed=2", "--candidate-ref=HEAD"],
            "--candidate 2 times and --candidate-ref 1 times do not pair up",
            id="unpaired",
        ),
        pytest.param([f"--candidate=--seed={seed}" for seed in range(8)], "There are 8 candidates", id="too-many"),
        pytest.param(
            ["--candidate=--seed=1", "--candidate=--seed 1"],
            "The arms candidate and candidate-c are the same command",
            id="one-twice",
        ),
        pytest.param(["--aa", "--candidate=--seed=1"], "--aa and --candidate exclude each other", id="aa-on-the-line"),
    ],
)
def test_what_makes_no_sense_is_refused(abba: Abba, tmp_path: Path, arguments: list[str], told: str) -> None:  # noqa: F811
    (tmp_path / "three.toml").write_text(PLAN)
    result = abba(*arguments, *([] if "--quick" in arguments else ["--dry-run"]))
    assert 2 == result.code
    assert told in result.err


def test_three_foreign_commands_to_a_verdict_and_through_verify(
    abba: Abba,  # noqa: F811
    capfd: pytest.CaptureFixture[str],
) -> None:
    result = abba(*three(1000, 900, 1200), "--output=c", "--require=faster")
    assert 3 == result.code, result.err
    assert "2 comparisons: 1 FASTER, 1 SLOWER" in result.out
    assert "FASTER: command: candidate B: " in result.out
    assert "19 records: 18 accepted, 1 discarded warm-up" in result.out
    assert "candidates are not compared with each other" in result.out
    assert "--require faster is not reached: command: candidate C is SLOWER" in result.err
    assert 0 == main(["verify", "c"])
    file = Path("c/slots/command/02-2-C/perf.json")
    dump: dict[str, Any] = json.loads(file.read_text())
    dump["timers"]["worker_ms"] *= 1.01
    file.write_text(json.dumps(dump))
    capfd.readouterr()
    assert 1 == main(["verify", "c"])
    out = capfd.readouterr().out
    assert "slots/command/02-2-C/perf.json: timers.worker_ms is " in out
