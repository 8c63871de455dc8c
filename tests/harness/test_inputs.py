"""Input files of a campaign: missing ones are found before anything runs, small ones travel with the folder."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path

import pytest

from fuseproof.errors import UsageError
from fuseproof.harness.campaign import inputs
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.inputs import InputFile, keep_inputs, refuse_missing_inputs
from fuseproof.harness.report.reproduce import with_copies
from fuseproof.schedules.plan import Plan, plan_from

KERNEL = b"SITES = []\n"
SHA256 = hashlib.sha256(KERNEL).hexdigest()
COPY = f"inputs/{SHA256[:12]}-my_kernel_.py"


def plan_of(candidate: str, cell: str = "--prompt x") -> Plan:
    arms = {"baseline": {"name": "a", "flags": "--seed 1"}, "candidate": {"name": "b", "flags": candidate}}
    return plan_from({"name": "p", "arms": arms, "cells": [{"name": "c", "flags": cell}]}, "test")


@pytest.mark.parametrize(
    ("candidate", "cell", "named"),
    [
        ("--fastpaths-from k/no.py", "", "Cell c, candidate: --fastpaths-from k/no.py is no file"),
        ("--fastpaths-from=k", "", "--fastpaths-from k is no file"),
        ("", "--image-path no.png", "Cell c, baseline: --image-path no.png is no file"),
        ("--certificate no.json", "", "--certificate no.json is no file"),
        ("", "--prompt-path=~/no-such-prompts.txt", "--prompt-path /"),
    ],
)
def test_a_missing_input_is_a_usage_error(tmp_path: Path, candidate: str, cell: str, named: str) -> None:
    (tmp_path / "k").mkdir()
    with pytest.raises(UsageError) as caught:
        refuse_missing_inputs(plan_of(candidate, cell), tmp_path)
    assert named in caught.value.message
    assert str(tmp_path) in (caught.value.next_step or "")


def test_what_names_no_file_is_let_through(tmp_path: Path) -> None:
    refuse_missing_inputs(plan_of("--certificate auto", "--image-path https://x.test/cat.png --prompt k.py"), tmp_path)


def test_small_inputs_are_copied_and_large_ones_only_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "LARGEST_COPY_BYTES", len(KERNEL))
    (tmp_path / "my kernel?.py").write_bytes(KERNEL)
    (tmp_path / "cat.png").write_bytes(KERNEL + b"#")
    folder = tmp_path / "campaign"
    folder.mkdir()
    plan = plan_of("--fastpaths-from 'my kernel?.py'", "--image-path cat.png")
    large = InputFile("cat.png", hashlib.sha256(KERNEL + b"#").hexdigest(), len(KERNEL) + 1, None)
    assert (large, InputFile("my kernel?.py", SHA256, len(KERNEL), COPY)) == keep_inputs(plan, tmp_path, folder)
    assert KERNEL == (folder / COPY).read_bytes()
    assert [COPY] == [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]


def test_a_campaign_remembers_its_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my kernel?.py").write_bytes(KERNEL)
    plan = plan_of("--fastpaths-from 'my kernel?.py'")
    Campaign.create(tmp_path / "c", plan, command=[], environment={}, created="2026-01-01T00:00:00+00:00")
    assert (InputFile("my kernel?.py", SHA256, len(KERNEL), COPY),) == Campaign.open(tmp_path / "c").inputs


@pytest.mark.parametrize(
    ("expected", "command"),
    [
        ("generate --fastpaths-from inputs/1-k.py", "generate --fastpaths-from k.py"),
        ("generate --fastpaths-from=inputs/1-k.py --seed=1", "generate --fastpaths-from=k.py --seed=1"),
        ("abba --candidate '--fastpaths-from inputs/1-k.py'", "abba --candidate '--fastpaths-from k.py'"),
        ("abba '--candidate=--gate=off --fastpaths-from=inputs/1-k.py'", None),
        ("generate --prompt k.py", "generate --prompt k.py"),
        ('abba --candidate "--prompt \'k.py"', 'abba --candidate "--prompt \'k.py"'),
    ],
)
def test_commands_name_the_copies(expected: str, command: str | None) -> None:
    given = shlex.split(command or "abba '--candidate=--gate=off --fastpaths-from=k.py'")
    assert shlex.split(expected) == with_copies(given, {"k.py": "inputs/1-k.py"})
