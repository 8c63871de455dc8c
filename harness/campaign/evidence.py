"""What a finished process left behind: its perf dump, its media, their hashes; and whether any of it may be believed.

Each way in which a slot can fail has a reason code of its own. A dump or an output that fails a check makes the slot
invalid; it stays on disk.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fuseproof.errors import FuseproofError, InvalidMeasurementError, UsageError
from fuseproof.harness.campaign.clip_outputs import ContradictedOutputError, clip_output
from fuseproof.harness.campaign.foreign import ForeignValueError, clean_text, count, kept
from fuseproof.harness.campaign.processes import ProcessEnd
from fuseproof.harness.campaign.rank_memory import rank_peaks
from fuseproof.harness.campaign.records import SlotMemory, SlotOutput, SlotTimes
from fuseproof.harness.campaign.sglang_log import SglangLog, doubt_of
from fuseproof.harness.machine.redaction import redact
from fuseproof.harness.media.clips import is_clip
from fuseproof.harness.media.comparison import degenerate_reason, file_sha256, load_image
from fuseproof.harness.media.decoding import IMAGE_SUFFIXES
from fuseproof.harness.perf.dump import PerfDump, read_perf_dump

SMALLEST_DUMP = (
    'A dump is a JSON object of at least {"total_duration_ms": 1234.5}, written to {perf_dump}; the time of a program '
    "that only prints it is read with --time-pattern (in a plan: time_pattern)."
)
"""What to do about a program that wrote none."""
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


def check_ending(end: ProcessEnd, log_text: str, timeout_s: float, *, is_generate: bool = False) -> None:
    """Raise :class:`EvidenceError` unless the process ended by itself with status 0.

    ``is_generate``: the process is ``fuseproof generate``, whose status 2 says that its flags are wrong, and whose
    status 6 that what it measured proves nothing.
    """
    if end.ending == "interrupted":
        raise EvidenceError("INTERRUPTED", "the campaign was interrupted while this slot ran")
    if end.ending == "timeout":
        raise EvidenceError("TIMEOUT", f"it did not end within {timeout_s:g} s and was killed with its process group")
    if end.returncode == 0:
        return
    if is_generate and end.returncode == InvalidMeasurementError.exit_code:
        words = _exit_words(end.returncode)
        raise EvidenceError("INVALID_RUN", f"generate called its own measurement invalid ({words})")
    if _OUT_OF_MEMORY.search(log_text) or (end.returncode == -signal.SIGKILL and end.oom_kills):
        raise EvidenceError("OOM", f"it ran out of memory ({_exit_words(end.returncode)})")
    if end.returncode < 0:
        raise EvidenceError("KILLED", f"it was {_exit_words(end.returncode)}")
    if is_generate and end.returncode == UsageError.exit_code:
        raise EvidenceError("USAGE", f"generate refused its flags ({_exit_words(end.returncode)})")
    raise EvidenceError("EXIT", f"it ended with {_exit_words(end.returncode)}")


def collect_dump(path: Path, started: datetime) -> PerfDump:
    """The slot's perf dump; :class:`EvidenceError` when it is missing, unreadable, or from before the slot began."""
    if not os.path.lexists(path):
        raise EvidenceError("NO_DUMP", f"it ended with status 0 but wrote no {path.name}")
    if not is_plain_file(path):
        raise EvidenceError("BAD_DUMP", f"{path.name} is a link or no regular file; a dump is a file of its own")
    try:
        dump = read_perf_dump(path)
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except (FuseproofError, OSError) as error:
        raise EvidenceError("BAD_DUMP", str(error).replace(f"{path.parent}{os.sep}", "")) from error
    stamps = [written, *stated_moments(dump.raw.get("timestamp"))]
    oldest = min(stamps)
    if (started - oldest).total_seconds() > CLOCK_TOLERANCE_S:
        when = oldest.isoformat(timespec="seconds")
        raise EvidenceError("BAD_DUMP", f"{path.name} is of an old run: it is from {when}, before this slot began")
    newest = max(stamps)
    if (newest - datetime.now(UTC)).total_seconds() > CLOCK_TOLERANCE_S:
        when = newest.isoformat(timespec="seconds")
        raise EvidenceError("BAD_DUMP", f"{path.name} says that it was written at {when}, which is in the future")
    refuse_fallback(dump)
    return dump


