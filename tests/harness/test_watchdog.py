"""A campaign that is killed takes its slot with it, grandchildren included."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CAMPAIGN = """
import os, pathlib, sys
from fuseproof.harness.campaign.processes import start_process
folder = pathlib.Path(sys.argv[1])
script = "sleep 600 & echo $! >> pids; echo $$ >> pids; mv pids ready; wait"
start_process(["/bin/sh", "-c", script], os.environ, folder, folder / "out", folder / "err")
(folder / "guarded").touch()
sys.stdin.read()
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: object, *, timeout_s: float = 10.0) -> bool:
    """Whether ``condition()`` became true."""
    assert callable(condition)
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
def test_a_killed_campaign_leaves_no_slot(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CAMPAIGN, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as campaign:
        assert wait_until(lambda: all((tmp_path / name).exists() for name in ("ready", "guarded")))
        pids = [int(line) for line in (tmp_path / "ready").read_text().split()]
        assert [True, True] == [is_alive(pid) for pid in pids]
        campaign.send_signal(signal.SIGKILL)
        campaign.wait()
        assert wait_until(lambda: not any(is_alive(pid) for pid in pids))
