"""A user's mistakes at the programs of ``training``: one sentence, an exit code, and nothing drawn or written."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines.packaged_models import PACKAGED_MODELS
from training import evaluate, evaluate_edits, grid, stages, train
from training.pace import Pace
from training.package import checkpoint_sha256, weights_sha256
from training.parts import BASE
from training.state import StageState, save_whole

PROGRAMS = {"evaluate": evaluate, "evaluate_edits": evaluate_edits, "grid": grid}
EVERY = pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
WITH_DEVICE = pytest.mark.parametrize("program", [evaluate, evaluate_edits])


REAL_LOAD = evaluate_edits.load


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any test that would load a model fails."""

    def load(folder: Path, device: torch.device) -> Any:
        pytest.fail(f"{folder} was loaded")

    for program in (evaluate, evaluate_edits):
        monkeypatch.setattr(program, "load", load)


def folder_of(tmp_path: Path) -> Path:
    """What looks like a checkpoint."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model_index.json").write_text("{}")
    return tmp_path / "model"


WRONG_NUMBERS = [
    *(
        (evaluate, option, value)
        for option in ("--prompts", "--renders", "--steps", "--batch")
        for value in ("0", "-1")
    ),
    *((evaluate_edits, option, value) for option in ("--edits", "--steps") for value in ("0", "1.5")),
    (grid, "--steps", "0"),
    (grid, "--steps", "many"),
    *((program, "--guidance", value) for program in PROGRAMS.values() for value in ("nan", "inf", "-0.5", "high")),
    *((program, "--seed", value) for program in PROGRAMS.values() for value in ("-1", str(2**64))),
]


@pytest.mark.parametrize(("program", "option", "value"), WRONG_NUMBERS)
def test_a_number_that_cannot_be_is_refused_when_it_is_read(
    program: Any, option: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        program.main([f"--checkpoint={folder_of(tmp_path)}", f"{option}={value}"])
    assert 2 == left.value.code
    assert f"argument {option}: {value!r} is not a" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"), [("--seconds", "nan"), ("--rate", "0"), ("--scenes", "0"), ("--steps", "0")]
)
def test_a_number_that_cannot_be_trained_with_is_refused(option: str, value: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        train.main(["--stage=data", "--seconds=1", f"{option}={value}"])


@EVERY
@pytest.mark.parametrize(
    ("name", "said"),
    [("missing", "there is no folder"), ("empty", "has no model_index.json"), ("file", "is no folder")],
)
def test_a_checkpoint_that_is_none_is_one_sentence(
    program: Any, name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    assert 1 == program.main([f"--checkpoint={tmp_path / name}", f"--output={tmp_path / 'out' / 'x'}"])
    error = capsys.readouterr().err
    assert said in error and "next: " in error
    assert not (tmp_path / "out").exists()


@EVERY
def test_an_embedded_name_that_is_none_is_told_as_fuseproof_does(
    program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == program.main(["--checkpoint=embedded:nope", f"--output={tmp_path / 'out' / 'x'}"])
    error = capsys.readouterr().err
    assert "nope" in error and "next: " in error


@WITH_DEVICE
@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cpu:0", "mps", ""])
def test_an_unknown_device_is_one_sentence(
    program: Any, device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == program.main([f"--checkpoint={folder_of(tmp_path)}", f"--device={device}"])
    assert f"--device {device!r} is unknown; auto, cpu, cuda and cuda:NUMBER are allowed." in capsys.readouterr().err


@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_a_device_that_is_not_there_is_one_sentence(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for main, flags in (
        (evaluate.main, [f"--checkpoint={folder_of(tmp_path)}"]),
        (train.main, ["--stage=data", "--seconds=1", f"--run={tmp_path / 'run'}"]),
    ):
        assert 2 == main([*flags, f"--device={device}"])
        assert f"--device {device}: torch sees 0 CUDA devices" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@EVERY
def test_an_output_that_cannot_be_written_is_found_before_anything_is_drawn(
    program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    assert 1 == program.main([f"--checkpoint={folder_of(tmp_path)}", f"--output={tmp_path / 'file' / 'x'}"])
    assert "--output: " in capsys.readouterr().err
    assert "mine" == (tmp_path / "file").read_text()


def test_the_grid_is_not_written_over_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == grid.main([f"--checkpoint={folder_of(tmp_path)}", f"--output={tmp_path}"])
    assert f"--output: {tmp_path} is a folder." in capsys.readouterr().err


@EVERY
def test_an_interrupt_is_no_traceback(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(folder: Path, device: torch.device) -> Any:
        raise KeyboardInterrupt

    for each in (evaluate, evaluate_edits):
        monkeypatch.setattr(each, "load", interrupted)
    output = tmp_path / "out" / "grid.jpg"
    assert 130 == program.main([f"--checkpoint={folder_of(tmp_path)}", f"--output={output}"])
    assert "interrupted\n" == capsys.readouterr().err


def test_a_summary_names_both_hashes_of_what_was_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path)
    pipe = Namespace(vae=Namespace(config=Namespace(sample_size=8)))
    monkeypatch.setattr(evaluate, "load", lambda folder, device: pipe)
    monkeypatch.setattr(evaluate, "psnr_of_vae", lambda *arguments: [30.0])
    monkeypatch.setattr(
        evaluate, "draw", lambda pipe, texts, **sampling: [np.zeros((256, 256, 3), np.uint8) for _ in texts]
    )
    assert 0 == evaluate.main([f"--checkpoint={folder}", f"--output={tmp_path / 'out'}", "--prompts=2"])
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (weights_sha256(folder), checkpoint_sha256(folder)) == (
        summary["weights_sha256"],
        summary["checkpoint_sha256"],
    )
    assert ["guidance-4.5.json", "guidance-4.5.png", "summary.json"] == sorted(
        path.name for path in (tmp_path / "out").iterdir()
    )


def test_a_model_of_another_kind_is_refused_before_its_weights_are_read() -> None:
    with pytest.raises(UsageError, match=f"is a {BASE}; longcat-image-edit or"):
        REAL_LOAD(PACKAGED_MODELS / BASE, torch.device("cpu"))


def stage_of(tmp_path: Path, *flags: str) -> int:
    """The stage ``transformer``, after a VAE that is none."""
    if not any("begin-from" in flag for flag in flags):
        (tmp_path / "run" / "parts" / "vae").mkdir(parents=True)
        (tmp_path / "run" / "parts" / "vae" / "config.json").write_text("{}")
    return train.main(["--stage=transformer", "--seconds=1", "--device=cpu", f"--run={tmp_path / 'run'}", *flags])


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_stage(options: Namespace) -> str:
        raise error

    monkeypatch.setattr(stages, "run_stage", run_stage)


@pytest.mark.parametrize(
    ("made", "said"),
    [("missing", "there is no folder"), ("empty", "has no model_index.json"), ("no training.json", "is missing")],
)
def test_a_beginning_that_is_none_is_found_before_anything_else(
    made: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(AssertionError("the stage ran"), monkeypatch)
    folder = tmp_path / "begin"
    if made == "empty":
        folder.mkdir()
    if made == "no training.json":
        folder.symlink_to(PACKAGED_MODELS / BASE)
        monkeypatch.setattr(train, "TRAINING", "other.json")
    assert 1 == stage_of(tmp_path, f"--begin-from={folder}")
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_whole_checkpoint_is_a_beginning() -> None:
    train.require_beginning(PACKAGED_MODELS / BASE)


def damaged(path: Path, kind: str) -> None:
    """A file that torch.load cannot read, each kind with another error."""
    save_whole({"x": torch.zeros(1000)}, path)
    content = path.read_bytes()
    path.write_bytes({"empty": b"", "cut off": content[: len(content) // 2], "text": b"not a state"}[kind])


@pytest.mark.parametrize("kind", ["empty", "cut off", "text"])
def test_a_damaged_state_is_named_with_what_to_delete(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged(path := tmp_path / "text.pt", kind)
    monkeypatch.setattr(stages, "run_stage", lambda options: str(torch.load(path, weights_only=True)))
    assert 1 == stage_of(tmp_path)
    error = capsys.readouterr().err
    assert f"error: {path} cannot be read: " in error and "next: Delete it" in error
    assert str(tmp_path / "run" / "state") in error and str(tmp_path / "run" / "data") in error


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), EOFError("Ran out of input")], ids=repr)
def test_a_file_that_fails_is_told_with_its_error(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(error, monkeypatch)
    assert 1 == stage_of(tmp_path)
    assert f"error: {type(error).__name__}: {error}.\n" in capsys.readouterr().err


def test_a_result_that_finds_no_room_is_named_and_the_old_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(file: int) -> None:
        raise OSError(28, "No space left on device")

    picture = np.zeros((8, 8, 3), dtype=np.uint8)
    evaluate.write_rows_and_sheet(tmp_path, "some", [1], [picture])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr("os.fsync", no_room)
    with pytest.raises(FuseproofError, match="No space left on device") as failed:
        evaluate.write_rows_and_sheet(tmp_path, "some", [2], [picture])
    assert str(tmp_path / "some.json") in failed.value.message and failed.value.next_step
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_a_stage_that_is_missing_is_to_be_run_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == stage_of(tmp_path, "--geometry=smoke", "--resume")
    error = capsys.readouterr().err
    assert "text.pt" in error and "Run the stages before it" in error


@pytest.mark.parametrize(("stage", "earlier"), [("transformer", "vae"), ("edit", "transformer"), ("turbo", "edit")])
def test_what_an_earlier_stage_leaves_is_asked_for_first(
    stage: str, earlier: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 1 == train.main([f"--stage={stage}", "--seconds=1", f"--run={tmp_path / 'run'}"])
    assert f"--stage {stage} needs what --stage {earlier} leaves, and there is no " in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [({"modules": {}}, "KeyError: 'model'"), ({"modules": {"model": {}}}, "RuntimeError: Error(s) in loading")],
    ids=["a key less", "another shape"],
)
def test_a_state_that_does_not_fit_is_named(
    content: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_whole(content, path := tmp_path / "edit.pt")
    state = StageState({"model": torch.nn.Linear(1, 1)}, {}, optimizer=None)  # type: ignore[arg-type]
    pace, device = Pace(1, 1, None), torch.device("cpu")
    monkeypatch.setattr(stages, "run_stage", lambda options: str(state.load(path, pace, device)))
    assert 1 == stage_of(tmp_path)
    assert f"error: {path} does not fit this stage: {said}" in capsys.readouterr().err


def test_weights_of_another_geometry_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stages, "run_stage", lambda options: str(torch.nn.Linear(1, 1).load_state_dict({})))
    assert 1 == stage_of(tmp_path)
    assert "do not fit: RuntimeError: Error(s) in loading state_dict" in capsys.readouterr().err


def test_a_state_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "nowhere" / "edit.pt"
    monkeypatch.setattr(stages, "run_stage", lambda options: str(save_whole({}, path)))
    assert 1 == stage_of(tmp_path)
    assert f"{path.with_suffix('.new')} cannot be written: RuntimeError: " in capsys.readouterr().err


@pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyError("a bug"), TypeError("a bug")], ids=repr)
def test_a_bug_keeps_its_traceback(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(error, monkeypatch)
    with pytest.raises(type(error), match="a bug"):
        stage_of(tmp_path)


def test_an_interrupted_stage_says_what_is_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(KeyboardInterrupt(), monkeypatch)
    assert 130 == stage_of(tmp_path)
    assert "interrupted; what was saved last is good\n" == capsys.readouterr().err