def refuse_by_log(log: SglangLog, command: Sequence[str], config: Mapping[str, Any]) -> None:
    """Raise :class:`EvidenceError` where an sglang log says that the run did not do what it was asked."""
    doubt = doubt_of(log, command, config)
    if doubt is not None:
        raise EvidenceError(*doubt)


def collect(dump: PerfDump, outputs: Path, expects_outputs: bool) -> Evidence:
    """Times, memory, work and hashed outputs of a slot whose process and dump are fine; ``outputs`` is its folder."""
    return replace(stated_by(dump), outputs=tuple(_outputs(dump, outputs, expects_outputs)))


def stated_by(dump: PerfDump) -> Evidence:
    """What a dump alone says of its slot; :class:`EvidenceError` where no record can hold it."""
    try:
        work, fastpaths, memory = _work(dump), _fastpaths(dump), _memory(dump)
    except ForeignValueError as error:
        raise EvidenceError("BAD_DUMP", f"in {dump.path.name} {error}") from error
    return Evidence(times=times_of(dump), memory=memory, work=work, fastpaths=fastpaths)


def is_plain_file(path: Path) -> bool:
    """A regular file, not a link to one: what an arm left behind may be a pipe, a device, or another slot's file."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def log_tail(stderr: Path, stdout: Path, campaign: Path) -> tuple[str, ...]:
    """The last lines of a slot's stderr, or of its stdout when stderr is empty; printable and redacted.

    Paths below ``campaign`` become relative to it.
    """
    text = (read_tail(stderr).strip() or read_tail(stdout).strip()).replace(f"{campaign}{os.sep}", "")
    lines = [_CONTROL.sub("", line).rstrip() for line in text.replace("\r", "\n").splitlines()]
    kept = [line for line in lines if line][-LOG_TAIL_LINES:]
    return tuple(redact(line[:LOG_LINE_CHARACTERS]) for line in kept)


def read_tail(path: Path) -> str:
    """The end of a log; empty when there is none, or something else lies in its place."""
    if not is_plain_file(path):
        return ""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            return stream.read(LOG_TAIL_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ""


def frames_listing(outputs: tuple[SlotOutput, ...]) -> str:
    """``frames.sha256``: one line per picture, the hash closest to the model's own numbers first.

    A video whose raw frames are hashed has a line for each of them, counted from 1.
    """
    lines = []
    for output in outputs:
        name = output.path.encode("utf-8", "backslashreplace").decode("utf-8")
        frames = [f"{own}  {name} frame {number}\n" for number, own in enumerate(output.frames_sha256, start=1)]
        lines += frames or [f"{output.deepest_sha256}  {name}\n"]
    return "".join(lines)


def _exit_words(returncode: int) -> str:
    if returncode >= 0:
        return f"exit status {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"


def stated_moments(timestamp: object) -> list[datetime]:
    """The dump's own time stamp; one without a time zone is UTC, as both tools write it."""
    with contextlib.suppress(TypeError, ValueError):
        moment = datetime.fromisoformat(str(timestamp))
        return [moment if moment.tzinfo else moment.replace(tzinfo=UTC)]
    return []


def refuse_fallback(dump: PerfDump) -> None:
    reason = dump.config.get("fallback_reason") or dump.environment.get("fallback_reason")
    if reason:
        raise EvidenceError("FALLBACK", f"the arm fell back to another backend: {redact(str(reason))}")


