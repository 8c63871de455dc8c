"""Two campaigns never share a folder or a device; a dead one holds nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuseproof.errors import FuseproofError, InvalidMeasurementError
from fuseproof.harness.campaign.locking import campaign_locks, device_names, lock_folder

HOLD_AND_DIE = """
import os, sys, tempfile
from pathlib import Path
tempfile.tempdir = sys.argv[1]
from fuseproof.harness.campaign.locking import campaign_locks
with campaign_locks(Path(sys.argv[2]), ["cpu"]):
    print("held", flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.fixture(autouse=True)
def own_lock_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("second", "devices", "named"),
    [
        pytest.param("one", ["gpu-2"], "campaign folder", id="same-folder"),
        pytest.param("two", ["gpu-1"], "device gpu-1", id="same-device"),
        pytest.param("two", ["gpu-2", "gpu-1"], "device gpu-1", id="one-device-in-common"),
        pytest.param("link/one", ["gpu-2"], "campaign folder", id="same-folder-by-another-name"),
    ],
)
def test_the_second_is_refused_and_the_holder_named(
    tmp_path: Path, second: str, devices: list[str], named: str
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with campaign_locks(tmp_path / "one", ["gpu-1"]):
        with pytest.raises(InvalidMeasurementError) as caught, campaign_locks(tmp_path / second, devices):
            pass
        assert named in caught.value.message
        assert f"process {os.getpid()}" in caught.value.message
        assert str(tmp_path / "one") in caught.value.message


def test_other_folders_and_devices_are_free(tmp_path: Path) -> None:
    with campaign_locks(tmp_path / "one", ["gpu-1"]), campaign_locks(tmp_path / "two", ["gpu-2"]):
        pass


def test_locks_are_free_again_afterwards(tmp_path: Path) -> None:
    for _ in range(2):
        with campaign_locks(tmp_path / "one", ["cpu"]):
            pass


def test_a_crash_frees_the_locks(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD_AND_DIE, str(tmp_path), str(tmp_path / "one")]
    died = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (-9, "held\n") == (died.returncode, died.stdout), died.stderr
    with campaign_locks(tmp_path / "one", ["cpu"]):
        pass


def test_a_folder_of_somebody_else_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock_folder()
    (folder,) = tmp_path.iterdir()
    monkeypatch.setattr(os, "getuid", lambda: int(folder.name.rsplit("-", 1)[1]) + 1)
    folder.rename(tmp_path / f"fuseproof-locks-{os.getuid()}")
    with pytest.raises(FuseproofError, match="somebody else"):
        lock_folder()


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        pytest.param({}, ("cpu",), id="nothing-known"),
        pytest.param({"visible_gpu_uuids": []}, ("cpu",), id="no-gpu"),
        pytest.param({"visible_gpu_uuids": ["GPU-b", "GPU-a"]}, ("GPU-a", "GPU-b"), id="two-gpus"),
        pytest.param({"visible_gpu_uuids": [None]}, ("cpu",), id="gpu-without-uuid"),
    ],
)
def test_device_names(environment: dict[str, object], names: tuple[str, ...]) -> None:
    assert names == device_names(environment)
