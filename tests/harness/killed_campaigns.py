"""Campaigns that are killed while they run, and what is left of them.

As a program it kills one campaign in every slot in turn, and others at moments spread over their whole life, goes on
with each, and prints what was found::

    python -m tests.harness.killed_campaigns FOLDER [--moments 40]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from fuseproof.harness.campaign.folder import Campaign
from tests.harness.fake_commands import fake_command

SLOTS = 9
"""One warm-up slot and two blocks of four."""
PATIENCE_S = 60.0

Call = Callable[..., tuple[int, str]]
"""Runs ``fuseproof`` with arguments in a folder, as a process or in this one."""


def program(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """``fuseproof`` with these arguments as a process of its own, in ``folder``, with locks of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "fuseproof", *arguments],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def call_program(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run ``fuseproof`` to its end: its exit code, and all it said."""
    called = program(folder, *arguments)
    out, said = called.communicate(timeout=PATIENCE_S)
    return called.returncode, out + said


def arms(folder: Path, **baseline_and_candidate: Any) -> list[str]:
    """Two foreign commands that count their calls in one file, whose path marks every process of theirs."""
    shared = {"counter": folder / "calls", **baseline_and_candidate}
    first, second = fake_command(worker_ms=1000, **shared), fake_command(worker_ms=900, **shared)
    return ["abba", "--baseline-command", first, "--candidate-command", second, "--output=c", "--allow-busy"]


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"{PATIENCE_S:.0f} s have passed without {what}")
        time.sleep(0.05)


def processes_of(folder: Path) -> list[psutil.Process]:
    """Every process whose command line names the folder's counter: arms and what they started."""
    marker, found = str(folder / "calls"), []
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE and marker in (process.info["cmdline"] or []):
            found.append(process)
    return found


def running_slot(folder: Path) -> str | None:
    """The slot whose record says that it runs; None between two slots."""
    for result in (folder / "c" / "slots").glob("*/*/result.json"):
        if '"state": "running"' in result.read_text(encoding="utf-8"):
            return result.parent.name
    return None


def end_in_slot(folder: Path, number: int, how: signal.Signals) -> tuple[str, int, str]:
    """Run a campaign whose call ``number`` hangs with a child of its own, and signal the tool there.

    The slot's name, the tool's return code, and what it said.
    """
    tool = program(folder, *arms(folder, mode="brood", fail_on=number))
    calls = folder / "calls"
    wait_for(lambda: calls.exists() and str(number) == calls.read_text(), f"call {number}")
    wait_for(lambda: running_slot(folder) is not None and len(processes_of(folder)) == 2, "an arm with a child")
    slot = running_slot(folder)
    assert slot is not None
    tool.send_signal(how)
    _, said = tool.communicate(timeout=PATIENCE_S)
    return slot, tool.returncode, said


def measured(folder: Path) -> dict[str, Mapping[str, Any]]:
    """What every finished slot holds on disk: its files' bytes, and its record but for its state."""
    found = {}
    for slot in Campaign.open(folder / "c").slots():
        place = folder / "c" / slot.directory
        if slot.state not in ("done", "superseded"):
            continue
        record = json.loads((place / "result.json").read_text(encoding="utf-8"))
        facts = {key: value for key, value in record.items() if key not in ("state", "reason_code", "reason")}
        files = {path.name: path.read_bytes() for path in place.rglob("*") if path.is_file()}
        found[slot.id] = {"facts": facts} | {name: files[name] for name in files if name != "result.json"}
    return found


@dataclass(frozen=True)
class Recovery:
    """How a campaign that was ended went on. ``problem`` is None where everything held."""

    orphans: int
    resumed: int
    verified: int
    kept: int
    slots: int
    problem: str | None


def recover(folder: Path, call: Call) -> Recovery:
    """Look for processes left behind, resume, verify, and hold what was finished before against what is there now."""
    started_s = time.monotonic()
    while (orphans := processes_of(folder)) and time.monotonic() < started_s + 5:
        time.sleep(0.05)
    before = measured(folder)
    resumed, said = call(folder, "abba", "--resume=c", "--allow-busy")
    verified, told = call(folder, "verify", "c")
    campaign, after = Campaign.open(folder / "c"), measured(folder)
    temporary = [path.name for path in (folder / "c").rglob("*") if path.name.endswith(".tmp")]
    lost = [slot for slot in before if before[slot] != after.get(slot)]
    holds = {
        f"{len(orphans)} processes were left": not orphans,
        f"resume ended with {resumed}: {said.strip()}": resumed == 0,
        f"verify ended with {verified}: {told.strip()}": verified == 0,
        f"the campaign is {campaign.status}": campaign.status == "complete",
        "a block is missing": len(campaign.complete_blocks("command")) == 2,
        f"changed: {lost}": not lost,
        f"temporary files: {temporary}": not temporary,
    }
    problem = next((what for what, is_so in holds.items() if not is_so), None)
    return Recovery(len(orphans), resumed, verified, len(before), len(campaign.slots()), problem)


def kill_in_every_slot(folder: Path) -> int:
    """Print one row per slot; how many did not recover."""
    failures = 0
    say("| killed in call | slot | processes left | resume | verify | finished before, kept | slots in the end |")
    say("|--:|---|--:|--:|--:|--:|--:|")
    for number in range(1, SLOTS + 1):
        place = folder / f"slot-{number}"
        place.mkdir()
        slot, _, _ = end_in_slot(place, number, signal.SIGKILL)
        say(row(str(number), slot, found := recover(place, call_program)))
        failures += found.problem is not None
    return failures


def kill_at_moments(folder: Path, moments: int) -> int:
    """Kill undisturbed campaigns after growing times; print one row each, and how many did not recover."""
    first = folder / "whole"
    first.mkdir()
    begun_s = time.monotonic()
    whole = program(first, *arms(first))
    whole.communicate(timeout=PATIENCE_S)
    life_s = time.monotonic() - begun_s
    failures = 0
    say(f"\nA whole campaign of this kind took {life_s:.2f} s.\n")
    say("| killed after s | running slot | processes left | resume | verify | finished before, kept | slots |")
    say("|--:|---|--:|--:|--:|--:|--:|")
    for moment in range(1, moments + 1):
        place = folder / f"moment-{moment}"
        place.mkdir()
        tool = program(place, *arms(place))
        time.sleep(life_s * moment / moments)
        tool.kill()
        tool.communicate(timeout=PATIENCE_S)
        after = f"{life_s * moment / moments:.2f}"
        if not (place / "c" / "campaign.json").exists():
            again = program(place, *arms(place))
            again.communicate(timeout=PATIENCE_S)
            failures += again.returncode != 0
            say(f"| {after} | no campaign yet: begun anew, exit code {again.returncode} | | | | | |")
            continue
        say(row(after, running_slot(place) or "between slots", found := recover(place, call_program)))
        failures += found.problem is not None
    return failures


def row(when: str, slot: str, found: Recovery) -> str:
    cells = (when, slot, found.orphans, found.resumed, found.verified, found.kept, found.slots)
    problem = "" if found.problem is None else f" {found.problem}"
    return f"| {' | '.join(str(cell) for cell in cells)} |{problem}"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a new folder for the campaigns")
    parser.add_argument("--moments", type=int, default=40)
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    folder = options.folder.resolve()
    failures = kill_in_every_slot(folder) + kill_at_moments(folder, options.moments)
    say(f"\n{failures} of {SLOTS + options.moments} campaigns did not end complete, verified and alone.")
    if not failures:
        shutil.rmtree(folder)
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
