"""What a log of sglang-diffusion says: client seconds, warm-up, CUDA graphs, fallback, saved files.

Markers are those of sglang 0.5.23; earlier versions print the same lines for times and saved files. A log of another
program has none of them, and says nothing.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuseproof.harness.campaign.records import SlotTimes
from fuseproof.harness.perf import graphs
from fuseproof.harness.perf.dump import PerfDump

CLIENT_TICK_S = 0.01
"""sglang prints its client seconds with two decimals."""
GRAPH_FLAG = "--enable-breakable-cuda-graph"
LOG_FILES = ("stderr.log", "stdout.log")
LARGEST_LOG_BYTES = 64 * 1024 * 1024

_CLIENT = re.compile(r"Pixel data generated successfully in (\d+\.\d+) seconds")
_WARMED_UP = re.compile(r"Warmed-up request processed in (\d+\.\d+) seconds")
_SAVED = re.compile(r"Output saved to (?P<path>.+?)\s*$", re.MULTILINE)
_FALLBACK = re.compile(
    r"falling back to diffusers backend|using diffusers backend|loaded diffusers pipeline", re.IGNORECASE
)
_COLD = re.compile(r"Warmup failed, so this request ran cold", re.IGNORECASE)
_FAILED = re.compile(r"Generation failed:")
_RECOMPILED = ("Recompiling function ", "torch._dynamo hit config.")
"""What ``TORCH_LOGS=recompiles`` prints, and Dynamo's own word that it gave up; any program's log may hold them."""
_CAPTURED = re.compile(r"\[Diffusion BCG\] captured", re.IGNORECASE)
_MISSED = re.compile(
    r"\[Diffusion BCG\][^\n]*(?:capture failed|disabled|serving signature missed|requests run eager until restart)"
    r"|no graph will be captured|cannot be used with breakable cuda graphs"
    r"|warmup captured no breakable CUDA graphs|has no captured breakable CUDA graphs",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class SglangLog:
    """The markers of one run's log. Times are seconds, rounded by sglang to 0.01 s; None where the line is missing."""

    client_s: float | None = None
    warmed_up_s: float | None = None
    """The request without its warm-up, which should be the dump's total."""
    saved: tuple[str, ...] = ()
    """Names of the files that were saved, without their folders."""
    graphs_captured: int = 0
    graphs_missed: int = 0
    fallback: str | None = None
    ran_cold: bool = False
    has_failed: bool = False

    def is_of(self, dump: PerfDump) -> bool:
        """Whether the log can belong to the run of ``dump``: the same request time, and no client faster than it."""
        tick = 1.5 * CLIENT_TICK_S
        worker_s = dump.worker_ms / 1e3
        is_same_request = self.warmed_up_s is None or abs(self.warmed_up_s - worker_s) <= tick
        return is_same_request and (self.client_s is None or self.client_s >= worker_s - tick)


def read_sglang_log(text: str) -> SglangLog:
    """The markers in ``text``; of lines that repeat, the last one is the measured request's."""
    fallback = _FALLBACK.search(text)
    return SglangLog(
        client_s=_last_seconds(_CLIENT, text),
        warmed_up_s=_last_seconds(_WARMED_UP, text),
        saved=tuple(re.split(r"[/\\]", found["path"])[-1] for found in _SAVED.finditer(text)),
        graphs_captured=len(_CAPTURED.findall(text)),
        graphs_missed=len(_MISSED.findall(text)),
        fallback=None if fallback is None else fallback.group(0),
        ran_cold=_COLD.search(text) is not None,
        has_failed=_FAILED.search(text) is not None,
    )


def slot_log(folder: Path) -> SglangLog:
    """The markers of a slot's logs; ``folder`` is the slot's own. Missing or special files say nothing."""
    return read_sglang_log("\n".join(_texts(folder / name for name in LOG_FILES)))


def has_recompiled(folder: Path) -> bool:
    """Whether a slot's logs show that torch.compile compiled a function again; they do not say when."""
    return any(marker in text for text in _texts(folder / name for name in LOG_FILES) for marker in _RECOMPILED)


def with_client_time(times: SlotTimes, dump: PerfDump, log: SglangLog) -> SlotTimes:
    """``times`` with the log's client seconds, where the dump has none and the log can be of the same run."""
    if times.client_s is not None or log.client_s is None or not log.is_of(dump):
        return times
    return dataclasses.replace(times, client_s=log.client_s)


def doubt_of(log: SglangLog, command: Sequence[str], config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Why a run may not be used by its own log: reason code and sentence. ``config`` is its dump's."""
    if log.fallback:
        return "FALLBACK", f"its log says {log.fallback!r}"
    if log.has_failed:
        return "INVALID_RUN", "its log says that the generation failed"
    if log.ran_cold:
        return "INVALID_RUN", "its log says that the warm-up failed, so the measured request ran cold"
    if log.graphs_missed:
        return "MISSING_GRAPH", "its log says that a CUDA graph was missed, refused or not captured"
    asked = any(word in (GRAPH_FLAG, f"{GRAPH_FLAG}=true") for word in command) or config.get(graphs.FLAG)
    if asked and not log.graphs_captured and log.client_s is not None:
        return "MISSING_GRAPH", f"it asked for CUDA graphs ({GRAPH_FLAG}), and its log shows no capture"
    return None


def _last_seconds(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.findall(text)
    return float(found[-1]) if found else None


def _texts(paths: Iterable[Path]) -> Iterable[str]:
    for path in paths:
        try:
            if path.is_file() and not path.is_symlink():
                with path.open("rb") as stream:
                    yield stream.read(LARGEST_LOG_BYTES).decode("utf-8", errors="replace")
        except OSError:
            continue
