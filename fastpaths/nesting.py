"""Which sites work inside which: what a site returns differs, too, where one inside it returned other bits.

Only under ``--gate observe``: elsewhere a site that differs hands eager's result on, and nothing outside it changes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol


class NestedGate(Protocol):
    """What is known of a gate here: its site's name, and the sites inside it that were seen to differ."""

    site: str
    differed_inside: dict[str, None]


class _Open(threading.local):
    """The gates whose both forms this thread is running, outermost first."""

    def __init__(self) -> None:
        self.gates: list[NestedGate] = []


_open = _Open()


@contextmanager
def comparing(gate: NestedGate) -> Iterator[None]:
    """Within this context, this thread runs both forms of what ``gate`` stands before."""
    _open.gates.append(gate)
    try:
        yield
    finally:
        _open.gates.pop()


def tell_those_around(site: str) -> None:
    """Let every gate that is comparing around this call know that ``site`` handed on other bits than eager's."""
    for gate in _open.gates:
        if gate.site != site:
            gate.differed_inside[site] = None


def sites_inside(name: str, gates: Mapping[str, Any], families: Iterable[Any]) -> tuple[str, ...]:
    """The sites whose other bits may be why the result of ``name`` differs; empty where it did not differ itself.

    Those that were called inside it, and those of its family's ``READ_BY`` that made what it reads unseen.
    """
    gate = gates.get(name)
    if gate is None or gate.observed is None:
        return ()
    read = {made for family in families for made, reader in getattr(family, "READ_BY", {}).items() if reader == name}
    made = [site for site in gates if site in read and gates[site].observed is not None]
    return tuple(dict.fromkeys((*gate.differed_inside, *made)))


def inside_text(inside: Iterable[str]) -> str | None:
    """Why an outer site may differ without a fault of its own; None where nothing inside it did."""
    names = ", ".join(inside)
    return f"differs because of {names} inside it, or by itself: not told apart" if names else None
