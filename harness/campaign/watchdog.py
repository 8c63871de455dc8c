"""Ends a slot whose campaign died without a word.

A slot leads a session of its own, so a killed campaign (SIGKILL, the out-of-memory killer) would leave it running on
the device. A small shell holds the reading end of a pipe whose only writing end is ours: when we die, however we die,
it reads the end of the file and kills the slot's whole group. It waits in one read and uses no processor time. A
campaign that is killed between the slot's start and :meth:`Watchdog.guard`, its next call, leaves the slot behind.
"""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import dataclass

from fuseproof.errors import FuseproofError

SCRIPT = 'read -r group || exit 0; read -r _ || kill -s KILL -- "-$group" 2>/dev/null'
"""The first line names the process group; a second one means that the slot has ended in order."""


@dataclass
class Watchdog:
    """A running shell, made by :func:`start_watchdog` before the slot so that nothing happens in between."""

    process: subprocess.Popen[bytes]

    def guard(self, group: int) -> None:
        """From now on, kill this process group when the present process is gone."""
        self._write(f"{group}\n".encode("ascii"))

    def dismiss(self) -> None:
        """The slot has ended (or never began): let the shell go without a kill."""
        self._write(b"done\n")
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        self.process.wait()

    def _write(self, line: bytes) -> None:
        if self.process.stdin is None:
            return
        # A shell that somebody has ended guards nothing; the slot itself goes on.
        with contextlib.suppress(OSError):
            self.process.stdin.write(line)
            self.process.stdin.flush()


def start_watchdog() -> Watchdog:
    """Start the shell in a session of its own. Raises :class:`FuseproofError` where there is no ``/bin/sh``."""
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise FuseproofError(
            f"The process that guards a slot cannot be started: {error.strerror or error} (/bin/sh).",
            next_step="A campaign needs /bin/sh and room for one more process.",
        ) from error
    return Watchdog(process)
