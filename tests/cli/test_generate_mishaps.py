"""What ``fuseproof generate`` does when something around it goes wrong: stdout lost, inputs in the way."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from fuseproof.cli import hash_seed
from fuseproof.errors import FuseproofError
from tests.cli.desk import SMALL, Desk


def test_a_prompt_file_is_not_replaced_by_the_dump(desk: Desk) -> None:
    (desk.folder / "prompts.txt").write_text("a")
    assert 2 == desk.run("--prompt-path=prompts.txt", *SMALL, "--perf-dump-path=prompts.txt")
    assert "is the same file as --prompt-path" in desk.err
    assert ("a", None) == ((desk.folder / "prompts.txt").read_text(), desk.session.opened_with)


@pytest.mark.parametrize("value", ["0", "many"])
def test_a_thread_count_that_is_none_is_told(desk: Desk, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert 0 == desk.run("--prompt=a", *SMALL, "--perf-dump-path=p.json")
    assert f"warning: OMP_NUM_THREADS is {value!r}" in desk.err
    assert any("OMP_NUM_THREADS" in warning for warning in desk.dump()["warnings"])


def test_a_dump_that_was_written_stays_when_stdout_is_lost(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(options: Any, saved: Any) -> None:
        raise OSError(28, "No space left on device")

    assert 0 == desk.run("--prompt=a", *SMALL, "--perf-dump-path=p.json", "--no-save-output")
    monkeypatch.setattr(sys.modules["fuseproof.cli.generate"], "_say_saved", lost)
    with pytest.raises(OSError, match="No space"):
        desk.run("--prompt=b", *SMALL, "--perf-dump-path=p.json", "--no-save-output")
    assert (["p.json"], ["b"]) == (desk.files(), desk.dump()["meta"]["prompt"])


def test_a_failed_run_says_why_even_when_stdout_is_lost(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(options: Any, saved: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys.modules["fuseproof.cli.generate"], "_say_saved", lost)
    desk.session.outcomes[0] = FuseproofError("out of memory")
    assert 1 == desk.run("--prompt=a", *SMALL)
    assert "out of memory" in desk.err


def test_the_restart_needs_no_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: calls.append(arguments))
    monkeypatch.setattr(sys, "argv", ["fuseproof", "generate"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "fuseproof", "generate"])
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setenv("PYTHONHASHSEED", "")
    monkeypatch.setenv(hash_seed.MARKER, "")
    hash_seed.restart_with_fixed_hash_seed("generate", [])
    assert 1 == len(calls)
