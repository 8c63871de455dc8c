"""``SHA256SUMS``: what it lists, and what must still be as it was listed before anything is signed again."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from fuseproof.errors import FuseproofError
from fuseproof.harness.campaign.folder import RESULT_FILE, Campaign
from fuseproof.harness.campaign.left_out import SUMS_FILE, left_out_lines, noted_lines
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.media.files import file_sha256

SLOTS = "slots/"
FINISHED = ("complete", "failed")
REWRITTEN_STATES = ("superseded", "interrupted")
"""The only states that a later session writes into the ``result.json`` of a slot that ended before."""
_TEMPORARY = re.compile(r"\.fuseproof-\d+-[0-9a-f]{8}\.tmp")
"""Exactly the names that :func:`~fuseproof.harness.atomic_files.temporary_beside` gives."""


def checksums(campaign: Campaign, known: Mapping[str, str] | None = None) -> str:
    """``SHA256SUMS`` of a campaign folder: every file except itself and our temporary files, sorted by path.

    While the campaign runs, the slot that is running is left out: its files still change. ``known`` holds lines by
    path, for files that were hashed already.
    """
    known = known or {}
    return "".join(known.get(name) or _line(file_sha256(path), name) for name, path in _signed_files(campaign))


def evidence_lines(campaign: Campaign) -> dict[str, str]:
    """The lines of everything below ``slots/``, by path."""
    return {name: _line(file_sha256(path), name) for name, path in _signed_files(campaign, SLOTS)}


def changed_evidence(campaign: Campaign, present: Mapping[str, str]) -> list[tuple[str, str]]:
    """Names below ``slots/`` that ``SHA256SUMS`` lists otherwise, each with ``changed`` or ``missing``.

    A ``result.json`` counts in a complete or failed campaign only, and not where a resumed session has begun the
    slot's block again and noted so in it. What a packed folder may lack is not missing. Without ``SHA256SUMS`` there
    is nothing to hold the folder to.
    """
    lines = {line.rstrip("\n").partition("  ")[2]: line.rstrip("\n") for line in present.values()}
    noted = noted_lines(campaign.directory)
    left_out = left_out_lines(campaign.directory, noted)
    return [
        (name, "changed" if name in lines else "missing")
        for name, line in noted.items()
        if name.startswith(SLOTS)
        and name not in left_out
        and lines.get(name) != line
        and not (name in lines and _may_change(campaign, name))
    ]


def refuse_changed_evidence(campaign: Campaign, present: Mapping[str, str]) -> None:
    """Raise :class:`FuseproofError` naming the first file below ``slots/`` that is not what was signed before."""
    changed = changed_evidence(campaign, present)
    if changed:
        name, what = changed[0]
        how = "is missing" if what == "missing" else "is not the file that it lists"
        raise FuseproofError(
            f"{campaign.directory} is not rendered again: {SUMS_FILE} was written over its measurements, and {name} "
            f"{how}.",
            next_step=f"Restore it; fuseproof report {campaign.directory} --check lists every difference.",
        )


def _may_change(campaign: Campaign, name: str) -> bool:
    slot_id, _, file = name.removeprefix(SLOTS).rpartition("/")
    if file != RESULT_FILE:
        return False
    if campaign.status not in FINISHED:
        return True
    record = next((slot for slot in campaign.slots() if slot.id == slot_id), None)
    return record is not None and record.state in REWRITTEN_STATES and _was_begun_again(campaign, record)


def _was_begun_again(campaign: Campaign, record: SlotRecord) -> bool:
    return record.attempt < campaign.attempts(record.cell, record.block)


def _signed_files(campaign: Campaign, below: str = "") -> list[tuple[str, str]]:
    """Paths relative to the folder and the files' own, sorted; without those of a slot that still runs."""
    named = sorted(_files(str(campaign.directory), below))
    if campaign.status != "running":
        return named
    ended = {f"{SLOTS}{slot.id}" for slot in campaign.slots() if slot.state != "running"}
    return [(name, path) for name, path in named if not name.startswith(SLOTS) or _slot_folder(name) in ended]


def _slot_folder(name: str) -> str:
    return "/".join(name.split("/")[:3])


def _line(hash_: str, name: str) -> str:
    """One line as ``sha256sum`` writes it: a name with a backslash or a line break is escaped and marked in front.

    A name that is no UTF-8 keeps its bytes, as surrogate escapes, so that ``sha256sum --check`` finds the file.
    """
    escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"{'' if escaped == name else chr(92)}{hash_}  {escaped}\n"


def temporary_files(directory: Path) -> list[str]:
    """Our own temporary files, relative to the folder: what a session that was killed while it wrote has left."""
    return sorted(
        (Path(folder) / name).relative_to(directory).as_posix()
        for folder, _, names in os.walk(directory)
        for name in names
        if is_temporary(name)
    )


def is_temporary(name: str) -> bool:
    """Whether a file of this name is one that this program writes before it renames it."""
    return _TEMPORARY.fullmatch(name) is not None


def _files(directory: str, below: str) -> Iterator[tuple[str, str]]:
    """Regular files that may be signed, as the folder names them and as paths; a link would sign what lies elsewhere.

    Texts, not paths: a campaign of a thousand slots has ten thousand files.
    """
    for folder, _, names in os.walk(f"{directory}/{below}"):
        inside = folder[len(directory) :].strip("/")
        for name in names:
            relative = f"{inside}/{name}" if inside else name
            path = f"{directory}/{relative}"
            if relative != SUMS_FILE and not is_temporary(name) and _is_regular(path):
                yield relative, path


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False
