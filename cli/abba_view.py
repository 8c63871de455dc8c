"""How a running campaign looks: a live table on a terminal, a line a slot elsewhere. All of it on stderr."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from fuseproof.harness.number_format import gib

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

    from fuseproof.harness.campaign.folder import Campaign
    from fuseproof.harness.campaign.records import SlotRecord
    from fuseproof.harness.campaign.runner import CampaignObserver
    from fuseproof.schedules.order import PlannedSlot

REFRESHES_PER_SECOND = 1
"""Once a second costs 1.4 % of a core, ten times 9.8 %: the measurement would see it."""
ROWS_SHOWN = 14

_STATE_STYLES = {"done": "green", "running": "bold", "invalid": "red", "interrupted": "yellow", "superseded": "dim"}


class PlainLines:
    """Without a terminal: one line of stderr a finished slot, and one for what a person should know."""

    def __init__(self) -> None:
        self._planned = 0
        self._finished = 0

    def campaign_started(self, campaign: Campaign) -> None:
        """Count the slots ahead: the first pass of a new campaign. A resumed one only counts what it runs."""
        from fuseproof.schedules.order import first_pass

        plan = campaign.plan
        blocks = {cell.name: plan.blocks_of(cell.name) for cell in plan.cells}
        is_new = not campaign.slots()
        self._planned = len(list(first_pass(blocks, plan.order, plan.warmup_slots, len(plan.letters)))) if is_new else 0

    def slot_started(self, slot: PlannedSlot) -> None:
        """Show nothing."""

    def slot_finished(self, record: SlotRecord) -> None:
        """Print the slot's place, name, state and worker time."""
        self._finished += 1
        # Blocks that start again run more slots than were planned.
        total = f" of {self._planned}" if self._finished <= self._planned else ""
        state = "warm-up, discarded" if record.kind == "warmup" and record.state == "done" else record.state
        worker = "" if record.times.worker_s is None else f", worker {record.times.worker_s:.3f} s"
        wall = "" if record.wall_s is None else f" after {record.wall_s:.1f} s"
        click.echo(f"fuseproof: slot {self._finished}{total}, {record.id}: {state}{wall}{worker}", err=True)

    def remark(self, text: str) -> None:
        """Print one line."""
        click.echo(f"fuseproof: {text}", err=True)


class LiveTable:
    """The slots of a campaign as a table that a refresher draws at most once a second."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._live = Live(
            self, console=console, refresh_per_second=REFRESHES_PER_SECOND, redirect_stdout=False, redirect_stderr=False
        )
        self._campaign: Campaign | None = None
        self._records: list[SlotRecord] = []
        self._running: dict[str, tuple[PlannedSlot, float]] = {}

    def campaign_started(self, campaign: Campaign) -> None:
        """Take over what earlier sessions ran."""
        self._campaign = campaign
        self._records = list(campaign.slots())
        self._live.start()

    def close(self) -> None:
        """Draw the table a last time and leave it standing."""
        self._live.stop()

    def slot_started(self, slot: PlannedSlot) -> None:
        """Show the slot as running."""
        self._running[slot.id] = slot, time.monotonic()

    def slot_finished(self, record: SlotRecord) -> None:
        """Show its numbers, or why it has none."""
        self._running.pop(record.id, None)
        self._records.append(record)

    def remark(self, text: str) -> None:
        """Print one line above the table."""
        self._console.print(f"fuseproof: {text}", markup=False, highlight=False)

    def __rich__(self) -> RenderableType:
        """Draw the last rows; called by the refresher, in its own thread."""
        from rich.table import Table

        table = Table(title=self._heading(), title_justify="left", box=None, pad_edge=False)
        for column in ("slot", "arm", "state", "worker s", "denoise s", "peak GiB"):
            is_number = column.endswith((" s", "GiB"))
            table.add_column(column, justify="right" if is_number else "left", no_wrap=True)
        table.add_column("note", ratio=1)
        for record in self._records[-ROWS_SHOWN:]:
            _add_record(table, record)
        for running, began_s in list(self._running.values()):
            elapsed = f"{time.monotonic() - began_s:.0f} s so far"
            table.add_row(*_plain(running.id, running.label, "running", "", "", "", elapsed), style="bold")
        return table

    def _heading(self) -> Text:
        from rich.text import Text

        if self._campaign is None:
            return Text("")
        plan = self._campaign.plan
        planned = sum(self._campaign.blocks_wanted(cell.name) for cell in plan.cells)
        complete = sum(len(self._campaign.complete_blocks(cell.name)) for cell in plan.cells)
        walls = [record.wall_s for record in self._records if record.wall_s is not None and record.state == "done"]
        left_s = sum(walls) / len(walls) * plan.slots_per_block * (planned - complete) if walls else 0.0
        eta = f", at most {left_s / 60:.0f} min left" if left_s >= 60 else ""
        return Text(f"{plan.title or plan.name}: {complete} of {planned} blocks, {len(self._records)} slots{eta}")


@contextlib.contextmanager
def campaign_view() -> Iterator[CampaignObserver]:
    """An observer that suits stderr: the live table on a terminal, a line a slot elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield PlainLines()
        return
    table = LiveTable(console)
    with contextlib.closing(table):
        yield table


def _add_record(table: Table, record: SlotRecord) -> None:
    note = record.reason or ""
    if record.kind == "warmup" and record.state == "done":
        note = "discarded"
    elif record.contention.busy:
        note = "disturbed by other processes"
    table.add_row(
        *_plain(
            record.id,
            record.label,
            record.state,
            _number(record.times.worker_s, 3),
            _number(record.times.denoise_s, 3),
            "" if record.memory.peak_rss_mib is None else gib(record.memory.peak_rss_mib, 2),
            note,
        ),
        style=_STATE_STYLES[record.state] if record.state != "done" or record.kind == "timed" else "dim",
    )


def _plain(*cells: str) -> tuple[RenderableType, ...]:
    """Cells without markup: an error message may hold brackets."""
    from rich.text import Text

    return tuple(Text(cell) for cell in cells)


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
