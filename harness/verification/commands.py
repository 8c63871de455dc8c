"""The plan against the command lines that were recorded: those of the slots, and the one that began the campaign."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from fuseproof.errors import UsageError
from fuseproof.harness.campaign.arms import CELL_FLAGS
from fuseproof.harness.campaign.folder import CAMPAIGN_FILE, OUTPUTS_FOLDER, PERF_FILE, RESULT_FILE, Campaign
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.machine.redaction import REDACTED, redact
from fuseproof.harness.verification.findings import Finding, Tally
from fuseproof.schedules.contracts import parse_contract
from fuseproof.schedules.plan import PLAN_DIR, Arm
from fuseproof.schedules.qualification import split_requirements

PROGRAM = ["-m", "fuseproof", "generate"]
SOURCE = f"the plan in {CAMPAIGN_FILE}"
_PLACEHOLDER = re.compile(r"\{\{(?P<literal>\w+)\}\}|\{(?P<name>[A-Za-z_]\w*)\}")


def command_findings(campaign: Campaign, record: SlotRecord, tally: Tally) -> Iterator[Finding]:
    """A slot ran its arm's command: flags after ``generate``, or the template with its placeholders filled."""
    if campaign.origin is not None or not record.command:
        return
    arm, cell = campaign.plan.arm(record.arm), campaign.plan.cell(record.cell)
    own = {"perf_dump": f"{record.directory}/{PERF_FILE}", "output_dir": f"{record.directory}/{OUTPUTS_FOLDER}"}
    file, words = f"{record.directory}/{RESULT_FILE}", list(record.command)
    tally.count("command lines")
    if arm.command is None:
        flags = [_Expected(word, word == PLAN_DIR) for word in (*shlex.split(cell.flags), *shlex.split(arm.flags))]
        places = (("--perf-dump-path", own["perf_dump"]), ("--output-path", own["output_dir"]))
        expected = [*flags, *(part for flag, place in places for part in (_Expected(flag), _Expected(place, True)))]
        start = words.index(PROGRAM[-1]) + 1 if PROGRAM[-1] in words else 0
        if words[max(0, start - len(PROGRAM)) : start] != PROGRAM:
            yield Finding(file, f"has a command that does not run {' '.join(PROGRAM[1:])}, and its arm has flags")
            return
    else:
        start = 0
        cell_flags = [_Expected(word, word == PLAN_DIR) for word in shlex.split(cell.flags)]
        expected = []
        for word in shlex.split(arm.command):
            expected += cell_flags if word == CELL_FLAGS else [_filled(word, own)]
    yield from _word_findings(words, expected, start, file)
    yield from _variable_findings(arm, record, file)


class _Expected:
    """A word of a plan, and whether what stands before it on the machine that ran it is not known."""

    def __init__(self, text: str, is_ending: bool = False) -> None:
        self.text = text
        head, home, tail = ("", "", redact(text))
        flag, separator, value = tail.partition("=")
        if separator and flag.startswith("-") and value.startswith("~"):
            head, home, tail = flag + separator, ".*", value[1:]
        elif tail.startswith("~"):
            home, tail = ".*", tail[1:]
        body = ".*".join(map(re.escape, tail.split(PLAN_DIR)))
        self._pattern = re.compile(f"{'.*' if is_ending else ''}{re.escape(head)}{home}{body}", re.DOTALL)

    def fits(self, word: str) -> bool:
        """Equal, but for the folders of another machine and for what was redacted."""
        if REDACTED in word:
            hidden = ".+".join(map(re.escape, word.split(REDACTED)))
            return re.fullmatch(hidden, self.text, re.DOTALL) is not None
        return self._pattern.fullmatch(word) is not None


class _Template(_Expected):
    """A word of a command template: what its placeholders stood for is known of some only."""

    def __init__(self, text: str, pattern: str) -> None:
        super().__init__(text)
        self._pattern = re.compile(pattern, re.DOTALL)


def _filled(word: str, places: Mapping[str, str]) -> _Expected:
    if _PLACEHOLDER.search(word) is None:
        return _Expected(word)
    pattern, end = "", 0
    for match in _PLACEHOLDER.finditer(word):
        own = places.get(match["name"] or "")
        literal = match["literal"]
        pattern += re.escape(word[end : match.start()])
        pattern += re.escape(f"{{{literal}}}") if literal else ".*" + ("" if own is None else re.escape(own))
        end = match.end()
    return _Template(word, pattern + re.escape(word[end:]))


def _word_findings(words: Sequence[str], expected: Sequence[_Expected], start: int, file: str) -> Iterator[Finding]:
    for index, (word, wanted) in enumerate(zip_longest(words[start:], expected), start=start):
        if word is None or wanted is None or not wanted.fits(word):
            yield Finding(file, None, f"command[{index}]", word, None if wanted is None else wanted.text, SOURCE)
            return


def _variable_findings(arm: Arm, record: SlotRecord, file: str) -> Iterator[Finding]:
    for name, value in arm.env.items():
        stated = record.environment_overrides.get(name)
        if stated is None or not _filled(value, {}).fits(stated):
            yield Finding(file, None, f"environment_overrides.{name}", stated, value, SOURCE)


def _number(text: str) -> float:
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


def _requirements(text: str) -> list[str]:
    return [str(requirement) for requirement in split_requirements(text)]


PLAN_FLAGS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "--blocks": ("blocks", int),
    "--order": ("order", str),
    "--primary": ("primary", str),
    "--min-effect": ("min_effect", _number),
    "--timeout": ("timeout_s", _number),
    "--retries": ("retries", int),
    "--name": ("name", str),
    "--qualify": ("qualify", _requirements),
    "--contract": ("contract", lambda text: str(parse_contract(text))),
}
"""Flags of ``fuseproof abba`` that put one value into the plan, with its key."""
LONE_FLAGS = {"--aa": ("aa", True)}


def plan_findings(campaign: Campaign, tally: Tally) -> Iterator[Finding]:
    """What the command that began a campaign asks for stands in its plan; what a plan file said cannot be seen."""
    command = list(campaign.command)
    if campaign.origin is None and command[1:2] == ["import"]:
        yield Finding(CAMPAIGN_FILE, "has no origin, and the command that made it is an import")
    if campaign.origin is not None or command[1:2] != ["abba"]:
        return
    plan = campaign.plan.to_json()
    for flag, text in _given(command[2:]):
        key, read = PLAN_FLAGS[flag]
        try:
            wanted = read(text)
        except (ValueError, UsageError):
            yield Finding(CAMPAIGN_FILE, f"records a command whose {flag} is {text!r}, which no campaign begins with")
            continue
        tally.count("flags of the campaign")
        source = f"command {flag}"
        if key == "contract":
            for index, cell in enumerate(plan["cells"]):
                if cell["contract"] != wanted:
                    yield Finding(
                        CAMPAIGN_FILE, None, f"plan.cells[{index}].contract", cell["contract"], wanted, source
                    )
        elif plan[key] != wanted:
            yield Finding(CAMPAIGN_FILE, None, f"plan.{key}", plan[key], wanted, source)
    for flag, (key, wanted) in LONE_FLAGS.items():
        if flag in command and plan[key] != wanted:
            yield Finding(CAMPAIGN_FILE, None, f"plan.{key}", plan[key], wanted, f"command {flag}")


def _given(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The known flags with their values; the last of each counts."""
    found: dict[str, str] = {}
    for index, word in enumerate(words):
        flag, separator, value = word.partition("=")
        if flag in PLAN_FLAGS and (separator or index + 1 < len(words)):
            found[flag] = value if separator else words[index + 1]
    yield from found.items()
