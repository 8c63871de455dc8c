"""One child process, its whole group, and how it ends.

Every slot runs as the leader of its own session: a Ctrl-C in the terminal reaches only this program, which then ends
the slot's group in order, and whatever a slot leaves behind is ended with it. A watchdog ends it when we are killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fuseproof.errors import FuseproofError
from fuseproof.harness.campaign.interrupts import Interrupts
from fuseproof.harness.campaign.watchdog import Watchdog, start_watchdog

GRACE_S = 3.0
"""How long a process group may take to end after each signal before the next, stronger one."""
POLL_S = 0.2

Ending = Literal["exit", "timeout", "interrupted"]

_SIGNALS: dict[Ending, tuple[signal.Signals, ...]] = {
    "timeout": (signal.SIGTERM, signal.SIGKILL),
    "interrupted": (signal.SIGINT, signal.SIGTERM, signal.SIGKILL),
}
_KERNEL_COUNTERS = Path("/proc/vmstat")


@dataclass(frozen=True)
class ProcessEnd:
    """How a child ended. ``returncode`` is negative for a signal; ``oom_kills`` counts the kernel's own meanwhile."""

    ending: Ending
    returncode: int
    oom_kills: int = 0


@dataclass
class ChildProcess:
    """A running child, made by :func:`start_process`."""

    process: subprocess.Popen[bytes]
    oom_kills_before: int
    watchdog: Watchdog

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self, timeout_s: float, interrupts: Interrupts) -> ProcessEnd:
        """Wait for the child, end it at the time-out or when interrupted, and end what is left of its group.

        After a time-out the group gets SIGTERM, then SIGKILL; after an interrupt SIGINT first. One more interrupt
        kills at once.
        """
        ending = self._wait_for_end(timeout_s, interrupts)
        if ending != "exit":
            self._end_group(_SIGNALS[ending], interrupts)
        returncode = self.kill()
        return ProcessEnd(ending, returncode, max(0, oom_kill_count() - self.oom_kills_before))

    def kill(self) -> int:
        """End the child and its group at once; its return code."""
        send_to_group(self.pid, signal.SIGKILL)
        returncode = self.process.wait()
        self.watchdog.dismiss()
        return returncode

    def _wait_for_end(self, timeout_s: float, interrupts: Interrupts) -> Ending:
        deadline_s = time.monotonic() + timeout_s
        while True:
            if interrupts.requested:
                return "interrupted"
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return "timeout"
            if self._ends_within(min(POLL_S, left_s)):
                return "exit"

    def _end_group(self, signals: Sequence[signal.Signals], interrupts: Interrupts) -> None:
        seen = interrupts.count
        for number in signals:
            send_to_group(self.pid, number)
            deadline_s = time.monotonic() + GRACE_S
            while time.monotonic() < deadline_s and interrupts.count == seen:
                if self._ends_within(POLL_S):
                    return

    def _ends_within(self, seconds: float) -> bool:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


def start_process(
    argv: Sequence[str], environment: Mapping[str, str], cwd: Path, stdout: Path, stderr: Path
) -> ChildProcess:
    """Start ``argv`` in a session of its own, with no stdin and its output in two files.

    Raises :class:`FuseproofError` when the program cannot be started or the files cannot be made.
    """
    oom_kills = oom_kill_count()
    watchdog = start_watchdog()
    try:
        with stdout.open("wb") as out, stderr.open("wb") as err:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=dict(environment),
                cwd=cwd,
                start_new_session=True,
            )
    except OSError as error:
        watchdog.dismiss()
        raise FuseproofError(
            f"A slot's process cannot be started: {error.strerror or error} ({error.filename or argv[0]}).",
            next_step="Check the command, and the space left for the campaign folder.",
        ) from error
    watchdog.guard(process.pid)
    return ChildProcess(process, oom_kills, watchdog)


def send_to_group(group: int, number: signal.Signals) -> None:
    """Send a signal to every process of a group; a group that is gone is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def oom_kill_count() -> int:
    """How often the kernel's out-of-memory killer has struck since boot; 0 where the kernel does not say."""
    try:
        lines = _KERNEL_COUNTERS.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
