"""The process that fetches weights for ``abba``: asked, waited for, and ended at once when we are interrupted."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.campaign.processes import send_to_group
from fuseproof.harness.campaign.watchdog import start_watchdog
from fuseproof.harness.machine.redaction import redact

GIB = 2**30
ERRORS: dict[int, type[FuseproofError]] = {UsageError.exit_code: UsageError}


@dataclass(frozen=True)
class Repository:
    """A hub repository to fetch. ``may_be_unknown``: another commit's `generate` may know it where ours does not."""

    name: str
    revision: str | None
    cache: Path
    may_be_unknown: bool = False


@dataclass(frozen=True)
class Planned:
    """What the hub said of it. ``missing_bytes`` is None where it cannot be asked; ``declined`` says why not."""

    repository: Repository
    commit: str | None
    missing_bytes: int | None
    declined: str | None = None


@dataclass
class Fetcher:
    """A running process of :mod:`fuseproof.pipelines.weights_fetch`."""

    process: subprocess.Popen[str]

    def plan(self, repositories: Sequence[Repository]) -> Iterator[Planned]:
        """Commit and missing bytes of each, as soon as they are known. Raises what the hub's refusal means."""
        asked = [
            {
                "repository": repository.name,
                "revision": repository.revision,
                "cache": str(repository.cache),
                "may_be_unknown": repository.may_be_unknown,
            }
            for repository in repositories
        ]
        self._say(json.dumps(asked))
        for repository in repositories:
            answer = self._answer()
            yield Planned(repository, answer["commit"], answer["missing_bytes"], answer.get("declined"))

    def fetch(self, count: int) -> None:
        """Fetch what was planned: ``count`` repositories."""
        self._say("fetch")
        for _ in range(count):
            self._answer()

    def _say(self, line: str) -> None:
        if self.process.stdin is None:
            raise AssertionError("the fetcher has a pipe for its input")
        with contextlib.suppress(BrokenPipeError):  # the answer that is missing says more
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        line = "" if self.process.stdout is None else self.process.stdout.readline()
        if not line:
            raise FuseproofError(
                f"The process that fetches weights ended without an answer (status {self.process.wait()}).",
                next_step="Its last words are above; try again, or pass the path of a downloaded model folder.",
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            kind = ERRORS.get(answer["exit_code"], FuseproofError)
            raise kind(answer["error"], next_step=answer["next_step"])
        return answer


@contextlib.contextmanager
def fetcher() -> Iterator[Fetcher]:
    """Start the process in a group of its own; it ends with the block, whatever ends that, and when we are killed."""
    watchdog = start_watchdog()
    process = subprocess.Popen(
        [sys.executable, "-m", "fuseproof.pipelines.weights_fetch"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        start_new_session=True,
    )
    watchdog.guard(process.pid)
    try:
        yield Fetcher(process)
    finally:
        send_to_group(process.pid, signal.SIGKILL)
        process.communicate()
        watchdog.dismiss()


def refuse_too_little_space(planned: Sequence[Planned]) -> None:
    """Raise :class:`FuseproofError` with needed and free GiB where a file system cannot take what is missing."""
    needed: dict[int, int] = {}
    places: dict[int, Path] = {}
    for plan in planned:
        folder = _nearest(plan.repository.cache)
        device = folder.stat().st_dev
        needed[device] = needed.get(device, 0) + (plan.missing_bytes or 0)
        places[device] = plan.repository.cache
    for device, needed_bytes in needed.items():
        free = shutil.disk_usage(_nearest(places[device])).free
        if needed_bytes > free:
            raise FuseproofError(
                f"The weights need {needed_bytes / GIB:.1f} GiB more in {redact(str(places[device]))}, and "
                f"{free / GIB:.1f} GiB are free.",
                next_step="Free space there, or point --model-cache-root at a larger disk.",
            )


def _nearest(folder: Path) -> Path:
    return next(parent for parent in (folder, *folder.parents) if parent.exists())
