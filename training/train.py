"""``python -m training.train --stage STAGE``: one stage, for as long as it may run, then on with --resume.

Light to import: worker processes import it again.
"""

from __future__ import annotations

import argparse
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from fuseproof.errors import FuseproofError
from training.options import device_named, finite_number, is_number, read_object, require_checkpoint, told, whole_number
from training.parts import TRAINING

STAGES = ("data", "vae", "text", "transformer", "edit", "turbo")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--stage", choices=STAGES, required=True, help="data alone draws scenes and captions")
    options.add_argument(
        "--run",
        type=Path,
        default=Path("build/training"),
        help="folder of states, curves and results (default: build/training)",
    )
    options.add_argument("--geometry", choices=("full", "smoke"), default="full", help="smoke: tiny, 64 x 64 pixels")
    options.add_argument(
        "--seconds", type=finite_number(0, above=True), required=True, help="this run ends after so long, data included"
    )
    options.add_argument(
        "--total-seconds",
        type=finite_number(0, above=True),
        help="planned for the stage in all runs (default: --seconds)",
    )
    options.add_argument(
        "--steps",
        type=whole_number(1),
        help="plan the stage by steps, to repeat it exactly; --seconds still ends a run",
    )
    options.add_argument("--resume", action="store_true", help="go on where the stage was left, if it was begun")
    options.add_argument("--begin-from", type=Path, help="a checkpoint that came back, where the states are lost")
    options.add_argument("--scenes", type=whole_number(1), default=120_000, help="pictures of this run's data")
    simple = "which scenes; simple: one plain thing of four shapes and four colours"
    options.add_argument("--subset", choices=("all", "simple"), default="all", help=simple)
    options.add_argument("--batch", type=whole_number(1), help="samples a step, instead of the stage's own number")
    options.add_argument(
        "--rate", type=finite_number(0, above=True), help="highest learning rate, instead of the stage's own"
    )
    options.add_argument(
        "--data-seed", type=whole_number(0), default=1, help="another number, other scenes (never held-out ones)"
    )
    options.add_argument("--workers", type=whole_number(1), default=min(os.cpu_count() or 1, 16))
    options.add_argument("--device", default="auto", help="auto, cuda or cpu")
    options.add_argument("--compile", action=argparse.BooleanOptionalAction, default=None, help="default: on CUDA")
    replay = "run a step's forward and backward as one CUDA graph; default: on CUDA"
    options.add_argument("--replay", action=argparse.BooleanOptionalAction, default=None, help=replay)
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run one stage; 0 when it was saved, 1 where its loss became no number or a sentence says what is wrong."""
    options = parser().parse_args(arguments)
    return told(lambda: _run(options), "interrupted; what was saved last is good")


def _run(options: argparse.Namespace) -> int:
    if options.begin_from is not None:
        require_beginning(options.begin_from)
    else:
        require_earlier(options)
    device_named(options.device)
    from training.stages import run_stage
    from training.state import DivergedError

    try:
        sys.stdout.write(run_stage(options) + "\n")
    except DivergedError as error:
        sys.stderr.write(f"STOPPED: {error}; the last state that was saved is good\n{error.next_step}\n")
        return 1
    except Exception as error:
        said = about_files(error, options.run)
        if said is None:
            raise
        raise said from error
    return 0


def require_beginning(folder: Path) -> None:
    """A FuseproofError where ``folder`` is nothing to begin from: a whole checkpoint, and how long it was trained."""
    from fuseproof.pipelines.checkpoints import check_checkpoint

    step = "Give --begin-from the folder longcat-image that came back, whole."
    check_checkpoint(require_checkpoint(folder, "--begin-from"))
    path = folder / TRAINING
    progress = read_object(path, "which says how long it was trained", step)
    if not all(is_number(progress.get(key)) for key in ("step", "spent_s")):
        raise FuseproofError(
            f"{path} has step {progress.get('step')!r} and spent_s {progress.get('spent_s')!r}; numbers were expected.",
            next_step=step,
        )


def require_earlier(options: argparse.Namespace) -> None:
    """A FuseproofError where the folder of the run lacks what an earlier stage leaves for this one."""
    from training.edit_stages import first_folder
    from training.folders import Run
    from training.parts import BASE

    run = Run(options.run)
    needed = {
        "transformer": (run.vae / "config.json", "vae"),
        "edit": (first_folder(run, options) / "model_index.json", "transformer"),
        "turbo": (run.models / BASE / "model_index.json", "edit"),
    }
    path, earlier = needed.get(options.stage, (None, ""))
    if path is not None and not path.is_file():
        raise FuseproofError(
            f"--stage {options.stage} needs what --stage {earlier} leaves, and there is no {path}.",
            next_step=f"Run --stage {earlier} with the same --run first.",
        )


def about_files(error: Exception, run: Path) -> FuseproofError | None:
    """What to say where a file could not be read or written; None where ``error`` may be a bug.

    torch raises a RuntimeError for a damaged file, for a full disk and for weights of another shape: the frames tell.
    """
    import torch

    from training.state import StageState

    cause = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}".rstrip(".:")
    frames = {frame.f_code: frame for frame in _frames(error)}
    again = f"Delete it: {run / 'data'} is drawn again, and a stage in {run / 'state'} begins anew."
    if isinstance(error, FileNotFoundError):
        return FuseproofError(
            f"{cause}.", next_step=f"Run the stages before it with the same --run first: {', '.join(STAGES)}."
        )
    if (frame := frames.get(torch.load.__code__)) is not None:
        return FuseproofError(f"{frame.f_locals.get('f')} cannot be read: {cause}.", next_step=again)
    if (frame := frames.get(torch.save.__code__)) is not None:
        return FuseproofError(
            f"{frame.f_locals.get('f')} cannot be written: {cause}; what was saved last is good.",
            next_step="Make room and rights there, and run the same command again.",
        )
    if (frame := frames.get(StageState.load.__code__)) is not None:
        return FuseproofError(f"{frame.f_locals.get('path')} does not fit this stage: {cause}.", next_step=again)
    if torch.nn.Module.load_state_dict.__code__ in frames:
        return FuseproofError(
            f"The weights that this stage begins from do not fit: {cause}.",
            next_step=f"Give the --geometry that they were trained with, or another --run than {run}.",
        )
    if isinstance(error, OSError | pickle.UnpicklingError | EOFError):
        return FuseproofError(
            f"{cause}.",
            next_step=f"Where {run / 'data'} or {run / 'state'} is damaged, delete that folder and begin again.",
        )
    return None


def _frames(error: Exception) -> Iterator[FrameType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


if __name__ == "__main__":
    sys.exit(main())
