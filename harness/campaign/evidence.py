"""What a finished process left behind: its perf dump, its media, their hashes; and whether any of it may be believed.

Each way in which a slot can fail has a reason code of its own. A dump or an output that fails a check makes the slot
invalid; it stays on disk.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fuseproof.errors import FuseproofError
from fuseproof.harness.campaign.processes import ProcessEnd
from fuseproof.harness.campaign.records import SlotMemory, SlotOutput, SlotTimes
from fuseproof.harness.machine.redaction import redact
from fuseproof.harness.media.comparison import degenerate_reason, file_sha256, load_image
from fuseproof.harness.media.decoding import IMAGE_SUFFIXES
from fuseproof.harness.perf.dump import PerfDump, read_perf_dump

LOG_TAIL_LINES = 20
LOG_TAIL_BYTES = 64 * 1024
LOG_LINE_CHARACTERS = 400
CLOCK_TOLERANCE_S = 2.0
"""File systems and sglang's dumps keep time coarsely; a dump this much older than its slot is an old one."""

_OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|\bMemoryError\b|can't allocate memory|Cannot allocate memory|std::bad_alloc"
    r"|CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


class EvidenceError(Exception):
    """Why a slot is invalid: a reason code and a sentence."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


@dataclass(frozen=True)
class Evidence:
    """The usable results of a slot."""

    times: SlotTimes = field(default_factory=SlotTimes)
    memory: SlotMemory = field(default_factory=SlotMemory)
    outputs: tuple[SlotOutput, ...] = ()
    work: dict[str, Any] = field(default_factory=dict)
    fastpaths: dict[str, Any] | None = None


def check_ending(end: ProcessEnd, log_text: str, timeout_s: float) -> None:
    """Raise :class:`EvidenceError` unless the process ended by itself with status 0."""
    if end.ending == "interrupted":
        raise EvidenceError("INTERRUPTED", "the campaign was interrupted while this slot ran")
    if end.ending == "timeout":
        raise EvidenceError("TIMEOUT", f"it did not end within {timeout_s:g} s and was killed with its process group")
    if end.returncode == 0:
        return
    if _OUT_OF_MEMORY.search(log_text) or (end.returncode == -signal.SIGKILL and end.oom_kills):
        raise EvidenceError("OOM", f"it ran out of memory ({_exit_words(end.returncode)})")
    if end.returncode < 0:
        raise EvidenceError("KILLED", f"it was {_exit_words(end.returncode)}")
    raise EvidenceError("EXIT", f"it ended with {_exit_words(end.returncode)}")


def collect_dump(path: Path, started: datetime) -> PerfDump:
    """The slot's perf dump; :class:`EvidenceError` when it is missing, unreadable, or from before the slot began."""
    if not path.exists():
        raise EvidenceError("NO_DUMP", f"it ended with status 0 but wrote no {path.name}")
    try:
        dump = read_perf_dump(path)
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except (FuseproofError, OSError) as error:
        raise EvidenceError("BAD_DUMP", str(error).replace(f"{path.parent}{os.sep}", "")) from error
    stamps = [written, *_stated_moment(dump.raw.get("timestamp"))]
    oldest = min(stamps)
    if (started - oldest).total_seconds() > CLOCK_TOLERANCE_S:
        when = oldest.isoformat(timespec="seconds")
        raise EvidenceError("BAD_DUMP", f"{path.name} is of an old run: it is from {when}, before this slot began")
    _refuse_fallback(dump)
    return dump


def collect(dump: PerfDump, outputs: Path, expects_outputs: bool) -> Evidence:
    """Times, memory, work and hashed outputs of a slot whose process and dump are fine; ``outputs`` is its folder."""
    return Evidence(
        times=_times(dump),
        memory=_memory(dump),
        outputs=tuple(_outputs(dump, outputs, expects_outputs)),
        work=_work(dump),
        fastpaths=dump.fastpaths or None,
    )


def log_tail(stderr: Path, stdout: Path, campaign: Path) -> tuple[str, ...]:
    """The last lines of a slot's stderr, or of its stdout when stderr is empty; printable and redacted.

    Paths below ``campaign`` become relative to it.
    """
    text = (read_tail(stderr).strip() or read_tail(stdout).strip()).replace(f"{campaign}{os.sep}", "")
    lines = [_CONTROL.sub("", line).rstrip() for line in text.replace("\r", "\n").splitlines()]
    kept = [line for line in lines if line][-LOG_TAIL_LINES:]
    return tuple(redact(line[:LOG_LINE_CHARACTERS]) for line in kept)


def read_tail(path: Path) -> str:
    """The end of a log; empty when there is none."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            return stream.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def frames_listing(outputs: tuple[SlotOutput, ...]) -> str:
    """``frames.sha256``: one line per output, the hash closest to the model's own numbers first."""
    names = (output.path.encode("utf-8", "backslashreplace").decode("utf-8") for output in outputs)
    return "".join(f"{output.deepest_sha256}  {name}\n" for output, name in zip(outputs, names, strict=True))


def _exit_words(returncode: int) -> str:
    if returncode >= 0:
        return f"exit status {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"


