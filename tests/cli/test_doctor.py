"""``fuseproof doctor``: text and JSON, exit codes, no ANSI when piped, every command named."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys

import pytest
from click.testing import CliRunner

from fuseproof.cli.doctor import doctor, exit_code, summary
from fuseproof.cli.main import COMMANDS
from fuseproof.harness.machine import facts
from fuseproof.harness.machine.capabilities import COMMAND_LIBRARIES, Capability
from fuseproof.harness.machine.facts import Finding
from fuseproof.pipelines import model_cache


def test_every_command_is_judged() -> None:
    assert list(COMMANDS) == list(COMMAND_LIBRARIES)


def test_the_cache_folder_is_the_one_that_the_model_cache_uses() -> None:
    assert model_cache.CACHE_VARIABLE == facts.CACHE_VARIABLE


def test_json_is_one_strict_document_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecretsecretsecret")
    monkeypatch.setenv("HOME", "/home/anna")
    result = CliRunner().invoke(doctor, ["--json"], standalone_mode=False)
    document = json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not strict JSON"))
    assert "fuseproof.doctor/1" == document["schema"]
    assert {"schema", "commands", "measurements", "findings", "activity", "environment"} == set(document)
    assert "hf_secret" not in result.stdout
    assert "/home/anna" not in result.stdout
    assert 0 == result.return_value


def test_text_has_three_parts_and_no_escape_codes_when_piped() -> None:
    variables = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "fuseproof", "doctor"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run(command, capture_output=True, text=True, env=variables, check=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # CPU time, because a busy test machine stretches wall time; the half second of looking costs none.
    assert (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime) < 1.0
    assert "" == result.stderr
    assert "\x1b" not in result.stdout
    for heading in ("What can run here", "What can be measured here", "What would make a measurement untrustworthy"):
        assert heading in result.stdout
    for name in COMMANDS:
        assert re.search(rf"^  (yes|no) +{name}\b", result.stdout, re.MULTILINE)


OLD_PYTHON = Finding("problem", "python", "Python 3.10 is older than 3.11", "install")
BUSY = Finding("problem", "busy CPU", "busy", "wait")
WARNING = Finding("warn", "disk", "full", "free some")


@pytest.mark.parametrize(
    ("expected", "is_available", "findings"),
    [
        pytest.param(0, True, [], id="all well"),
        pytest.param(0, True, [BUSY, WARNING], id="troubles, yet generate runs"),
        pytest.param(1, False, [], id="a library is missing"),
        pytest.param(1, True, [OLD_PYTHON], id="old python"),
    ],
)
def test_exit_code(expected: int, is_available: bool, findings: list[Finding]) -> None:
    commands = [Capability("generate", is_available), Capability("report", False, "not installed: Jinja2")]
    assert expected == exit_code(commands, findings)


@pytest.mark.parametrize(
    ("expected", "findings"),
    [
        pytest.param("1 problem(s), 1 warning(s): do not trust", [BUSY, WARNING], id="problem"),
        pytest.param("No problem, 1 warning(s)", [WARNING], id="warning"),
        pytest.param("No problem and no warning", [Finding("ok", "disk", "fine")], id="nothing"),
    ],
)
def test_summary(expected: str, findings: list[Finding]) -> None:
    assert summary(findings).startswith(expected)


def test_a_missing_library_of_the_doctor_itself_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.setattr(sys, "argv", ["fuseproof", "doctor"])
    result = CliRunner().invoke(doctor, [], standalone_mode=False)
    assert "psutil" in str(result.exception)
    assert 1 == getattr(result.exception, "exit_code", None)
