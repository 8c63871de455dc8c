"""A stand-in for an arm: writes a perf dump and a tiny PNG in about 20 ms, with times and failures as told.

Standard library only, run as ``python -S -E fake_arm.py``. Nothing sleeps: the times it reports are the ones it was
given, divided by 1000 so that they fit into its short life, and no two runs claim the same to the digit.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

SCALE = 1e-3
OOM_TEXT = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def main() -> int:
    options = parse()
    count = next_call(options.counter)
    sys.stderr.write(f"fake arm, call {count}\n")
    failure = failure_of(options, count)
    if failure:
        return fail(failure)
    if options.mode != "no-output":
        write_png(options.outputs / "image.png", options.grey, options.width)
    if options.mode == "truncated-output":
        (options.outputs / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    if options.mode != "no-dump":
        write_dump(options, count)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--perf-dump", type=Path)
    parser.add_argument("--outputs", type=Path)
    parser.add_argument("--worker-ms", default="1000", help="thousandths of a ms; several are used in turn")
    parser.add_argument("--repeats-itself", type=int, default=0, help="1: every run claims the same to the digit")
    parser.add_argument("--counter", type=Path, help="a file that counts the calls")
    parser.add_argument("--mode", default="good")
    parser.add_argument("--fail-on", type=int, default=0, help="only this call fails; 0: every call")
    parser.add_argument("--grey", type=int, default=128)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup-steps", type=int, default=1)
    parser.add_argument("--fused-calls", type=int, default=-1)
    return parser.parse_args()


def next_call(counter: Path | None) -> int:
    if counter is None:
        return 1
    count = int(counter.read_text()) + 1 if counter.exists() else 1
    counter.write_text(str(count))
    return count


def failure_of(options: argparse.Namespace, count: int) -> str | None:
    fails_now = options.fail_on in (0, count)
    failures = ("exit", "oom", "hang", "brood", "stubborn", "kill", "interrupt")
    return options.mode if fails_now and options.mode in failures else None


def fail(mode: str) -> int:
    if mode == "oom":
        sys.stderr.write(f"{OOM_TEXT}\n")
        return 1
    if mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "interrupt":
        os.kill(os.getppid(), signal.SIGINT)
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if mode == "brood":
        subprocess.Popen([sys.executable, "-S", "-E", "-c", "import time; time.sleep(600)", *sys.argv[1:]])
    if mode in ("hang", "brood", "stubborn", "interrupt"):
        time.sleep(600)
    sys.stderr.write("ValueError: the fake arm was told to fail\n")
    return 1


def write_dump(options: argparse.Namespace, count: int) -> None:
    times = [float(text) for text in options.worker_ms.split(",")]
    worker_ms = SCALE * times[(count - 1) % len(times)]
    if not options.repeats_itself:
        worker_ms *= 1.0 + time.time_ns() % 10**8 * 1e-16
    age = timedelta(hours=2) if options.mode == "old-dump" else timedelta()
    denoise_ms, save_ms, decode_ms = 0.9 * worker_ms, 5.0 * SCALE, 1.0 * SCALE
    step_times = [{"step": step, "duration_ms": denoise_ms / options.steps} for step in range(options.steps)]
    stages = [
        {"name": "DenoisingStage", "duration_ms": denoise_ms},
        {"name": "DecodingStage", "duration_ms": decode_ms},
    ]
    work = {"transformer_calls": 2 * options.steps, "transformer_tokens": 512 * options.steps}
    request = {"index": 0, "prompt": "a red panda", "seed": 42, "worker_ms": worker_ms, "denoise_ms": denoise_ms}
    request |= {"save_ms": save_ms, "client_ms": worker_ms + save_ms, "steps": stages, "denoise_steps_ms": step_times}
    dump = {
        "schema": "fuseproof.perf/1",
        "timestamp": (datetime.now(UTC) - age).isoformat(),
        "commit_hash": "N/A",
        "tag": "cli_generate",
        "total_duration_ms": worker_ms,
        "steps": stages,
        "denoise_steps_ms": step_times,
        "memory_checkpoints": {"after_forward": {"peak_host_rss_mb": 10.5}},
        "meta": {"prompt": ["a red panda"], "model": "fake"},
        "config": {"width": options.width, "height": 8, "seed": 42, "warmup_steps": options.warmup_steps},
        "timers": {
            "load_ms": 3.0 * SCALE,
            "warmup_ms": 2.0 * SCALE,
            "compile_ms": 0.0,
            "worker_ms": worker_ms,
            "denoise_ms": denoise_ms,
            "save_ms": save_ms,
            "client_ms": worker_ms + save_ms,
            "unattributed_ms": worker_ms - denoise_ms - decode_ms,
        },
        "requests": [request | {"work": work}],
        "outputs": [],
    }
    if options.fused_calls >= 0:
        site = {"state": "fused" if options.fused_calls else "eager", "reason": None, "calls_eager": 0}
        dump["fastpaths"] = {"requested": "auto", "sites": {"hoist": site | {"calls_fused": options.fused_calls}}}
    if options.mode == "fallback":
        dump["config"] |= {"fallback_reason": "no native pipeline"}
    text = json.dumps(dump)
    options.perf_dump.write_text(text[: text.index('"timers"') + 4] if options.mode == "truncated-dump" else text)
    if options.mode == "old-file":
        os.utime(options.perf_dump, (1.0e9, 1.0e9))


def write_png(path: Path, grey: int, width: int) -> None:
    """An 8-bit RGB gradient, so that it is no constant picture."""
    rows = b"".join(
        b"\0" + b"".join(bytes(((grey + row + column) % 256, row, column)) for column in range(width))
        for row in range(8)
    )
    header = struct.pack(">IIBBBBB", width, 8, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


if __name__ == "__main__":
    sys.exit(main())
