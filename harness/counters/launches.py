"""Nsight Compute's ``--csv --page raw`` as launches: one row a kernel, one column a metric, units in a row.

A pure function of the text; what stands before the table (``==PROF==`` lines, the program's own output) is passed over.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

FIRST_COLUMNS = ("ID", "Process ID")
NAME, GRID, BLOCK = "Kernel Name", "Grid Size", "Block Size"
DURATION = "gpu__time_duration.sum"
READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
DRAM_PERCENT = (
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
)
REGISTERS = "launch__registers_per_thread"
LOCAL_LOADS = "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum"
LOCAL_STORES = "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum"
WARPS_PER_SM = "sm__warps_active.avg.per_cycle_active"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
THEORETICAL = "sm__maximum_warps_per_active_cycle_pct"
STALL_PREFIX, STALL_ENDING = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"
LONGEST_NAME = 100
"""Of a kernel in an error."""
NANOSECONDS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "nsecond": 1.0, "usecond": 1e3, "msecond": 1e6, "second": 1e9}
SMALLEST_NS, LARGEST = 1e-3, 1e18
"""A launch of less than a picosecond is none; larger numbers (thirty years, an exabyte) would overflow in sums."""
BYTES = {"byte": 1.0, "kbyte": 1e3, "mbyte": 1e6, "gbyte": 1e9, "tbyte": 1e12}


@dataclass(frozen=True)
class Launch:
    """One kernel launch. Nanoseconds, bytes, percent; None where the report has no such number.

    ``stalls`` are warps waiting for each reason at an issue, on average; ``selected`` (no wait) is among them.
    """

    name: str
    grid: str
    block: str
    duration_ns: float
    read_bytes: float | None
    written_bytes: float | None
    dram_percent: float | None
    registers: float | None
    local_load_sectors: float | None
    local_store_sectors: float | None
    warps_per_sm: float | None
    occupancy_percent: float | None
    theoretical_percent: float | None
    stalls: Mapping[str, float] = field(default_factory=dict)


def parse_raw_page(text: str) -> list[Launch]:
    """Every launch in order; a ValueError, one line, where there is no such table or a launch lacks a duration."""
    rows = _rows(text)
    if len(rows) < 2:
        raise ValueError("it holds no table that begins with the columns ID and Process ID")
    header, units = rows[0], rows[1]
    if DURATION not in header:
        raise ValueError(f"its table has no column {DURATION}")
    by_name = dict(zip(header, units, strict=False))
    return [_launch(dict(zip(header, row, strict=False)), by_name) for row in rows[2:]]


def _rows(text: str) -> list[list[str]]:
    """The table's rows, header and units first."""
    lines = text.splitlines(keepends=True)
    starts = [place for place, line in enumerate(lines) if line.lstrip("\ufeff").startswith('"ID","Process ID"')]
    if not starts:
        return []
    try:
        rows = list(csv.reader(io.StringIO("".join(lines[starts[0] :]).lstrip("\ufeff"))))
    except csv.Error as error:
        raise ValueError(f"its table cannot be read: {error}") from None
    width = len(rows[0])
    return [row for row in rows if len(row) == width]  # `==WARNING==` lines may follow


def _launch(row: Mapping[str, str], units: Mapping[str, str]) -> Launch:
    name = row.get(NAME, "")
    duration = _scaled(row, units, DURATION, NANOSECONDS)
    if duration is None or duration < SMALLEST_NS:
        raise ValueError(f"launch {row.get('ID')} of {name[:LONGEST_NAME]} has no duration")
    return Launch(
        name=name,
        grid=row.get(GRID, ""),
        block=row.get(BLOCK, ""),
        duration_ns=duration,
        read_bytes=_scaled(row, units, READ, BYTES),
        written_bytes=_scaled(row, units, WRITTEN, BYTES),
        dram_percent=next((value for one in DRAM_PERCENT if (value := _counted(row, one)) is not None), None),
        registers=_counted(row, REGISTERS),
        local_load_sectors=_counted(row, LOCAL_LOADS),
        local_store_sectors=_counted(row, LOCAL_STORES),
        warps_per_sm=_counted(row, WARPS_PER_SM),
        occupancy_percent=_counted(row, OCCUPANCY),
        theoretical_percent=_counted(row, THEORETICAL),
        stalls={
            column.removeprefix(STALL_PREFIX).removesuffix(STALL_ENDING): value
            for column in row
            if column.startswith(STALL_PREFIX) and column.endswith(STALL_ENDING)
            and (value := _counted(row, column)) is not None
        },
    )  # fmt: skip


def _scaled(
    row: Mapping[str, str], units: Mapping[str, str], column: str, factors: Mapping[str, float]
) -> float | None:
    value = _counted(row, column)
    if value is None:
        return None
    unit = units.get(column, "").strip().lower()
    if unit not in factors:
        raise ValueError(f"{column} is in {unit!r}; one of {', '.join(factors)} was expected")
    return _within(value * factors[unit], column)


def _counted(row: Mapping[str, str], column: str) -> float | None:
    """The number of a column; a ValueError for one that no counter can have."""
    value = number(row.get(column))
    return None if value is None else _within(value, column)


def _within(value: float, column: str) -> float:
    if not 0 <= value <= LARGEST:
        raise ValueError(f"{column} is {value:g}; a number from 0 to {LARGEST:g} was expected")
    return value


def number(text: str | None) -> float | None:
    """A number as ncu prints it (``1,842,186,240``); None for ``n/a``, ``nan`` or nothing."""
    try:
        value = float((text or "").strip().replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def split_at(launches: Sequence[Launch], separator: str) -> list[list[Launch]]:
    """The launches after each one whose name holds ``separator``; a ValueError for any before the first."""
    sections: list[list[Launch]] = []
    for launch in launches:
        if separator in launch.name:
            sections.append([])
        elif not sections:
            raise ValueError(f"{launch.name[:LONGEST_NAME]} was launched before the first mark")
        else:
            sections[-1].append(launch)
    return sections
