"""SIGTERM becomes an exception once, and the handler before it comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fuseproof.cli.termination import Terminated, sigterm_raises


def test_the_first_signal_raises_and_the_second_is_ignored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated), sigterm_raises():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
    assert before == signal.getsignal(signal.SIGTERM)


def test_another_thread_changes_nothing() -> None:
    seen = []

    def look() -> None:
        with sigterm_raises():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert [before] == seen


@pytest.mark.slow_process
def test_a_run_that_is_ended_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    """The signal arrives once the run has set its earlier dump aside, in a real process."""
    dump = tmp_path / "p.json"
    dump.write_text('{"total_duration_ms": 1}')
    started_by = (
        "import signal, sys; from pathlib import Path; import fuseproof.cli.generation as generation\n"
        "def prepare(options):\n"
        "    assert Path('p.json.previous').exists()\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "generation.prepare = prepare\n"
        "from fuseproof.cli.main import main; sys.exit(main(['generate', '--prompt=a', '--perf-dump-path=p.json']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", started_by], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert (143, "") == (done.returncode, done.stdout)
    assert ["fuseproof: the dump of an earlier run is kept as p.json.previous", "fuseproof: terminated"] == (
        done.stderr.splitlines()
    )
    assert ["p.json.previous"] == [path.name for path in tmp_path.iterdir()]
