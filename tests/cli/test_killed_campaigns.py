"""A campaign that is ended in the middle of a slot, by whatever means, goes on and loses nothing it had finished."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fuseproof.cli.main import main
from fuseproof.harness.campaign.folder import Campaign
from tests.harness.killed_campaigns import PATIENCE_S, SLOTS, Call, arms, end_in_slot, measured, processes_of, recover


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """``fuseproof`` in this process, with the same locks as the one that was killed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def run(folder: Path, *arguments: str) -> tuple[int, str]:
        assert folder == tmp_path
        code = main(list(arguments))
        return code, "".join(capfd.readouterr())

    return run


@pytest.mark.parametrize(
    ("number", "slot"),
    [
        pytest.param(1, "01-0-A", id="warm-up"),
        pytest.param(2, "01-1-A", id="first"),
        pytest.param(6, "02-1-B", id="of-the-second-block"),
        pytest.param(SLOTS, "02-4-B", id="last"),
    ],
)
def test_killed_in_a_slot(tmp_path: Path, call: Call, number: int, slot: str) -> None:
    found, code, _ = end_in_slot(tmp_path, number, signal.SIGKILL)
    assert (slot, -signal.SIGKILL) == (found, code)
    assert number - 1 == len(measured(tmp_path)), "what was finished before"
    recovery = recover(tmp_path, call)
    assert recovery.problem is None
    states = {record.id: record.state for record in Campaign.open(tmp_path / "c").slots()}
    assert "interrupted" == states[f"command/{slot}"], "it keeps its place"


@pytest.mark.parametrize("how", [pytest.param(signal.SIGINT, id="Ctrl-C"), pytest.param(signal.SIGTERM, id="SIGTERM")])
def test_ended_in_order_in_a_slot(tmp_path: Path, how: signal.Signals) -> None:
    slot, code, said = end_in_slot(tmp_path, 3, how)
    assert (130, "01-2-B") == (code, slot), said
    assert "finished slots are kept in c\n  next: fuseproof abba --resume c goes on" in said
    assert "interrupted" == Campaign.open(tmp_path / "c").status
    assert [] == processes_of(tmp_path)
    assert 2 == len(measured(tmp_path))


def test_a_disk_that_fills_up_loses_nothing_finished(tmp_path: Path, call: Call) -> None:
    """No file may grow beyond a limit, as on a full disk: the index of the campaign reaches it after some slots."""
    assert 130 == call(tmp_path, *arms(tmp_path, mode="interrupt", fail_on=1), "--output=first")[0]
    limit_bytes = (tmp_path / "first" / "campaign.json").stat().st_size + 1500
    limited = (
        f"import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes}, {limit_bytes}));"
        "from fuseproof.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, *arms(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert 1 == done.returncode, done.stderr
    assert (
        os.strerror(errno.EFBIG) in done.stderr
        and f"go on with: fuseproof abba --resume {tmp_path / 'c'}" in done.stderr
    ), done.stderr
    assert "Traceback" not in done.stderr
    assert 0 < len(measured(tmp_path)) < SLOTS
    assert recover(tmp_path, call).problem is None
