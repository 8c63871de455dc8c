"""Runs that a profiler watched: their times are no measurement. ``generate --profile`` marks its dump ``profiled``."""

from __future__ import annotations

from fuseproof.harness.perf.dump import PerfDump
from fuseproof.harness.perf.work import Difference

CODE = "PROFILED"
FLAG = "--profile"
WARNING = "a request ran under a profiler: its times are no measurement"
"""What the session of such a run warns of."""
ONE_TEXT = "it ran under a profiler (--profile), so its time is no measurement"
MANY_TEXT = "ran under a profiler (--profile): their times are no measurement"
NEXT_STEP = "Time runs without --profile; compare profiles with `fuseproof profile --before A --after B`."


def is_profiled(dump: PerfDump) -> bool:
    """Whether a profiler watched the run; a dump says so in three places, and each of them is believed."""
    told = (dump.raw.get("profiled"), dump.config.get("profile"))
    return any(value not in (None, False) for value in told) or WARNING in dump.warnings


def profiled_run(dump: PerfDump) -> Difference | None:
    """What forbids a comparison of a run's times with any other's, whichever of the two it is."""
    if not is_profiled(dump):
        return None
    return Difference("measurement", "profiled", FLAG, FLAG, f"{CODE}: {dump.label}: {ONE_TEXT}. {NEXT_STEP}")