def _stated_moment(timestamp: object) -> list[datetime]:
    """The dump's own time stamp; one without a time zone is UTC, as both tools write it."""
    with contextlib.suppress(TypeError, ValueError):
        moment = datetime.fromisoformat(str(timestamp))
        return [moment if moment.tzinfo else moment.replace(tzinfo=UTC)]
    return []


def _refuse_fallback(dump: PerfDump) -> None:
    reason = dump.config.get("fallback_reason") or dump.environment.get("fallback_reason")
    if reason:
        raise EvidenceError("FALLBACK", f"the arm fell back to another backend: {redact(str(reason))}")


def _times(dump: PerfDump) -> SlotTimes:
    def seconds(name: str) -> float | None:
        value = dump.timers.get(name)
        return None if value is None else value / 1e3

    denoise_ms = dump.run_denoise_ms
    return SlotTimes(
        worker_s=dump.worker_ms / 1e3,
        denoise_s=None if denoise_ms is None else denoise_ms / 1e3,
        client_s=seconds("client_ms"),
        save_s=seconds("save_ms"),
        load_s=seconds("load_ms"),
        warmup_s=seconds("warmup_ms"),
        compile_s=seconds("compile_ms"),
    )


def _memory(dump: PerfDump) -> SlotMemory:
    """Request peaks come from after the forward pass (the allocator's peaks are reset before it)."""
    request = dump.memory.get("after_forward") or dump.memory.get("runtime_peak") or {}
    load, warmup = dump.memory.get("load_peak", {}), dump.memory.get("warmup_peak", {})
    host = [values["peak_host_rss_mb"] for values in dump.memory.values() if values.get("peak_host_rss_mb")]
    return SlotMemory(
        peak_rss_mib=max(host, default=None),
        peak_allocated_mib=_positive(request, "peak_allocated_mb"),
        peak_reserved_mib=_positive(request, "peak_reserved_mb"),
        load_peak_mib=_device_or_host(load),
        warmup_peak_mib=_device_or_host(warmup),
    )


def _positive(values: Mapping[str, float], key: str) -> float | None:
    """A peak of 0 MiB means that there is no such device, not that nothing was needed."""
    return values.get(key) or None


def _device_or_host(values: Mapping[str, float]) -> float | None:
    return _positive(values, "peak_allocated_mb") or _positive(values, "peak_host_rss_mb")


def _work(dump: PerfDump) -> dict[str, Any]:
    counters = [request["work"] for request in dump.requests if isinstance(request.get("work"), dict)]
    names = sorted({name for counter in counters for name in counter})
    sums = {name: sum(counter.get(name) or 0 for counter in counters) for name in names}
    step_lists = [request.get("denoise_steps_ms") for request in dump.requests]
    steps = sum(len(steps) for steps in step_lists if isinstance(steps, list)) or len(dump.denoise_steps_ms)
    return {
        "requests": dump.request_count,
        "denoise_steps": steps,
        "warmup_mode": dump.config.get("warmup_mode"),
        "warmup_steps": dump.config.get("warmup_steps"),
        **sums,
    }


def _outputs(dump: PerfDump, outputs: Path, is_expected: bool) -> Iterator[SlotOutput]:
    stated = {_stated_path(dump, str(entry["path"])): entry for entry in dump.outputs if entry.get("path")}
    found = sorted(path for path in outputs.rglob("*") if path.is_file() and not path.name.startswith("."))
    if is_expected and not found:
        raise EvidenceError("NO_OUTPUT", "it ended with status 0 but wrote no output")
    for path in stated:
        if path not in {file.resolve() for file in found}:
            raise EvidenceError("BAD_OUTPUT", f"the dump names an output that is not in the slot's folder: {path.name}")
    for path in found:
        yield _output(path, outputs.parent, stated.get(path.resolve(), {}))


def _stated_path(dump: PerfDump, path: str) -> Path:
    """A dump names its outputs relative to its own folder, or from the home folder on."""
    return (dump.path.parent / Path(path).expanduser()).resolve()


def _output(path: Path, slot: Path, stated: Mapping[str, Any]) -> SlotOutput:
    name = path.relative_to(slot).as_posix()
    try:
        if path.suffix.lower() not in IMAGE_SUFFIXES:
            return SlotOutput(name, file_sha256(path), frames=_whole(stated.get("frames")))
        picture = load_image(path)
    except FuseproofError as error:
        raise EvidenceError("BAD_OUTPUT", error.message.replace(f"{slot}{os.sep}", "")) from error
    if stated.get("file_sha256") not in (None, picture.file_sha256):
        raise EvidenceError("BAD_OUTPUT", f"{name} is not the file whose hash the dump holds")
    return SlotOutput(
        path=name,
        file_sha256=picture.file_sha256,
        pixels_sha256=picture.pixels_sha256,
        raw_sha256=_text(stated.get("raw_sha256")),
        latents_sha256=_text(stated.get("latents_sha256")),
        width=picture.width,
        height=picture.height,
        frames=1,
        degenerate=_text(stated.get("degenerate")) or degenerate_reason(picture.pixels),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
