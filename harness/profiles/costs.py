"""A stage's device time by class, by site and module, and by line: sums over the rows, each row in exactly one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fuseproof.harness.profiles.profile import Profile, Row, Stage
from fuseproof.harness.profiles.usual import is_disturbed

OUTSIDE = "(outside modules)"
COMPUTE_BOUND = ("gemm", "attention", "convolution")
"""Classes whose time is arithmetic rather than traffic, and which no fusion of pointwise kernels takes away."""


@dataclass(frozen=True)
class ClassCost:
    """One class of kernels: launches and device time of one step."""

    name: str
    kernels: float
    device_us: float


@dataclass(frozen=True)
class Cost:
    """Everything that one site, or one module without a site, launches in one step; or one line of it.

    ``device_us`` is the sum; ``usual_us`` what it is without what disturbed calls took beyond the usual, by which costs
    are ranked. ``floor_us`` is what moving ``bytes`` takes at the measured copy bandwidth. It and ``bandwidth_gb_s``
    are None where the bytes of some launch are not known: half the traffic over the whole time would be a wrong number.
    """

    name: str
    is_site: bool
    component: str
    modules: tuple[str, ...]
    state: str | None
    classes: tuple[str, ...]
    line: str | None
    lines: int
    kernels: float
    device_us: float
    usual_us: float
    is_disturbed: bool
    bytes: float | None
    floor_us: float | None

    @property
    def bandwidth_gb_s(self) -> float | None:
        """Bytes that must move over the time that it usually takes."""
        return None if self.bytes is None or not self.usual_us else self.bytes / self.usual_us / 1e3

    @property
    def distance(self) -> float | None:
        """How many times the traffic floor it usually takes."""
        return None if not self.floor_us else self.usual_us / self.floor_us

    @property
    def is_arithmetic(self) -> bool:
        """Whether most of its time is matrix products, attention or convolutions."""
        return bool(self.classes) and self.classes[0] in COMPUTE_BOUND


def folded(module: str) -> str:
    """``transformer_blocks.3.norm1`` → ``transformer_blocks.*.norm1``; what is outside all modules has a name, too."""
    parts = ("*" if part.isascii() and part.isdecimal() else part for part in module.split("."))
    return ".".join(parts) if module else OUTSIDE


def by_class(rows: Iterable[Row], steps: int) -> tuple[ClassCost, ...]:
    """The classes by falling device time, of one step of ``steps``."""
    found = _grouped(rows, lambda row: row.kernel_class)
    costs = (
        ClassCost(name, sum(row.calls for row in of_it) / steps, _time(of_it) / steps) for name, of_it in found.items()
    )
    return tuple(sorted(costs, key=lambda cost: (-cost.device_us, cost.name)))


def by_place(profile: Profile, stage: Stage) -> tuple[Cost, ...]:
    """By site, or by folded module where no site launched it; by falling usual time."""
    found = _grouped(profile.rows_of(stage), _place)
    costs = (_cost(profile, place, rows, stage) for place, rows in found.items())
    return tuple(sorted(costs, key=lambda cost: (-cost.usual_us, cost.name, cost.component)))


def by_block(profile: Profile, stage: Stage) -> tuple[Cost, ...]:
    """By block, repeats as one, whether its modules or a site launched."""
    found = _grouped(profile.rows_of(stage), _block_of)
    costs = (_cost(profile, place, rows, stage) for place, rows in found.items())
    return tuple(sorted(costs, key=lambda cost: (-cost.usual_us, cost.name, cost.component)))


def _block_of(row: Row) -> Place:
    return folded(split_block(row.module)[0]) if row.module else _module_of(row), False, row.component


def split_block(module: str) -> tuple[str, str]:
    """``transformer_blocks.3.attn.to_q`` → ``transformer_blocks.3`` and ``attn.to_q``: the block ends with the first
    index, or is the first name of a module without one.
    """
    parts = module.split(".") if module else []
    ends = next((index + 1 for index, part in enumerate(parts) if part.isascii() and part.isdecimal()), 1)
    return ".".join(parts[:ends]), ".".join(parts[ends:])


def by_line(profile: Profile, stage: Stage) -> tuple[Cost, ...]:
    """The same parted further by module, line of code and class: what one line costs, in all repeats of its block."""

    def key(row: Row) -> tuple[Place, str, str | None, str]:
        return _place(row), _module_of(row), row.line, row.kernel_class

    found = _grouped(profile.rows_of(stage), key)
    costs = (_cost(profile, at[0], rows, stage) for at, rows in found.items())
    return tuple(sorted(costs, key=lambda cost: (-cost.usual_us, cost.name, cost.line or "", cost.classes)))


def largest(costs: Sequence[Cost], count: int) -> tuple[tuple[Cost, ...], tuple[Cost, ...]]:
    """The most costly lines, and besides these the most costly without matrix products, attention and convolutions."""
    return tuple(costs[:count]), tuple([cost for cost in costs[count:] if not cost.is_arithmetic][:count])


Key = TypeVar("Key")
Place = tuple[str, bool, str]
"""Name, whether it is a site, and the component."""


def _place(row: Row) -> Place:
    return (row.site, True, row.component) if row.site is not None else (_module_of(row), False, row.component)


def _module_of(row: Row) -> str:
    """The folded module; what is outside all of them is told apart by its component."""
    return folded(row.module) if row.module else f"(outside modules: {row.component})"


def _cost(profile: Profile, place: Place, rows: Sequence[Row], stage: Stage) -> Cost:
    bandwidth_gb_s = profile.device.copy_bandwidth_gb_s
    moved = [row.bytes * row.calls for row in rows if row.bytes is not None]
    moved_bytes = math.fsum(moved) / stage.steps if len(moved) == len(rows) else None
    floor_us = None if moved_bytes is None or bandwidth_gb_s is None else moved_bytes / bandwidth_gb_s / 1e3
    states = {row.site_state for row in rows if row.site_state is not None}
    lines = _by_time(rows, lambda row: row.line)
    return Cost(
        name=place[0],
        is_site=place[1],
        component=place[2],
        modules=_by_time(rows, _module_of),
        state=" and ".join(sorted(states, reverse=True)) or None,
        classes=_by_time(rows, lambda row: row.kernel_class),
        line=lines[0] if lines else None,
        lines=len(lines),
        kernels=sum(row.calls for row in rows) / stage.steps,
        device_us=_time(rows) / stage.steps,
        usual_us=math.fsum(profile.usual[row].device_us for row in rows) / stage.steps,
        is_disturbed=is_disturbed(rows, profile.usual),
        bytes=moved_bytes,
        floor_us=floor_us,
    )


def _by_time(rows: Iterable[Row], name: Callable[[Row], str | None]) -> tuple[str, ...]:
    """The distinct names of rows, the most costly first."""
    times: dict[str, float] = {}
    for row in rows:
        own = name(row)
        if own is not None:
            times[own] = times.get(own, 0.0) + row.device_us
    return tuple(sorted(times, key=lambda own: (-times[own], own)))


def _grouped(rows: Iterable[Row], key: Callable[[Row], Key]) -> Mapping[Key, list[Row]]:
    found: dict[Key, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def _time(rows: Iterable[Row]) -> float:
    return math.fsum(row.device_us for row in rows)
