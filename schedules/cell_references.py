"""Which cell another one is read against: ``reference = "lossless"`` in the cell ``high``."""

from __future__ import annotations

from collections.abc import Mapping


def problem_of_references(references: Mapping[str, str | None]) -> str | None:
    """Why a cell's reference makes no sense, or None; ``references`` maps every cell's name to what it names."""
    for name, reference in references.items():
        if reference is None:
            continue
        if reference == name:
            return f"the cell {name!r} names itself as its reference"
        if reference not in references:
            others = ", ".join(other for other in references if other != name) or "there is no other cell"
            return f"the cell {name!r} names the reference {reference!r}, which is no cell; others: {others}"
    return None
