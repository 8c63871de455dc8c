"""Where two texts differ: the line, and both spellings around the first character that is not the same."""

from __future__ import annotations

from collections.abc import Iterator

from fuseproof.harness.verification.findings import Finding

MOST_LINES = 20
AROUND = 40


def line_findings(file: str, stated: str, expected: str, source: str) -> Iterator[Finding]:
    """Every differing line of texts with equally many lines; else the first one, and how many lines there are."""
    if stated == expected:
        return
    own, wanted = stated.split("\n"), expected.split("\n")
    differing = [index for index, (one, other) in enumerate(zip(own, wanted, strict=False)) if one != other]
    if len(own) == len(wanted):
        for index in differing[:MOST_LINES]:
            yield Finding(file, None, f"line {index + 1}", *_excerpts(own[index], wanted[index]), source)
        return
    index = differing[0] if differing else min(len(own), len(wanted))
    one = own[index] if index < len(own) else ""
    other = wanted[index] if index < len(wanted) else ""
    yield Finding(file, None, f"line {index + 1}", *_excerpts(one, other), source)
    yield Finding(file, None, "number of lines", len(own) - 1, len(wanted) - 1, source)


def _excerpts(stated: str, expected: str) -> tuple[str, str]:
    """Both texts from a little before the first difference to a little behind the last one."""
    shorter = min(len(stated), len(expected))
    start = next((index for index in range(shorter) if stated[index] != expected[index]), shorter)
    left = shorter - start
    same = next((index for index in range(left) if stated[-1 - index] != expected[-1 - index]), left)
    return _excerpt(stated, start, len(stated) - same), _excerpt(expected, start, len(expected) - same)


def _excerpt(text: str, start: int, end: int) -> str:
    first, last = max(0, start - AROUND), min(len(text), max(end, start) + AROUND)
    return f"{'…' if first else ''}{text[first:last]}{'…' if last < len(text) else ''}"
