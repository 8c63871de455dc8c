"""A result of ``fuseproof fastpaths bench`` as JSON: what it must look like, and what makes two comparable.

Times are microseconds a call. ``rounds_us`` are the medians of separate rounds, which a guard compares.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fuseproof.errors import FuseproofError

SCHEMA = "fuseproof.fastpaths-bench/2"
KIND = SCHEMA.rpartition("/")[0]
LARGEST_FILE_BYTES = 64 * 1024 * 1024
FEWEST_ROUNDS = 3
SMALLEST_US, LARGEST_US = 1e-6, 1e15
"""A picosecond and thirty years: what lies beyond is no time of a call, and would overflow in ratios and sums."""
LARGEST_NUMBER = 10**18
ROUNDING = 1e-9
"""Relative: a median of means of two may be rounded past the samples it was formed of."""
NEXT_STEP = "`fuseproof fastpaths bench --save-baseline FILE` writes one."
EQUAL = "equal"
SETTLED_BY_ROWS = ("diffusers",)
"""Versions that decide which calls there are, never how long one takes: the rows themselves say which calls."""
Key = tuple[str, str, str, str]
Microseconds = Annotated[float, Field(ge=SMALLEST_US, le=LARGEST_US)]
Amount = Annotated[float, Field(ge=0, le=LARGEST_NUMBER)]
Whole = Annotated[int, Field(ge=0, le=LARGEST_NUMBER)]
Bits = Literal["equal", "differs", "declines", "undecided"]
"""What verification says of a call; only one whose bits are eager's is timed."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


class Time(_Strict):
    """Microseconds a call over all replays of all rounds."""

    median_us: Microseconds
    minimum_us: Microseconds
    maximum_us: Microseconds
    samples: int = Field(ge=1, le=LARGEST_NUMBER)
    rounds_us: list[Microseconds] = Field(min_length=FEWEST_ROUNDS)

    @model_validator(mode="after")
    def _fits(self) -> Time:
        """Rounds are of equally many samples, so the median of all lies among the medians of the rounds."""
        if not _ordered(self.minimum_us, self.low_us, self.median_us, self.high_us, self.maximum_us):
            raise ValueError(
                f"a median of {self.median_us:g} us and samples from {self.minimum_us:g} to {self.maximum_us:g} us do "
                f"not fit rounds from {self.low_us:g} to {self.high_us:g} us"
            )
        return self

    @property
    def low_us(self) -> float:
        """The fastest round's median."""
        return min(self.rounds_us)

    @property
    def high_us(self) -> float:
        """The slowest round's median."""
        return max(self.rounds_us)


class Row(_Strict):
    """One call of one kernel. Times are None where its bits were not eager's."""

    site: str
    kernel: str
    workload: str
    shapes: str
    bits: Bits
    reason: str | None
    rotation: Whole
    traffic_bytes: Whole | None
    source_sha256: str | None
    eager: Time | None
    fused: Time | None
    floor: Time | None
    speedup: Amount | None
    times_floor: Amount | None

    @model_validator(mode="after")
    def _is_timed_with_equal_bits_alone(self) -> Row:
        if self.bits != EQUAL and (self.eager or self.fused):
            raise ValueError(f"a call whose bits are {self.bits!r} has no time")
        return self

    @property
    def key(self) -> Key:
        """What tells this call from every other one."""
        return self.site, self.kernel, self.workload, self.shapes

    @property
    def times(self) -> tuple[Time, ...]:
        """Those that it has, of eager chain, fused form and floor."""
        return tuple(one for one in (self.eager, self.fused, self.floor) if one is not None)


class Card(_Strict):
    """The card: its power limit (W) and driver are None where nvidia-smi does not tell them."""

    name: str = Field(min_length=1)
    capability: str
    power_limit_w: float | None
    driver: str | None


class Selection(_Strict):
    """What the user chose to measure. Files are named by their SHA-256."""

    model: str | None
    sites: list[str]
    shapes: list[str]
    captured_sha256: str | None
    own_sha256: str | None


class Record(_Strict):
    """One run of ``fastpaths bench``."""

    schema_: str = Field(alias="schema")
    card: Card
    versions: dict[str, str | None]
    seed: int
    replays: Whole
    rounds: Whole
    selection: Selection
    calls: list[Row]
    guard: Any = None
    counters: Any = None

    def by_key(self) -> dict[Key, Row]:
        """Every row by what tells it from the others."""
        return {row.key: row for row in self.calls}


def from_document(document: Mapping[str, Any]) -> Record:
    """The record that ``document`` is; a ValueError, one line, where it is none."""
    schema = document.get("schema") if isinstance(document, Mapping) else None
    if schema != SCHEMA:
        older = isinstance(schema, str) and schema.rpartition("/")[0] == KIND
        raise ValueError(f"its schema is {schema!r}, and {SCHEMA} was expected{', so it must be made anew' * older}")
    try:
        record = Record.model_validate_json(json.dumps(document, allow_nan=False))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    twice = [key for key, number in Counter(row.key for row in record.calls).items() if number > 1]
    if twice:
        raise ValueError(f"it holds two rows of {', '.join(twice[0])}")
    odd = next((one for row in record.calls for one in row.times if len(one.rounds_us) != record.rounds), None)
    if odd is not None:
        raise ValueError(f"it says {record.rounds} rounds, and a row has {len(odd.rounds_us)}")
    return record


def _ordered(*values: float) -> bool:
    return all(one <= other * (1 + ROUNDING) for one, other in itertools.pairwise(values))


def read_record(path: Path) -> Record:
    """Read a stored result; a :class:`FuseproofError` says what is wrong with the file."""
    try:
        if not path.is_file():
            raise FuseproofError(f"{path} is no file with times of kernels.", next_step=NEXT_STEP)
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise FuseproofError(f"{path} is larger than {LARGEST_FILE_BYTES:,} bytes.", next_step=NEXT_STEP)
        return from_document(json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant))
    except OSError as error:
        raise FuseproofError(f"{path} cannot be read: {error.strerror or error}.", next_step=NEXT_STEP) from error
    except (ValueError, RecursionError) as error:
        raise FuseproofError(
            f"{path} holds no times of kernels: {str(error).rstrip('.')}.", next_step=NEXT_STEP
        ) from error


def is_record(path: Path) -> bool:
    """Whether a result of ours stands at ``path``, of an older form included."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and str(document.get("schema")).startswith(f"{KIND}/")


def differences(baseline: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What makes the times of two runs no comparison, ``name: baseline, here``; both are heads of documents."""
    return [
        f"{name}: {_shown(then)} in the baseline, {_shown(now)} here"
        for name, then, now in _compared(baseline, here)
        if then != now
    ]


def _compared(baseline: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in ("name", "capability", "power_limit_w", "driver"):
        yield f"card {name}", baseline["card"].get(name), here["card"].get(name)
    then, now = baseline["versions"], here["versions"]
    for name in dict.fromkeys((*then, *now)):
        if name not in SETTLED_BY_ROWS:
            yield name, then.get(name), now.get(name)
    for name in ("seed", "replays", "rounds"):
        yield name, baseline[name], here[name]


def _shown(value: Any) -> str:
    return "unknown" if value is None else str(value)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"it holds {name}, which is not JSON")
