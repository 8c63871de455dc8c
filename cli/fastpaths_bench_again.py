"""The second look of ``fastpaths bench --baseline``: rows that look slower, measured once more in a fresh process.

Started as ``python -m fuseproof.cli.fastpaths_bench_again ORDER RESULT``, two JSON files: which rows of which choice of
calls, and what was measured. What one process keeps (where its memory lies, how its kernels were loaded) moves all of
its rounds alike, so only another process can tell it from a slower kernel.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseproof.cli.fastpaths_bench_calls import calls_of, chosen
from fuseproof.cli.fastpaths_bench_rows import Bench, Key, head_of
from fuseproof.cli.fastpaths_checks import card, load_own, replay_of
from fuseproof.errors import FuseproofError

if TYPE_CHECKING:
    import torch

    from fuseproof.fastpaths.benchmarking import Stopwatch

PROGRAM = "fuseproof.cli.fastpaths_bench_again"
SECONDS = 1800.0


def measured_afresh(wanted: Mapping[str, Any], keys: Sequence[Key]) -> dict[str, Any]:
    """The document of these rows, measured in a process of its own; a :class:`FuseproofError` where that fails."""
    with tempfile.TemporaryDirectory(prefix="fuseproof-bench-") as folder:
        order, result = Path(folder, "order.json"), Path(folder, "measured.json")
        order.write_text(json.dumps({**wanted, "keys": keys}), encoding="utf-8")
        try:
            ended = subprocess.run(
                _command(order, result), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=SECONDS,
                check=False,
            ).returncode  # fmt: skip
            document = json.loads(result.read_text(encoding="utf-8")) if ended == 0 else None
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise _failed(keys, str(error).partition("\n")[0]) from error
    if not isinstance(document, dict):
        raise _failed(keys, f"it ended with {ended}")
    return document


def _failed(keys: Sequence[Key], why: str) -> FuseproofError:
    return FuseproofError(
        f"{len(keys)} rows look slower, and the process that measures them once more failed: {why.rstrip('.')}.",
        next_step="Run the same command again; a card in exclusive mode allows one process alone.",
    )


def _command(order: Path, result: Path) -> list[str]:
    return [sys.executable, "-m", PROGRAM, str(order), str(result)]


def measure_again(wanted: Mapping[str, Any], device: torch.device, stopwatch: Stopwatch) -> dict[str, Any]:
    """The rows of ``wanted["keys"]`` among the calls that are wanted, bits first, under this process's own head."""
    own = load_own(wanted["fastpaths_from"])
    bench = Bench(device, wanted["seed"], stopwatch, own)
    if wanted["captured"] is not None:
        bench.take_replay(replay_of(wanted["captured"], own, wanted["model"]))
    else:
        shapes = [tuple(shape) for shape in wanted["shapes"]]
        bench.take_calls(chosen(calls_of(wanted["model"], shapes, own, device), wanted["sites"]))
    rows = [bench.again((key[0], key[1], key[2], key[3])) for key in wanted["keys"]]
    return head_of(device, wanted["seed"], wanted["selection"]) | {"calls": [bench.entry(*row) for row in rows]}


def main(order: str, result: str) -> None:
    """Measure what ``order`` asks for, and write it."""
    import torch

    from fuseproof.fastpaths.benchmarking import CudaStopwatch

    device = card("bench")
    with torch.cuda.device(device):
        wanted = json.loads(Path(order).read_text(encoding="utf-8"))
        document = measure_again(wanted, device, CudaStopwatch(device))
    Path(result).write_text(json.dumps(document, allow_nan=False), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
