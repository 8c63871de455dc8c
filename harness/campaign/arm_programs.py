"""Which programs a command arm ran: every file that its command names, hashed before each slot.

A script is edited between two slots sooner than a commit is made. What is kept is a slot's own: its record says which
files its command named and what they held.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.campaign.arm_places import ArmPlace
from fuseproof.harness.campaign.records import SlotRecord, arms_of
from fuseproof.harness.machine.redaction import redact
from fuseproof.harness.media.files import file_sha256
from fuseproof.schedules.order import arm_word
from fuseproof.schedules.plan import Arm

PROGRAMS = "programs"
"""The key in a slot's ``lineage``: file → SHA-256."""
LARGEST_HASHED_BYTES = 64 * 2**20
"""Beyond it, size and time of change stand for the contents: a checkpoint is not hashed before every slot."""


def program_hashes(argv: Sequence[str], folder: Path, path: str | None, within: Path) -> dict[str, str]:
    """File → SHA-256 of every word of ``argv`` (and of every ``--flag=word``) that is a regular file.

    Relative words lie in ``folder``, where the slot runs; files below it are named relative to it. A program without
    a slash is looked up on ``path``, and counts where it is a script below ``folder``. Files below ``within``, the
    slot's own folder, are results and left out.
    """
    found: dict[str, str] = {}
    for file in _files(argv, folder, path):
        if not file.is_relative_to(within):
            found.setdefault(_shown(file, folder), _contents(file))
    return found


def slot_programs(
    arm: Arm, argv: Sequence[str], overrides: Mapping[str, str], folder: Path, slot: Path
) -> dict[str, str]:
    """The programs of one slot of ``arm``; empty for an arm of ``generate``, whose files are the campaign's inputs."""
    if arm.command is None:
        return {}
    return program_hashes(argv, folder, overrides.get("PATH") or os.environ.get("PATH"), slot)


def programs_of(record: SlotRecord) -> dict[str, str]:
    """What a slot's record says of its programs; empty where it says nothing."""
    known = (record.lineage or {}).get(PROGRAMS)
    if not isinstance(known, Mapping):
        return {}
    return {str(name): value for name, value in known.items() if isinstance(value, str)}


def program_versions(runs: Iterable[SlotRecord]) -> dict[str, tuple[str, ...]]:
    """File → the distinct contents that ``runs`` of one arm recorded, in their order; "" for runs without the file."""
    recorded = [programs for run in runs if (programs := programs_of(run))]
    names = dict.fromkeys(name for programs in recorded for name in programs)
    return {name: tuple(dict.fromkeys(programs.get(name, "") for programs in recorded)) for name in names}


