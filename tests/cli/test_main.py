"""How the program ends when it cannot print: one sentence and exit code 1, never a traceback."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuseproof.cli.main import main, report_error
from fuseproof.errors import FuseproofError


def run(stdout: int, unbuffered: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fuseproof", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [("--version",), ("generate", "--help")], ids=" ".join)
def test_a_full_disk_behind_stdout(arguments: tuple[str, ...], unbuffered: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = run(full.fileno(), unbuffered, *arguments)
    assert (1, "fuseproof: error: the result could not be printed: No space left on device.") == (
        done.returncode,
        done.stderr.splitlines()[0],
    )
    assert 2 == len(done.stderr.splitlines())


def test_a_stdout_that_cannot_be_written() -> None:
    with Path(os.devnull).open("rb") as read_only:
        done = run(read_only.fileno(), "", "--version")
    assert (1, True) == (done.returncode, "could not be printed: Bad file descriptor." in done.stderr)
    assert "Traceback" not in done.stderr


def test_a_reader_that_is_gone() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run(writer, "", "--version")
    finally:
        os.close(writer)
    assert (1, "") == (done.returncode, done.stderr), "`| head` that has read enough is no mishap"


def test_a_full_disk_behind_stderr() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fuseproof", "nothing"], stderr=full, stdout=subprocess.PIPE, check=False, timeout=60
        )
    assert (1, b"") == (done.returncode, done.stdout)


def test_a_closed_stdout_is_refused_first(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert 1 == main(["--version"])
    assert "standard output is closed" in capfd.readouterr().err


def test_an_os_error_that_is_not_about_printing_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fuseproof.cli.main.cli.main", fail)
    with pytest.raises(OSError, match="No space"):
        main(["--version"])


def test_a_closed_stderr_is_held_open_so_that_no_file_gets_its_number() -> None:
    code = (
        "import os, sys; from fuseproof.cli.main import main; sys.argv = ['fuseproof', '--version']; main(); "
        "print(os.path.samestat(os.fstat(2), os.stat(os.devnull)))"
    )
    done = subprocess.run(
        ["bash", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, code],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    assert (0, "True") == (done.returncode, done.stdout.splitlines()[-1])


@pytest.mark.parametrize("code", [None, 0, 3, "text"])
def test_an_exit_inside_the_code_that_ran_is_told(
    code: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leave(**_: object) -> None:
        raise SystemExit(code)

    monkeypatch.setattr("fuseproof.cli.main.cli.main", leave)
    assert 1 == main(["--version"])
    assert f"cut short by an exit with {code!r} in test_main.py line" in capsys.readouterr().err


def test_a_broken_pipe_of_somebody_else_is_not_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Click exits silently on any EPIPE; only the one of our own output is no mishap."""

    def lose_a_pipe(_: object) -> list[str]:
        raise OSError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("fuseproof.cli.models._show_lines", lose_a_pipe)
    for stream in ("stdout", "stderr"):  # click wraps them for good
        monkeypatch.setattr(sys, stream, getattr(sys, stream))
    assert 1 == main(["models", "show", "longcat-image"])
    assert "a pipe that the command wrote to was closed" in capsys.readouterr().err


def test_a_text_that_cannot_be_encoded_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="utf-8", errors="strict"))
    monkeypatch.setattr("fuseproof.cli.models._show_lines", lambda _: ["caf\udcff\ud800"])
    assert 0 == main(["models", "show", "longcat-image"])
    sys.stdout.flush()
    assert b"caf\\udcff\\ud800\n" == printed.getvalue()


def test_a_message_obeys_no_control_character(capsys: pytest.CaptureFixture[str]) -> None:
    report_error(FuseproofError("a\nb\x1b[31m\r\tc", next_step="d\ne"))
    assert "fuseproof: error: a\\nb\\u001b[31m\\r\\tc\n  next: d\\ne\n" == capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ("generate", "--prompt=a", "--model-path=" + 300 * "a"),
        ("models", "show", 300 * "a"),
        ("models", "make-tiny", "longcat-image", 300 * "a" + "/x"),
        ("report", 300 * "a"),
        ("abba", 300 * "a", "--dry-run"),
    ],
    ids=["generate", "models show", "make-tiny", "report", "abba"],
)
def test_a_name_that_no_file_can_have_is_a_sentence(command, capsys):
    assert 2 == main(list(command))
    error, following = capsys.readouterr().err.splitlines()
    assert "has 300 bytes" in error and "255 are the most" in error
    assert "next: Check the path" in following
