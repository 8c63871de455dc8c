"""What does not change is computed once: results held for as long as the very objects they came from are in use.

An entry holds a reference to each input object, so ``is`` decides a hit: an object that is alive cannot share its
identity with another. Nothing is keyed on ``id()``, ``data_ptr()`` or ``_version`` (all are reused or missing), and no
value is compared, which would synchronise with the device. The price: a held input must not be changed in place while
a request runs; diffusers' pipelines do not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

# Two guidance branches, and room for a script that alternates between two prompts.
ENTRIES_HELD = 4


@dataclass(frozen=True)
class Held:
    """One result, the gate key it was computed under, and the input objects it came from."""

    key: Hashable
    inputs: tuple[object, ...]
    result: Any


class HeldResults:
    """The last few results of one site, found by the identity of their inputs. Bounded, oldest out first."""

    def __init__(self, entries: int = ENTRIES_HELD) -> None:
        self._entries: deque[Held] = deque(maxlen=entries)

    def find(self, key: Hashable, inputs: tuple[object, ...]) -> Held | None:
        """The entry computed under ``key`` from exactly these objects, or None."""
        for entry in self._entries:
            if entry.key == key and all(a is b for a, b in zip(entry.inputs, inputs, strict=True)):
                return entry
        return None

    def hold(self, key: Hashable, inputs: tuple[object, ...], result: Any) -> None:
        """Keep a result until it is the oldest, or the request ends."""
        self._entries.append(Held(key, inputs, result))

    def clear(self) -> None:
        """Drop every result and input reference."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)
