"""The description of the machine: strict JSON, redacted, complete without a GPU, and its small readers."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from fuseproof.harness.machine.activity import sample_activity
from fuseproof.harness.machine.environment import describe, read_checkout
from fuseproof.harness.machine.gpus import GpuSurvey
from fuseproof.harness.machine.host import (
    measure_timer_tick_s,
    read_cpu_quota,
    read_host,
    read_memory_limit_mib,
    read_quota_use_s,
)
from fuseproof.harness.machine.libraries import required_libraries, requirements_of_checkout, torch_build

NO_GPU = GpuSurvey(reason="nvidia-smi was not found")


def test_describe_is_strict_json_and_has_every_key_without_a_gpu() -> None:
    description = describe(gpus=NO_GPU, variables={})
    assert description == json.loads(json.dumps(description, allow_nan=False))
    assert {
        "fuseproof",
        "python",
        "operating_system",
        "processor",
        "memory",
        "load_average",
        "timer_tick_s",
        "libraries",
        "torch_build",
        "gpus",
        "gpus_reason",
        "visible_gpu_uuids",
        "visible_gpus_reason",
        "cuda_driver_version",
        "environment_variables",
    } == set(description)
    assert ([], "nvidia-smi was not found") == (description["gpus"], description["gpus_reason"])


def test_describe_tells_no_secret_and_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "hf_secretsecretsecretsecret"
    monkeypatch.setenv("HOME", "/home/anna")
    monkeypatch.setenv("HF_TOKEN", secret)
    host = replace(read_host(), operating_system=replace(read_host().operating_system, release=f"x {secret}"))
    variables = {"HF_TOKEN": secret, "TORCH_HOME": "/home/anna/torch", "PYTHONHASHSEED": "0", "FUSEPROOF_NOTE": secret}
    description = describe(host=host, gpus=NO_GPU, variables=variables)
    text = json.dumps(description)
    assert secret not in text
    assert "/home/anna" not in text
    assert {"FUSEPROOF_NOTE": "[redacted]", "PYTHONHASHSEED": "0", "TORCH_HOME": "~/torch"} == description[
        "environment_variables"
    ]
    assert "0" == description["python"]["hash_seed"]


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "core.hooksPath="]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_a_checkout_is_clean_then_dirty_with_a_hash_of_its_changes(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\n", encoding="utf-8")
    git(tmp_path, "init")
    assert "git could not tell" in (read_checkout(tmp_path).reason or "")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    clean = read_checkout(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n", encoding="utf-8")
    dirty = read_checkout(tmp_path)
    assert (False, None, None) == (clean.is_dirty, clean.diff_sha256, clean.reason)
    assert (True, clean.commit) == (dirty.is_dirty, dirty.commit)
    assert 64 == len(dirty.diff_sha256 or "")


def test_a_package_inside_somebody_elses_repository_borrows_no_commit(tmp_path: Path) -> None:
    git(tmp_path, "init")
    assert "not run from a git checkout" == read_checkout(tmp_path).reason


@pytest.mark.parametrize(
    ("expected", "controls"),
    [
        pytest.param(None, {}, id="no control groups"),
        pytest.param(None, {"cpu.max": "max 100000"}, id="no limit"),
        pytest.param(1.5, {"cpu.max": "150000 100000"}, id="at the root"),
        pytest.param(
            0.5, {"cpu.max": "200000 100000", "a/cpu.max": "max 100000", "a/b/cpu.max": "50000 100000"}, id="v2"
        ),
        pytest.param(2.0, {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, id="v1"),
        pytest.param(None, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, id="v1 without limit"),
    ],
)
def test_cpu_quota(tmp_path: Path, expected: float | None, controls: dict[str, str]) -> None:
    write_controls(tmp_path, controls)
    assert expected == read_cpu_quota(tmp_path, "0::/a/b\n")


@pytest.mark.parametrize(
    ("expected", "controls"),
    [
        pytest.param(None, {"cpu.stat": "usage_usec 5000000"}, id="no-limit"),
        pytest.param(None, {"a/cpu.max": "200000 100000"}, id="nobody-tells"),
        pytest.param(
            2.5,
            {
                "a/cpu.max": "100000 100000",
                "a/cpu.stat": "usage_usec 2500000\nuser_usec 1",
                "a/b/cpu.max": "200000 100000",
                "a/b/cpu.stat": "usage_usec 1",
            },
            id="of-the-tightest",
        ),
    ],
)
def test_use_of_the_cpu_quota(tmp_path: Path, expected: float | None, controls: dict[str, str]) -> None:
    write_controls(tmp_path, controls)
    assert expected == read_quota_use_s(tmp_path, "0::/a/b\n")


@pytest.mark.parametrize(
    ("expected", "controls"),
    [
        pytest.param(None, {"memory.max": "max"}, id="no limit"),
        pytest.param(512, {"memory.max": "max", "a/memory.max": str(512 * 2**20)}, id="v2"),
        pytest.param(256, {"memory/memory.limit_in_bytes": str(256 * 2**20)}, id="v1"),
    ],
)
def test_memory_limit(tmp_path: Path, expected: int | None, controls: dict[str, str]) -> None:
    write_controls(tmp_path, controls)
    assert expected == read_memory_limit_mib(tmp_path, "0::/a/b\n")


def write_controls(root: Path, controls: dict[str, str]) -> None:
    for name, text in controls.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n", encoding="utf-8")


def test_the_timer_of_a_test_machine_is_fine() -> None:
    assert 0.0 < measure_timer_tick_s() < 1e-3


def test_our_own_work_is_not_other_work() -> None:
    def work(_duration_s: float) -> None:
        sum(number * number for number in range(300_000))

    activity = sample_activity(0.01, sleep=work)
    assert 0.0 <= activity.other_cpu_cores <= activity.usable_cores
    assert all(process.cpu_cores > 0.0 for process in activity.worst)


@pytest.mark.parametrize(
    ("expected", "requirement"),
    [
        pytest.param(("click", True), "click>=1.0", id="new enough"),
        pytest.param(("click", False), "click>=9999", id="too old"),
        pytest.param(("no-such-library-of-ours", None), "no-such-library-of-ours>=1", id="missing"),
    ],
)
def test_required_libraries(expected: tuple[str, bool | None], requirement: str) -> None:
    (library,) = required_libraries([requirement, 'pytest>=1; extra == "dev"', 'click>=1; sys_platform == "plan9"'])
    assert expected == (library.name, library.is_accepted)


def test_an_uninstalled_checkout_tells_its_requirements_itself(tmp_path: Path) -> None:
    assert [] == requirements_of_checkout(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["click>=1"]\n', encoding="utf-8")
    assert ["click>=1"] == requirements_of_checkout(tmp_path)


@pytest.mark.parametrize(
    ("cuda", "text"),
    [
        pytest.param(None, "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\ngit_version = 'abc'\n", id="CPU"),
        pytest.param("13.0", "__version__ = '2.13.0'\ncuda: Optional[str] = '13.0'\ngit_version = 'abc'\n", id="CUDA"),
        pytest.param("12.8", "__version__ = '2.7.0'\ncuda = '12.8'\ngit_version = 'abc'\n", id="without annotation"),
    ],
)
def test_torch_build_is_read_without_importing_torch(tmp_path: Path, cuda: str | None, text: str) -> None:
    path = tmp_path / "version.py"
    path.write_text(text, encoding="utf-8")
    build = torch_build(path)
    assert build is not None
    assert (cuda, "abc", None) == (build.cuda, build.git_version, build.rocm)
