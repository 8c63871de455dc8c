"""A signal becomes an exception once, for every command, and the handlers before it come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuseproof.cli.main import main
from fuseproof.cli.termination import SIGNALS, Terminated, signals_raise


@pytest.fixture(autouse=True)
def handlers_come_back() -> Iterator[None]:
    """A signal leaves them ignored, because the process that got it is ending; this one goes on."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("expected", "first", "second"),
    [
        (Terminated, signal.SIGTERM, signal.SIGTERM),
        (Terminated, signal.SIGTERM, signal.SIGINT),
        (KeyboardInterrupt, signal.SIGINT, signal.SIGINT),
        (KeyboardInterrupt, signal.SIGINT, signal.SIGTERM),
        (Terminated, signal.SIGHUP, signal.SIGTERM),
    ],
)
def test_the_first_signal_raises_and_later_ones_are_ignored(
    expected: type[BaseException], first: signal.Signals, second: signal.Signals
) -> None:
    with pytest.raises(expected), signals_raise():
        try:
            os.kill(os.getpid(), first)
        finally:
            os.kill(os.getpid(), second)
    os.kill(os.getpid(), second)  # while the interpreter shuts down


def test_without_a_signal_the_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with signals_raise():
        assert before != [signal.getsignal(number) for number in SIGNALS]
    assert before == [signal.getsignal(number) for number in SIGNALS]


def test_what_was_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with signals_raise():
        os.kill(os.getpid(), signal.SIGHUP)


@pytest.mark.parametrize(
    ("code", "word", "number"),
    [(143, "terminated", signal.SIGTERM), (143, "terminated", signal.SIGHUP), (130, "interrupted", signal.SIGINT)],
)
def test_any_command_ends_with_a_sentence(
    code: int,
    word: str,
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("fuseproof.cli.models._listed_family", lambda name: os.kill(os.getpid(), number))
    assert code == main(["models", "list"])
    assert ("", f"fuseproof: {word}") == ((found := capsys.readouterr()).out, found.err.strip())


def test_another_thread_changes_nothing() -> None:
    seen = []

    def look() -> None:
        with signals_raise():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert [before] == seen


@pytest.mark.slow_process
def test_a_run_that_is_ended_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    """The signal arrives once the run has set its earlier dump aside, and others while it ends, in a real process."""
    dump = tmp_path / "p.json"
    dump.write_text('{"total_duration_ms": 1}')
    started_by = (
        "import atexit, signal, sys; from pathlib import Path; import fuseproof.cli.generation as generation\n"
        "atexit.register(signal.raise_signal, signal.SIGTERM)\n"
        "def prepare(options):\n"
        "    assert Path('p.json.previous').exists()\n"
        "    try:\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "    finally:\n"
        "        signal.raise_signal(signal.SIGINT)\n"
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
