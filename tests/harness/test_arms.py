"""From arms to commands: placeholders, shared flags, sameness, and nothing private on disk."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fuseproof.errors import UsageError
from fuseproof.harness.campaign.arms import check_arms, portable, recorded_argv, slot_command
from fuseproof.schedules.plan import Arm, Cell, Plan, plan_from

DUMP, OUTPUTS = Path("/c/slots/x/perf.json"), Path("/c/slots/x/outputs")


def plan(baseline: dict[str, Any], candidate: dict[str, Any], **keys: Any) -> Plan:
    arms = {"baseline": {"name": "baseline"} | baseline, "candidate": {"name": "candidate"} | candidate}
    return plan_from({"name": "x", "arms": arms, "cells": [{"name": "x"}]} | keys, "test")


def test_a_flags_arm_runs_generate_in_this_python() -> None:
    cell = Cell(name="x", flags='--prompt "it\'s a panda" --width=256')
    command = slot_command(Arm(name="a", flags="--fastpaths off"), cell, DUMP, OUTPUTS)
    expected = ["--prompt", "it's a panda", "--width=256", "--fastpaths", "off"]
    files = ["--perf-dump-path", str(DUMP), "--output-path", str(OUTPUTS)]
    assert (sys.executable, "-m", "fuseproof", "generate", *expected, *files) == command.argv
    assert command.writes_outputs


@pytest.mark.parametrize(
    ("template", "argv", "writes_outputs"),
    [
        pytest.param("run {perf_dump} {output_dir}", ("run", str(DUMP), str(OUTPUTS)), True, id="both"),
        pytest.param("run --dump={perf_dump}", ("run", f"--dump={DUMP}"), False, id="inside-a-word"),
        pytest.param('run {perf_dump} \'{"a": {"b": 1}}\'', ("run", str(DUMP), '{"a": {"b": 1}}'), False, id="json"),
        pytest.param("run {perf_dump} {{name}}", ("run", str(DUMP), "{name}"), False, id="escaped"),
        pytest.param("'my prog' \"{perf_dump}\" 'a b'", ("my prog", str(DUMP), "a b"), False, id="quoted"),
        pytest.param("run {perf_dump} $HOME `x` *", ("run", str(DUMP), "$HOME", "`x`", "*"), False, id="no-shell"),
    ],
)
def test_templates(template: str, argv: tuple[str, ...], writes_outputs: bool) -> None:
    command = slot_command(Arm(name="a", command=template), Cell(name="x"), DUMP, OUTPUTS)
    assert (argv, writes_outputs) == (command.argv, command.writes_outputs)


@pytest.mark.parametrize(
    ("baseline", "candidate", "named"),
    [
        pytest.param({"command": "true {perf_dump} {seed}"}, {}, "{seed}", id="unknown-placeholder"),
        pytest.param({"command": "true {output_dir}"}, {}, "{perf_dump}", id="no-perf-dump"),
        pytest.param({}, {"command": "no-such-program {perf_dump}"}, "no-such-program", id="no-such-program"),
        pytest.param({"flags": "--seed 1"}, {"flags": "--seed=1"}, "same command", id="same-flags"),
        pytest.param({}, {}, "same command", id="no-flags"),
        pytest.param(
            {"command": "true {perf_dump}"}, {"command": "true  '{perf_dump}'"}, "same command", id="same-words"
        ),
    ],
)
def test_arms_that_cannot_be_measured_are_refused(baseline: Any, candidate: Any, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_arms(plan(baseline, candidate))
    assert named in caught.value.message


@pytest.mark.parametrize(
    "measurable",
    [
        pytest.param(plan({"flags": "--seed 1"}, {"flags": "--seed 2"}), id="other-flags"),
        pytest.param(plan({}, {"env": {"X": "1"}}), id="other-environment"),
        pytest.param(plan({}, {}, aa=True), id="same-on-purpose"),
        pytest.param(plan({}, {"command": "true {perf_dump}"}), id="flags-against-command"),
    ],
)
def test_arms_that_can_be_measured(measurable: Plan) -> None:
    check_arms(measurable)


def test_stored_plans_name_no_home_and_still_run_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/anna")
    cell = {"name": "x", "flags": "--model-path /home/anna/m --prompt 'see /home/anna/m' --image-path=/home/anna/i.png"}
    stored = portable(plan({}, {"command": "/home/anna/run {perf_dump}"}, cells=[cell]))
    assert "--model-path '~/m' --prompt 'see /home/anna/m' '--image-path=~/i.png'" == stored.cells[0].flags
    argv = slot_command(stored.arms.baseline, stored.cells[0], DUMP, OUTPUTS).argv
    assert {"/home/anna/m", "see /home/anna/m", "--image-path=/home/anna/i.png"} <= set(argv)
    assert "/home/anna/run" == slot_command(stored.arms.candidate, stored.cells[0], DUMP, OUTPUTS).argv[0]
    assert stored == portable(stored)


@pytest.mark.parametrize(
    "unfit",
    [
        pytest.param(plan({}, {"flags": "--token=abcdefgh12345678"}), id="flag"),
        pytest.param(plan({"command": "run {perf_dump} hf_ABCDEFGHIJKLMNOPQRSTUV"}, {}), id="token"),
        pytest.param(plan({}, {"env": {"HF_TOKEN": "abcdefgh12345678"}}), id="environment"),
    ],
)
def test_plans_with_secrets_are_refused(unfit: Plan) -> None:
    with pytest.raises(UsageError, match="secret") as caught:
        portable(unfit)
    assert "abcdefgh" not in caught.value.message


def test_recorded_commands_are_relative_and_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/anna")
    argv = ["/home/anna/python", "/home/anna/c/slots/x/perf.json", "hf_ABCDEFGHIJKLMNOPQRSTUV"]
    assert ("~/python", "slots/x/perf.json", "[redacted]") == recorded_argv(argv, Path("/home/anna/c"))


def test_a_relative_program_is_looked_up_where_the_slots_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "checkout"
    folder.mkdir()
    program = folder / "arm.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    plan = plan_from(
        {
            "name": "relative",
            "arms": {
                "baseline": {"name": "old", "command": "./arm.sh {perf_dump}"},
                "candidate": {"name": "new", "command": "./arm.sh {perf_dump} --new"},
            },
            "cells": [{"name": "one"}],
        },
        "test",
    )
    monkeypatch.chdir(tmp_path)
    check_arms(plan, folder)
    with pytest.raises(UsageError, match="no program"):
        check_arms(plan)