def times_of(dump: PerfDump) -> SlotTimes:
    """A slot's times as its dump claims them, in seconds."""

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
    ranks = rank_peaks(dump.raw)
    return SlotMemory(
        peak_rss_mib=max(host, default=None),
        peak_allocated_mib=_positive(request, "peak_allocated_mb") if ranks is None else ranks.allocated_mib,
        peak_reserved_mib=_positive(request, "peak_reserved_mb") if ranks is None else ranks.reserved_mib,
        allocated_sum_mib=None if ranks is None else ranks.allocated_sum_mib,
        reserved_sum_mib=None if ranks is None else ranks.reserved_sum_mib,
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
    sums = {clean_text(name): sum(count(counter.get(name), f"work.{name}") for counter in counters) for name in names}
    step_lists = [request.get("denoise_steps_ms") for request in dump.requests]
    steps = sum(len(steps) for steps in step_lists if isinstance(steps, list)) or len(dump.denoise_steps_ms)
    return {
        "requests": dump.request_count,
        "denoise_steps": steps,
        "warmup_mode": kept(dump.config.get("warmup_mode"), "config.warmup_mode"),
        "warmup_steps": kept(dump.config.get("warmup_steps"), "config.warmup_steps"),
        **sums,
    }


def _fastpaths(dump: PerfDump) -> dict[str, Any] | None:
    """What the dump says of fast paths, once it has the shape that readers rely on."""
    if not dump.fastpaths:
        return None
    sites = dump.fastpaths.get("sites", {})
    if not isinstance(sites, dict) or not all(isinstance(site, dict) for site in sites.values()):
        raise ForeignValueError("fastpaths.sites is no table of sites")
    for name, site in sites.items():
        for counter in ("calls_fused", "calls_eager"):
            count(site.get(counter), f"fastpaths.sites.{name}.{counter}")
    fastpaths: dict[str, Any] = kept(dump.fastpaths, "fastpaths")
    return fastpaths


def _outputs(dump: PerfDump, outputs: Path, is_expected: bool) -> Iterator[SlotOutput]:
    found = _output_files(outputs)
    stated = {_stated_path(dump, str(entry["path"])): entry for entry in dump.outputs if entry.get("path")}
    if is_expected and not found:
        raise EvidenceError("NO_OUTPUT", "it ended with status 0 but wrote no output")
    for path in stated:
        if path not in {file.resolve() for file in found}:
            raise EvidenceError("BAD_OUTPUT", f"the dump names an output that is not in the slot's folder: {path.name}")
    for path in found:
        yield _output(path, outputs.parent, stated.get(path.resolve(), {}))


def _output_files(outputs: Path) -> list[Path]:
    """The regular files below a slot's ``outputs``; a link could pass another slot's picture off as its own."""
    if outputs.is_symlink():
        raise EvidenceError(
            "BAD_OUTPUT", f"{outputs.name} was replaced by a link; outputs belong into the slot's folder"
        )
    entries = sorted(path for path in outputs.rglob("*") if not path.name.startswith("."))
    for path in entries:
        if path.is_symlink() or not (path.is_dir() or is_plain_file(path)):
            name = path.relative_to(outputs.parent).as_posix()
            raise EvidenceError("BAD_OUTPUT", f"{clean_text(name)} is a link or no regular file")
    return [path for path in entries if path.is_file()]


def _stated_path(dump: PerfDump, path: str) -> Path:
    """A dump names its outputs relative to its own folder, or from the home folder on."""
    try:
        return (dump.path.parent / Path(path).expanduser()).resolve()
    except (RuntimeError, ValueError, OSError) as error:
        raise EvidenceError("BAD_DUMP", f"{dump.path.name} names an output with an impossible path: {error}") from error


def _output(path: Path, slot: Path, stated: Mapping[str, Any]) -> SlotOutput:
    name = path.relative_to(slot).as_posix()
    try:
        if is_clip(path):
            return clip_output(path, name, stated)
        if path.suffix.lower() not in IMAGE_SUFFIXES:
            return SlotOutput(name, file_sha256(path), frames=_whole(stated.get("frames")))
        picture = load_image(path)
    except ContradictedOutputError as error:
        raise EvidenceError("BAD_OUTPUT", f"{name} {error}") from error
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
