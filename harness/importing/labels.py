"""What a file's name says of its place: workload, block, arm and run, by a pattern such as ``{cell}-{block}-{arm}``.

Arms are spelled ``a1``, ``B2``, ``baseline-1``, ``candidate_2``; blocks ``r1``, ``1``, ``block-2``, ``group 3``. A
pattern with ``/`` is matched against the last folders of a path, any other against the file's stem.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fuseproof.errors import UsageError
from fuseproof.schedules.order import ArmLetter

FIELDS = ("cell", "block", "arm", "position")
KNOWN_PATTERNS = (
    ("{cell}-{block}-{arm}", "i2v-r1-a1"),
    ("{block}-{arm}", "r1-a1"),
    ("{block}-{position}-{arm}", "01-1-A"),
    ("{cell}-{arm}", "i2v-a1"),
    ("{arm}", "a1"),
    ("{block}/{arm}", "r1/a1"),
)
"""Tried in turn when no pattern is given, with an example; a dash stands for an underscore too."""

_BLOCK_WORD = r"(?:block|group|round|run|rep|pair|r|g)"
_BLOCK_TEXT = rf"(?:{_BLOCK_WORD}[-_ ]?)?\d{{1,9}}"
_ARM_TEXT = r"(?:baseline|candidate|a|b)[-_ ]?[12]?"
_FIELD_TEXTS = {"cell": r"[^/]+?", "block": _BLOCK_TEXT, "arm": _ARM_TEXT, "position": r"[1-4]"}
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_IS_BLOCK = re.compile(rf"{_BLOCK_TEXT}|{_BLOCK_WORD}", re.IGNORECASE)
_ENDS_IN_BLOCK = re.compile(rf"(?:.*[-_ ])?{_BLOCK_TEXT}", re.IGNORECASE)
_PARTS_OF_ARM = re.compile(r"(a|b|baseline|candidate)[-_ ]?([12])?", re.IGNORECASE)
_MOST_EXAMPLES = 3


@dataclass(frozen=True)
class Label:
    """The place that a name gives a file. ``run`` is 1 or 2 within the arm, ``position`` 1 to 4 within the block."""

    cell: str
    block: str
    arm: ArmLetter
    run: int | None
    position: int | None

    @property
    def block_number(self) -> int:
        """The number in the block's text."""
        digits = re.search(r"\d+", self.block)
        return int(digits.group(0)) if digits else 1

    @property
    def slot_text(self) -> str:
        """``A1``, or ``position 2 (B)`` where the name gives positions."""
        return f"{self.arm}{self.run}" if self.run is not None else f"position {self.position} ({self.arm})"


@dataclass(frozen=True)
class Pattern:
    """A compiled pattern; ``text`` is as it was written."""

    text: str
    expression: re.Pattern[str]
    is_known: bool = False

    def label(self, path: Path) -> Label | None:
        """The label of ``path`` (folders of the source included), or None where the name does not fit."""
        folders = self.text.count("/") + 1
        found = self._match(path)
        if found is None:
            return None
        values = found.groupdict()
        parent = path.parts[-folders - 1] if len(path.parts) > folders else "imported"
        label = _label(values, parent)
        is_doubtful = self.is_known and (label is None or _misreads(self.text, label.cell))
        return None if is_doubtful else label

    def _match(self, path: Path) -> re.Match[str] | None:
        folders = self.text.count("/") + 1
        parts = [*path.parts[:-1], path.stem]
        return self.expression.fullmatch("/".join(parts[-folders:])) if len(parts) >= folders else None

    def names_unnumbered_arm(self, path: Path) -> bool:
        """Whether the name fits but for the number of the run within the arm."""
        found = self._match(path)
        arm = arm_of(found["arm"]) if found is not None and "position" not in found.groupdict() else None
        return arm is not None and arm[1] is None


def parse_pattern(text: str) -> Pattern:
    """A pattern from the command line; :class:`UsageError` for unknown, repeated or missing fields."""
    fields = _PLACEHOLDER.findall(text)
    unknown = [field for field in fields if field not in FIELDS]
    twice = [field for field in fields if fields.count(field) > 1]
    if unknown or twice or "arm" not in fields:
        problem = (
            f"has no field {{{unknown[0]}}}" if unknown
            else f"names {{{twice[0]}}} twice" if twice
            else "does not say where {arm} stands"
        )  # fmt: skip
        raise UsageError(
            f"--labels {text!r} {problem}; the fields are {', '.join(f'{{{field}}}' for field in FIELDS)}.",
            next_step="Write the names of your files with fields in place of what varies: '{block}-{arm}' for r1-a1.",
        )
    return Pattern(text, _compiled(text))