def changed_programs(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Of the files that both know, those with other contents, a clause each."""
    return [
        f"{name} went from {short_contents(before[name])} to {short_contents(now[name])}"
        for name in before
        if name in now and before[name] != now[name]
    ]


def changed_since(earlier: Sequence[SlotRecord], record: SlotRecord) -> str | None:
    """That a slot ran other programs than the last slot of its arm before it; None where it did not."""
    same = (slot for slot in reversed(earlier) if slot.arm == record.arm and slot.id != record.id)
    changes = changed_programs(next(filter(None, map(programs_of, same)), {}), programs_of(record))
    return _sentence(record.arm, f"before slot {record.id}", changes) if changes else None


def programs_ran(slots: Sequence[SlotRecord], letter: str) -> dict[str, str]:
    """What the programs of an arm's last slot held, of those that its first one named too: results are made later."""
    recorded = [programs for slot in slots if slot.arm == letter and (programs := programs_of(slot))]
    return {name: contents for name, contents in recorded[-1].items() if name in recorded[0]} if recorded else {}


def programs_again(role: str, known: Mapping[str, str], folder: Path) -> list[str]:
    """Sentences about the files that a stored campaign's command named and that are other ones in ``folder`` now.

    Raises :class:`UsageError` for one that is not here.
    """
    now = {name: _contents_now(folder, name) for name in known}
    missing = [name for name, contents in now.items() if not contents]
    if missing:
        raise UsageError(
            f"The {role}'s command names {', '.join(missing)}, as the stored campaign did, and that is no file here.",
            next_step=f"Put it there (SHA-256 {known[missing[0]]}): relative paths start at {redact(str(folder))}, and "
            "programs are no part of a campaign folder.",
        )
    changes = changed_programs(known, now)
    return [f"the {role}'s program is another one than was measured: {change}" for change in changes]


def changed_on_disk(
    slots: Sequence[SlotRecord], places: Mapping[str, ArmPlace], working_directory: Path
) -> Iterator[str]:
    """A sentence for every arm whose programs are no longer what its last slot ran: for a campaign that is resumed."""
    for letter in arms_of(slots):
        known = programs_ran(slots, letter)
        folder = places.get(letter, ArmPlace()).tree or working_directory
        now = {name: _contents_now(folder, name) for name in known}
        changes = changed_programs(known, now)
        if changes:
            yield _sentence(letter, "since this campaign last ran", changes)


def short_contents(contents: str | None) -> str:
    """The first twelve digits of a hash; a file that was not hashed as it is described."""
    if not contents:
        return "no file"
    return contents if " " in contents else contents[:12]


def refuse_missing_script(arm: Arm, argv: Sequence[str], folder: Path) -> None:
    """Raise :class:`UsageError` where an interpreter (python, sh, …) is given a script that is no file."""
    script = script_of(argv)
    if script is not None and not (folder / script).is_file():
        raise UsageError(
            f"The command of arm {arm.name!r} runs {redact(script)!r} with {Path(argv[0]).name}, and "
            f"{redact(str(folder / script))} is no file.",
            next_step="Check the spelling; relative paths start at the folder where the slots run, and {plan_dir} in a "
            "plan file is the folder of the plan.",
        )


def script_of(argv: Sequence[str]) -> str | None:
    """The script that an interpreter is started with, as its first word that is no switch; None where none is sure."""
    name = Path(argv[0]).name if argv else ""
    stem = name.rstrip("0123456789.")
    if stem not in INTERPRETERS:
        return None
    for word in argv[1:]:
        if not word.startswith("-"):
            return word
        if word.strip("-") == "" or not set(word[1:]) <= INTERPRETERS[stem]:
            return None  # a switch that may take a value, or brings its own code (-c, -m)
    return None


INTERPRETERS = {
    "python": frozenset("uSOEBIPsqvx"),
    "pypy": frozenset("uSOEBIPsqvx"),
    "bash": frozenset("eux"),
    "sh": frozenset("eux"),
    "dash": frozenset("eux"),
    "zsh": frozenset("eux"),
    "perl": frozenset("w"),
    "ruby": frozenset("w"),
    "node": frozenset(),
}
"""Programs that run a script → their switches that take no value."""


def _sentence(letter: str, when: str, changes: Sequence[str]) -> str:
    return (
        f"warning: a file that the {arm_word(letter)}'s command names changed {when}: {'; '.join(changes)}; its runs "
        "are of different programs, and the report says so (PROGRAMS_DIFFER)"
    )


def _contents_now(folder: Path, name: str) -> str:
    file = folder / Path(name).expanduser()
    return _contents(file) if _is_file(file) else ""


def _files(argv: Sequence[str], folder: Path, path: str | None) -> Iterator[Path]:
    program = _on_path(argv[0], folder, path) if argv else None
    if program is not None:
        yield program
    for word in argv:
        flag, separator, value = word.partition("=")
        for text in (word, value if separator and flag.startswith("-") else ""):
            file = folder / text
            if text and _is_file(file):
                yield file


def _on_path(program: str, folder: Path, path: str | None) -> Path | None:
    found = None if os.sep in program else shutil.which(program, path=path)
    if found is None:
        return None
    file = (folder / found).absolute()
    return file if file.is_relative_to(folder) and _is_script(file) else None


def _is_script(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return stream.read(2) == b"#!"
    except OSError:
        return False


def _is_file(file: Path) -> bool:
    try:
        return file.is_file()
    except (OSError, ValueError):  # a word may be longer than a name, or no name at all
        return False


def _shown(file: Path, folder: Path) -> str:
    file = Path(os.path.normpath(file))
    return file.relative_to(folder).as_posix() if file.is_relative_to(folder) else redact(str(file))


def _contents(file: Path) -> str:
    try:
        facts = file.stat()
        if facts.st_size <= LARGEST_HASHED_BYTES:
            return file_sha256(file)
    except (FuseproofError, OSError) as error:
        return f"not read: {getattr(error, 'strerror', None) or error}"
    changed = datetime.fromtimestamp(facts.st_mtime, UTC).isoformat(timespec="seconds")
    return f"not hashed: {facts.st_size} bytes, changed {changed}"
