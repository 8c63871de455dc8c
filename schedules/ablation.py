"""What an ablation takes apart: units of fast paths, and which of them are in force in each arm of the plan.

The baseline has no fast path and the candidate has all of them; every further arm has one unit (and what it needs), or
all but one (and without what needs that one). Arms share one palindromic block, so every contrast between two of them
is paired by block and free of linear drift, and baseline and candidate run once a block for all units together.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fuseproof.schedules.order import MOST_ARMS

By = Literal["alone", "without", "both"]
WAYS: tuple[By, ...] = ("alone", "without", "both")
FASTPATHS = "--fastpaths"
BASELINE, WHOLE = "baseline", "candidate"
"""The keys of the two arms that every ablation has: no fast path, and all of them."""

_NAME = r"^[a-z0-9][a-z0-9_+-]{0,199}$"
UnitName = Annotated[str, Field(pattern=_NAME)]
Site = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,99}$")]
Units = frozenset[str]


class Ablation(BaseModel):
    """``units`` maps each unit to its sites; ``needs`` a unit to the units without which its sites do not work.

    ``arms`` maps the key of every arm to the units in force there.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    by: By = "both"
    units: dict[UnitName, tuple[Site, ...]]
    needs: dict[UnitName, tuple[UnitName, ...]] = Field(default_factory=dict)
    arms: dict[str, tuple[UnitName, ...]]

    @model_validator(mode="after")
    def _is_whole(self) -> Ablation:
        sites = [site for own in self.units.values() for site in own]
        twice = next((site for site in sites if sites.count(site) > 1), None)
        named = {unit for found in (*self.arms.values(), *self.needs.values(), self.needs) for unit in found}
        if len(self.units) < 2:
            raise ValueError(f"an ablation has two units or more, and this one has {len(self.units)}")
        if twice is not None or not all(self.units.values()):
            raise ValueError(f"every unit has sites, each of one unit alone (seen: {twice or 'a unit without one'})")
        if not named <= set(self.units):
            raise ValueError(f"{min(named - set(self.units))!r} is no unit")
        if self.arms.get(BASELINE) != () or set(self.arms.get(WHOLE, ())) != set(self.units):
            raise ValueError("the baseline has no unit and the candidate all of them")
        if len({frozenset(units) for units in self.arms.values()}) != len(self.arms):
            raise ValueError("two arms have the same units")
        pairs = [(unit, one) for unit in self.units for one in self.needed_by(unit)]
        round_about = next((unit for unit, one in pairs if unit in self.needed_by(one)), None)
        if round_about is not None:
            raise ValueError(f"{round_about!r} needs units that need it in turn")
        wanted, found = set(arms_of(self.units, self.needs, self.by).values()), set(map(frozenset, self.arms.values()))
        if wanted != found:
            odd = min(wanted ^ found, key=lambda units: (len(units), sorted(units)))
            which = "lacks an arm" if odd in wanted else "has an arm that no effect asks for,"
            units = ", ".join(sorted(odd)) or "no unit"
            raise ValueError(f"by units, needs and by = {self.by!r} it {which} with {units}")
        return self

    @property
    def key_of(self) -> dict[Units, str]:
        """The arm with exactly these units."""
        return {frozenset(units): key for key, units in self.arms.items()}

    def needed_by(self, unit: str) -> Units:
        """The units that ``unit`` cannot work without, those that these need included."""
        return _closure(unit, self.needs)

    def needing(self, unit: str) -> Units:
        """The units that cannot work without ``unit``."""
        return frozenset(other for other in self.units if unit in self.needed_by(other))

    @property
    def roots(self) -> tuple[str, ...]:
        """The units that need no other: left out, each takes along what needs it, and together they are all units."""
        return tuple(unit for unit in self.units if not self.needed_by(unit))

    def sites_of(self, units: Iterable[str]) -> tuple[str, ...]:
        """The sites of these units, in the order of the units."""
        wanted = set(units)
        return tuple(site for unit, sites in self.units.items() if unit in wanted for site in sites)


def arms_of(units: Mapping[str, tuple[str, ...]], needs: Mapping[str, tuple[str, ...]], by: By) -> dict[str, Units]:
    """The arms that an ablation runs, by what reports call them, each with the units in force; no two are alike.

    Where a unit needs others, its alone effect is over an arm with just those, which is added where it is not one yet.
    """
    every = frozenset(units)
    needed = {unit: _closure(unit, needs) for unit in units}
    wanted: dict[str, Units] = {"no fast path": frozenset(), "all fast paths": every}
    if by != "without":
        wanted |= {f"alone:{unit}": needed[unit] | {unit} for unit in units}
        wanted |= {f"alone:{'+'.join(sorted(found))}": found for found in needed.values() if len(found) > 1}
    if by != "alone":
        taken = {unit: frozenset(other for other in units if unit in needed[other]) for unit in units}
        wanted |= {f"without:{unit}": every - {unit} - taken[unit] for unit in units}
    names: dict[Units, str] = {}
    for name, found in wanted.items():
        names.setdefault(found, name)
    return {name: found for found, name in names.items()}


def fastpaths_flag(ablation_sites: Mapping[str, tuple[str, ...]], units: Units) -> str:
    """``--fastpaths=off``, ``--fastpaths=auto`` for all of them, or the sites of these units by name."""
    if not units:
        return f"{FASTPATHS}=off"
    if units == frozenset(ablation_sites):
        return f"{FASTPATHS}=auto"
    return f"{FASTPATHS}={','.join(site for unit, sites in ablation_sites.items() if unit in units for site in sites)}"


def problem_of_arms(ablation: Ablation | None, flags: Mapping[str, str]) -> str | None:
    """Why a plan's arms (flags by key) are too many without an ablation, or not those of theirs; None: they fit."""
    if ablation is None:
        return None if len(flags) <= MOST_ARMS else f"there are {len(flags)} arms; a campaign has at most {MOST_ARMS}"
    if set(flags) != set(ablation.arms):
        odd = min(set(flags) ^ set(ablation.arms))
        return f"ablation and arms do not name the same arms (seen: {odd!r})"
    for key, units in ablation.arms.items():
        wanted = fastpaths_flag(ablation.units, frozenset(units))
        words = [word for word in shlex.split(flags[key]) if word.split("=", 1)[0] == FASTPATHS]
        if words != [wanted]:
            return f"the flags of arm {key} must hold {wanted} for the units that ablation gives it"
    return None


def without_fastpaths(flags: str) -> tuple[str, ...]:
    """The words of ``flags`` without ``--fastpaths`` and its value."""
    kept: list[str] = []
    previous = ""
    for word in shlex.split(flags):
        if word.split("=", 1)[0] != FASTPATHS and previous != FASTPATHS:
            kept.append(word)
        previous = word
    return tuple(kept)


def _closure(unit: str, needs: Mapping[str, tuple[str, ...]]) -> Units:
    found: set[str] = set()
    ahead = list(needs.get(unit, ()))
    while ahead:
        one = ahead.pop()
        if one not in found and one != unit:
            found.add(one)
            ahead += needs.get(one, ())
    return frozenset(found)