def known_patterns() -> tuple[Pattern, ...]:
    """The patterns that are tried when none is given."""
    return tuple(Pattern(text, _compiled(text, any_separator=True), is_known=True) for text, _ in KNOWN_PATTERNS)


def fitting_text(text: str) -> Pattern:
    """The pattern that a campaign's ``origin.labels`` names: a known one, or one that was given to the import."""
    return next((known for known in known_patterns() if known.text == text), None) or parse_pattern(text)


def fitting_pattern(paths: Sequence[Path]) -> Pattern:
    """The known pattern that reads the names of ``paths``.

    Raises :class:`UsageError` with what was tried when none fits, or when two fit different files or read the same
    file differently.
    """
    readings = [(pattern, _labels(pattern, paths)) for pattern in known_patterns()]
    fitting = [(pattern, labels) for pattern, labels in readings if labels]
    if not paths:
        raise UsageError(
            "There is no .json file in what was given, and a perf dump is one.",
            next_step="Give the folder that holds the perf dumps, or a manifest with slots.",
        )
    tried = ", ".join(f"{text} ({example})" for text, example in KNOWN_PATTERNS)
    if not fitting:
        refuse_unnumbered(paths, known_patterns())
        raise UsageError(
            f"No file name says which block and arm it is, for example {_examples(paths)}; tried {tried}.",
            next_step="Say how names are made, for example with --labels '{block}-{arm}', or write a manifest.",
        )
    best, labels = max(fitting, key=lambda reading: len(reading[1]))
    for pattern, others in fitting:
        odd = next((path for path, label in others.items() if labels.get(path) != label), None)
        if odd is not None:
            sample = next(iter(labels))
            raise UsageError(
                f"The file names can be read in two ways: {sample.name} as {best.text}, {odd.name} as {pattern.text}; "
                f"tried {tried}.",
                next_step=f"Say which one is meant: --labels '{best.text}' or --labels '{pattern.text}'.",
            )
    return best


def refuse_unnumbered(paths: Sequence[Path], patterns: Sequence[Pattern]) -> None:
    """Raise :class:`UsageError` where names say an arm without its number: ``baseline.json``, not ``baseline-1.json``.

    Two dumps are no block of four, and another command describes them.
    """
    bare = [path for path in paths if any(pattern.names_unnumbered_arm(path) for pattern in patterns)]
    if not bare:
        return
    names = _examples(bare)
    two = "Compare two dumps with `fuseproof compare-perf BASELINE CANDIDATE`. " if len(bare) == 2 else ""
    raise UsageError(
        f"The names {names} say which arm but not which of its two runs, and a block is four runs: a1, b1, b2, a2.",
        next_step=f"{two}To import a block, number its runs: baseline-1, candidate-1, candidate-2, baseline-2.",
    )


def arm_of(text: str) -> tuple[ArmLetter, int | None] | None:
    """``a1``, ``Baseline-1`` or ``B`` as letter and run; None for anything else."""
    found = _PARTS_OF_ARM.fullmatch(text.strip())
    if found is None:
        return None
    letter: ArmLetter = "A" if found.group(1).lower() in ("a", "baseline") else "B"
    return letter, int(found.group(2)) if found.group(2) else None


def _compiled(text: str, *, any_separator: bool = False) -> re.Pattern[str]:
    parts = _PLACEHOLDER.split(text)
    written = ""
    for index, part in enumerate(parts):
        if index % 2:
            written += f"(?P<{part}>{_FIELD_TEXTS[part]})"
        else:
            written += "".join("[-_]" if any_separator and letter == "-" else re.escape(letter) for letter in part)
    return re.compile(written, re.IGNORECASE)


def _label(values: dict[str, str], parent: str) -> Label | None:
    arm = arm_of(values["arm"])
    position = int(values["position"]) if "position" in values else None
    if arm is None or (arm[1] is None and position is None):
        return None
    return Label(values.get("cell", parent), values.get("block", "1"), arm[0], arm[1], position)


def _labels(pattern: Pattern, paths: Sequence[Path]) -> dict[Path, Label]:
    return {path: label for path in paths if (label := pattern.label(path)) is not None}


def _misreads(pattern: str, cell: str) -> bool:
    """Whether a known pattern took a block for a workload: ``r1-a1`` is no run of a workload called r1."""
    if "{block}" not in pattern:
        return _ENDS_IN_BLOCK.fullmatch(cell) is not None
    return "{cell}" in pattern and _IS_BLOCK.fullmatch(cell) is not None


def _examples(paths: Sequence[Path]) -> str:
    return ", ".join(path.name for path in paths[:_MOST_EXAMPLES])
