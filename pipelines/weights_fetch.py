"""Fetches weights in a process of its own, so that Ctrl-C ends a download at once and nothing is half-told.

``python -m fuseproof.pipelines.weights_fetch`` speaks JSON lines. First line of its input: a list of
``{"repository", "revision", "cache", "may_be_unknown"}``. It answers one line each (``commit``, ``missing_bytes``; null
where the hub cannot be asked; ``declined`` where ours is the wrong version to ask), waits for a line that says
``fetch``, and answers one ``fetched`` line each that it did not decline. An ``error`` line is the last one. Torch-free;
progress goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines.checkpoints import check_checkpoint
from fuseproof.pipelines.hub import NeededFiles, Snapshot, fetch_snapshot, missing_bytes, needed_files

GO = "fetch"


def main() -> int:
    """Answer the one list of requests on stdin; always 0, an error is an answer too."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    sys.stdout = sys.stderr  # a library that prints must not speak in our place
    try:
        _answer(sys.stdin, answers)
    except FuseproofError as error:
        _write(answers, {"error": error.message, "next_step": error.next_step, "exit_code": error.exit_code})
    return 0


def _answer(requests: TextIO, answers: TextIO) -> None:
    planned = [_planned(request, answers) for request in json.loads(requests.readline())]
    if requests.readline().strip() != GO:
        return
    for needed, missing in filter(None, planned):
        snapshot = fetch_snapshot(needed)
        if missing is None:
            _refuse_incomplete(needed, snapshot)
        _write(answers, {"fetched": needed.repository, "commit": snapshot.commit})


def _planned(request: Mapping[str, Any], answers: TextIO) -> tuple[NeededFiles, int | None] | None:
    """What is needed and how much of it is missing; None for a pipeline that only another version may know."""
    try:
        needed = needed_files(request["repository"], request["revision"], Path(request["cache"]))
    except UsageError as error:
        if not request["may_be_unknown"]:
            raise
        _write(answers, {"commit": None, "missing_bytes": None, "declined": error.message})
        return None
    missing = missing_bytes(needed)
    _write(answers, {"commit": needed.commit, "missing_bytes": missing})
    return needed, missing


def _refuse_incomplete(needed: NeededFiles, snapshot: Snapshot) -> None:
    """The hub could not say which files there are: the checkpoint's own rules have to."""
    try:
        check_checkpoint(snapshot.folder)
    except FuseproofError as error:
        raise FuseproofError(
            f"{needed.repository} is not completely in the local hub cache, and the hub cannot be asked for the rest: "
            f"{error.message}",
            next_step="Connect (and unset HF_HUB_OFFLINE), or pass the path of a downloaded model folder.",
        ) from error


def _write(stream: TextIO, values: Mapping[str, Any]) -> None:
    stream.write(json.dumps(values) + "\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
