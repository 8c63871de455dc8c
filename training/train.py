"""``python -m training.train --stage STAGE``: one stage, for as long as it may run, then on with --resume.

Light to import: worker processes import it again.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

STAGES = ("data", "vae", "text", "transformer", "edit", "turbo")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--stage", choices=STAGES, required=True)
    options.add_argument("--run", type=Path, default=Path("build/training"), help="folder of states, curves, results")
    options.add_argument("--geometry", choices=("full", "smoke"), default="full")
    options.add_argument("--seconds", type=float, required=True, help="this run ends after so long, data included")
    options.add_argument("--total-seconds", type=float, help="planned for the stage in all runs (default: --seconds)")
    options.add_argument("--steps", type=int, help="plan the stage by steps, to repeat a run exactly")
    options.add_argument("--resume", action="store_true", help="go on where the stage was left, if it was begun")
    options.add_argument("--begin-from", type=Path, help="a checkpoint that came back, where the states are lost")
    options.add_argument("--scenes", type=int, default=120_000, help="pictures of this run's data")
    options.add_argument("--subset", choices=("all", "simple"), default="all", help="which scenes; simple: one of 32")
    options.add_argument("--batch", type=int, help="samples a step, instead of the stage's own number")
    options.add_argument("--rate", type=float, help="highest learning rate, instead of the stage's own")
    options.add_argument("--data-seed", type=int, default=1, help="another number, other scenes (never held-out ones)")
    options.add_argument("--workers", type=int, default=min(os.cpu_count() or 1, 16))
    options.add_argument("--device", default="auto", help="auto, cuda or cpu")
    options.add_argument("--compile", action=argparse.BooleanOptionalAction, default=None, help="default: on CUDA")
    replay = "run a step's forward and backward as one CUDA graph; default: on CUDA"
    options.add_argument("--replay", action=argparse.BooleanOptionalAction, default=None, help=replay)
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run one stage; 0 when it was saved, 1 where its loss became no number."""
    options = parser().parse_args(arguments)
    from training.stages import run_stage
    from training.state import DivergedError

    try:
        sys.stdout.write(run_stage(options) + "\n")
    except DivergedError as error:
        sys.stderr.write(f"STOPPED: {error}; the last state that was saved is good\n{error.next_step}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
