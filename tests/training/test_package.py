"""What is packaged was judged, is good enough, and fits; and what lies there then gives the judged weights."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fuseproof.errors import FuseproofError
from fuseproof.pipelines.checkpoint_marker import MARKER, Marker
from fuseproof.pipelines.packaged_models import INDEX, packaged_names
from fuseproof.pipelines.packaged_parts import PARTS
from training.package import checkpoint_sha256, main, package, summary_path, weights_sha256
from training.parts import BASE, DIFFERENCE, EDIT, NAMES, TRANSFORMER_WEIGHTS, TURBO, mark_trained, seal_part, whole

SAMPLING = {"steps": 20, "guidance": 4.5, "seed": 0, "subset": "all", "held_out": True}


def write_models(folder: Path) -> Path:
    """The three of them, with one matrix each."""
    for name in NAMES:
        (folder / name / "transformer").mkdir(parents=True)
        (folder / name / "training.json").write_text('{"step": 7}')
        (folder / name / "model_index.json").write_text("{}")
    save_file({"w": torch.ones(4, 6, dtype=torch.bfloat16)}, folder / BASE / TRANSFORMER_WEIGHTS)
    mark_trained(folder / BASE)
    factors = {"w.up": torch.full((4, 1), 2.0), "w.down": torch.full((1, 6), 0.25)}
    save_file({name: value.to(torch.bfloat16) for name, value in factors.items()}, folder / TURBO / DIFFERENCE)
    for name in (EDIT, TURBO):
        (folder / name / MARKER).write_text(Marker(name, 4096, "trained").to_json())
        seal_part(folder / name)
    return folder


def results_of(models: Path, **changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Evaluations of all three that are good enough; ``changes`` by the first, second or third name."""
    results = {}
    for name, nickname in zip(NAMES, ("base", "edit", "turbo"), strict=True):
        with whole(models / name) as checkpoint:
            hashes = {
                "weights_sha256": weights_sha256(checkpoint),
                "checkpoint_sha256": checkpoint_sha256(checkpoint),
            }
        counts = {"met": 180, "prompts": 200} if name == BASE else {"met": 85, "edits": 100}
        results[name] = {**counts, "psnr_db": 31.0, **SAMPLING, **hashes, **changes.get(nickname, {})}
    return results


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def contents_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def call(models: Path, results: dict[str, dict[str, Any]], to: Path, *flags: str) -> int:
    """The program, with the summaries of ``results`` in a folder beside ``models``."""
    evaluation = models.with_name("evaluation")
    evaluation.mkdir(exist_ok=True)
    for name, result in results.items():
        summary_path(evaluation, name).write_text(json.dumps(result))
    folders = (f"--models={models}", f"--evaluation={evaluation}", f"--destination={to}")
    return main([*folders, "--names", *results, *flags])


def test_all_three_are_packaged_with_their_cards_and_shared_weights_once(tmp_path: Path) -> None:
    models, to = write_models(tmp_path / "from"), tmp_path / "embedded_models"
    (to / "older").mkdir(parents=True)
    (to / "older" / "model_index.json").write_text("{}")
    results = results_of(models)
    assert [] == package(models, results, to, drop_others=True)
    assert sorted(NAMES) == sorted(packaged_names(to))
    assert ["embedded_models", "from", INDEX] == names_in(tmp_path)
    assert sorted(NAMES) == sorted(path.name for path in to.iterdir())
    assert "90.0 % (180 of 200), 95 % interval [85.1, 93.4]" in (to / BASE / "README.md").read_text()
    assert "85.0 % (85 of 100)" in (to / TURBO / "README.md").read_text()
    assert [BASE] == [path.relative_to(to).parts[0] for path in to.rglob("diffusion_pytorch_model.safetensors")]
    for name in (EDIT, TURBO):
        assert (to / name / PARTS).is_file()
        with whole(to / name) as checkpoint:
            assert results[name]["weights_sha256"] == weights_sha256(checkpoint)
            assert results[name]["checkpoint_sha256"] == checkpoint_sha256(checkpoint)
            assert (to / name / "README.md").read_text() == (checkpoint / "README.md").read_text()


def test_one_alone_is_packaged_too(tmp_path: Path) -> None:
    models = write_models(tmp_path / "from")
    assert [] == package(models, {BASE: results_of(models)[BASE]}, tmp_path / "to")
    assert [BASE] == [path.name for path in (tmp_path / "to").iterdir()]


def test_a_card_says_which_scenes_were_drawn(tmp_path: Path) -> None:
    models = write_models(tmp_path / "from")
    results = {BASE: {**results_of(models)[BASE], "subset": "simple"}}
    assert ["the evaluation drew the scenes 'simple', not 'all'"] == package(models, results, tmp_path / "to")
    assert [] == package(models, results, tmp_path / "to", "simple")
    assert "(of the scenes called simple alone)" in (tmp_path / "to" / BASE / "README.md").read_text()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"base": {"met": 169}}, "84.5 % of the prompts are met, 85 % are needed"),
        ({"base": {"prompts": 190}}, "190 prompts were drawn, 200 are needed"),
        ({"base": {"psnr_db": 27.9}}, "the VAE's PSNR is 27.9 dB, 28 dB are needed"),
        ({"base": {"held_out": False}}, "the prompts were not held out"),
        ({"edit": {"met": 79}}, f"{EDIT}: 79.0 % of the edits are met, 80 % are needed"),
        ({"turbo": {"met": 69}}, f"{TURBO}: 69.0 % of the edits are met, 70 % are needed"),
        ({"turbo": {"weights_sha256": "0" * 64}}, f"{TURBO}: the evaluation judged weights 000000000000, not "),
    ],
    ids=["accuracy", "prompts", "psnr", "seen", "edits", "turbo", "other weights"],
)
def test_what_is_poor_or_was_not_judged_is_not_packaged(changes: Any, reason: str, tmp_path: Path) -> None:
    models = write_models(tmp_path / "from")
    reasons = package(models, results_of(models, **changes), tmp_path / "to")
    assert 1 == len(reasons) and reasons[0].startswith(reason)
    assert not (tmp_path / "to").exists()


def base_alone(models: Path, **changes: Any) -> dict[str, dict[str, Any]]:
    return {BASE: {**results_of(models)[BASE], **changes}}


def test_what_is_too_large_is_not_packaged(tmp_path: Path) -> None:
    models = write_models(tmp_path / "from")
    save_file({"w": torch.zeros(25_000_000, dtype=torch.uint8)}, models / BASE / "more.safetensors")
    judged = {**SAMPLING, "met": 180, "prompts": 200, "psnr_db": 31.0, "weights_sha256": weights_sha256(models / BASE)}
    reasons = package(models, {BASE: judged}, tmp_path / "to")
    assert 1 == len(reasons) and reasons[0].endswith("25000000 are the most")


def test_packaging_again_replaces_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models, to = write_models(tmp_path / "from"), tmp_path / "to"
    for _ in range(2):
        assert 0 == call(models, results_of(models), to)
    assert f"{to}\n{to}\n" == capsys.readouterr().out
    assert ["evaluation", "from", INDEX, "to"] == names_in(tmp_path)


def test_an_older_summary_compares_the_weights_alone_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = write_models(tmp_path / "from")
    results = base_alone(models)
    del results[BASE]["checkpoint_sha256"]
    (models / BASE / "vae").mkdir()
    (models / BASE / "vae" / "config.json").write_text('{"scaling_factor": 2}')
    assert 0 == call(models, results, tmp_path / "to")
    assert "only its weights were compared" in capsys.readouterr().out


def test_another_configuration_than_was_judged_is_not_packaged(tmp_path: Path) -> None:
    models = write_models(tmp_path / "from")
    results = base_alone(models)
    (models / BASE / "README.md").write_text("says nothing of pictures")
    assert [] == package(models, results, tmp_path / "to")
    (models / BASE / "model_index.json").write_text('{"scaling_factor": 2}')
    reasons = package(models, results, tmp_path / "others")
    assert 1 == len(reasons) and reasons[0].startswith("the weights are those that were judged; the other files are")


def test_a_card_says_how_many_are_met_where_outlines_must_be_right(tmp_path: Path) -> None:
    models = write_models(tmp_path / "from")
    strict = base_alone(models, met_by_overlap={"0.72": 180, "0.80": 161})
    assert [] == package(models, strict, tmp_path / "to")
    card = (tmp_path / "to" / BASE / "README.md").read_text(encoding="utf-8")
    assert "By how much an outline must overlap its shape's: 180 at 0.72, 161 at 0.80." in card


@pytest.mark.parametrize(
    ("progress", "said"),
    [
        ('{"step": 7}', "7 steps of the transformer."),
        ('{"step": 7, "drawing_steps": 5}', "5 steps of the transformer on drawing, then 7 on drawing and editing."),
    ],
)
def test_a_card_says_how_long_it_was_trained(progress: str, said: str, tmp_path: Path) -> None:
    models = write_models(tmp_path / "from")
    (models / BASE / "training.json").write_text(progress)
    assert [] == package(models, base_alone(models), tmp_path / "to")
    assert said in (tmp_path / "to" / BASE / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"met": None}, "met is 'None', and not a whole number from 0 to prompts"),
        ({"met": 201}, "met is '201', and not a whole number from 0 to prompts"),
        ({"prompts": 0}, "prompts is '0', and not a whole number from 1 on"),
        ({"prompts": True}, "prompts is 'True', and not"),
        ({"psnr_db": float("nan")}, "psnr_db is 'nan', and not a finite number"),
        ({"guidance": float("inf")}, "guidance is 'inf', and not a finite number from 0 on"),
        ({"guidance": -1}, "guidance is '-1', and not"),
        ({"steps": 20.5}, "steps is '20.5', and not a whole number from 1 on"),
        ({"held_out": "false"}, "held_out is 'false', and not true or false"),
        ({"subset": "none"}, "subset is 'none', and not all or simple"),
        ({"weights_sha256": 7}, "weights_sha256 is '7', and not a SHA-256"),
        ({"checkpoint_sha256": None}, "checkpoint_sha256 is 'None', and not a SHA-256"),
        ({"met_by_overlap": [180]}, "met_by_overlap is '[180]', and not counts up to prompts by the least overlap"),
        ({"met_by_overlap": {"0.80": -1}}, "met_by_overlap is \"{'0.80': -1}\", and not counts"),
        ({"met_by_overlap": {"0.80": 201}}, "met_by_overlap is"),
        ({"met_by_overlap": {"0.80\n# ": 1}}, "met_by_overlap is"),
    ],
    ids=str,
)
def test_a_summary_that_cannot_be_is_refused(
    change: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = write_models(tmp_path / "from")
    assert 1 == call(models, base_alone(models, **change), tmp_path / "to")
    assert said in capsys.readouterr().err
    assert not (tmp_path / "to").exists()


KEYS = ("met", "prompts", "psnr_db", "steps", "guidance", "held_out", "subset", "weights_sha256")


@pytest.mark.parametrize("key", KEYS)
def test_a_summary_that_lacks_a_key_is_refused(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = write_models(tmp_path / "from")
    results = base_alone(models)
    del results[BASE][key]
    assert 1 == call(models, results, tmp_path / "to")
    assert f"{key} is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "is missing"), ("{", "cannot be read"), ("[1]", "an object was expected"), ("\xff", "cannot be read")],
    ids=["missing", "cut off", "a list", "no UTF-8"],
)
def test_a_summary_that_is_none_is_one_sentence(
    text: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = write_models(tmp_path / "from")
    if text is not None:
        (tmp_path / "summary.json").write_text(text, encoding="latin-1")
    flags = [f"--models={models}", f"--evaluation={tmp_path}", f"--destination={tmp_path / 'to'}", f"--names={BASE}"]
    assert 1 == main(flags)
    error = capsys.readouterr().err
    assert said in error and "next: Evaluate it" in error


def test_a_missing_checkpoint_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = write_models(tmp_path / "from")
    results = results_of(models)
    shutil.rmtree(models / TURBO)
    assert 1 == call(models, results, tmp_path / "to")
    assert f"not packaged: there is no checkpoint folder {models / TURBO}\n" == capsys.readouterr().out


@pytest.mark.parametrize("subset", ["none", ""])
def test_an_unknown_subset_is_refused(subset: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([f"--subset={subset}", f"--destination={tmp_path / 'to'}"])


@pytest.mark.parametrize(
    "name", [".DS_Store", ".cache/x.json", "model.bin", "vae/weights.pt", "a.safetensors.tmp", "LICENSE"]
)
def test_files_that_do_not_belong_to_a_checkpoint_are_named(name: str, tmp_path: Path) -> None:
    models = write_models(tmp_path / "from")
    results = base_alone(models)
    (models / BASE / name).parent.mkdir(exist_ok=True)
    (models / BASE / name).write_text("")
    reasons = package(models, results, tmp_path / "to")
    assert name in reasons[0] and "does not belong to a checkpoint" in reasons[0]
    assert ["from"] == names_in(tmp_path)


def test_a_link_in_a_checkpoint_is_named(tmp_path: Path) -> None:
    models = write_models(tmp_path / "from")
    results = base_alone(models)
    (models / BASE / "vae").symlink_to(tmp_path)
    assert "does not belong to a checkpoint: vae" in package(models, results, tmp_path / "to")[0]


def make_a_file(to: Path) -> None:
    to.write_text("mine")


def make_a_link(to: Path) -> None:
    to.with_name("mine").mkdir()
    to.symlink_to(to.with_name("mine"))


def make_a_photo_album(to: Path) -> None:
    to.mkdir()
    (to / "photo.jpg").write_text("mine")


def make_a_source_tree(to: Path) -> None:
    (to / "src").mkdir(parents=True)
    (to / "src" / "main.py").write_text("mine")


def make_checkpoints_and_more(to: Path) -> None:
    (to / BASE).mkdir(parents=True)
    (to / BASE / "model_index.json").write_text("{}")
    (to / "notes.txt").write_text("mine")


def make_another_checkpoint(to: Path) -> None:
    (to / TURBO).mkdir(parents=True)
    (to / TURBO / PARTS).write_text("{}")


def leave_a_new_one(to: Path) -> None:
    to.with_name(to.name + ".new").mkdir()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (make_a_file, "is no folder"),
        (make_a_link, "is a link"),
        (make_a_photo_album, "something other than packaged checkpoints"),
        (make_a_source_tree, "something other than packaged checkpoints"),
        (make_checkpoints_and_more, "something other than packaged checkpoints"),
        (make_another_checkpoint, f"holds {TURBO}, which is not among --names"),
        (leave_a_new_one, "to.new is in the way"),
    ],
)
def test_a_destination_that_is_not_ours_is_left_alone(
    make: Callable[[Path], None], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models, to = write_models(tmp_path / "from"), tmp_path / "to"
    make(to)
    results = base_alone(models)
    before = contents_of(tmp_path)
    assert 1 == call(models, results, to)
    assert said in capsys.readouterr().err
    assert before == {
        name: content for name, content in contents_of(tmp_path).items() if not name.startswith("evaluation/")
    }


@pytest.mark.parametrize("to", ["from", f"from/{BASE}/new", "."])
def test_the_checkpoints_are_not_packaged_into_themselves(to: str, tmp_path: Path) -> None:
    models = write_models(tmp_path / "from")
    results = base_alone(models)
    with pytest.raises(FuseproofError, match="lie in each other"):
        package(models, results, tmp_path / to, drop_others=True)


def test_an_empty_folder_is_a_destination(tmp_path: Path) -> None:
    models = write_models(tmp_path / "from")
    (tmp_path / "to").mkdir()
    assert 0 == call(models, base_alone(models), tmp_path / "to")


def test_others_are_dropped_where_that_is_said(tmp_path: Path) -> None:
    models, to = write_models(tmp_path / "from"), tmp_path / "to"
    assert 0 == call(models, results_of(models), to)
    assert 1 == call(models, base_alone(models), to)
    assert sorted(NAMES) == names_in(to)
    assert 0 == call(models, base_alone(models), to, "--drop-others")
    assert ([BASE], (BASE,)) == (names_in(to), packaged_names(to))


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("is_there", [True, False], ids=["replaced", "first"])
@pytest.mark.parametrize("where", ["package._copy", "package.card", "destination.index_packaged"])
@pytest.mark.parametrize(("error", "code"), [(FULL, 1), (KeyboardInterrupt(), 130)], ids=["disk full", "interrupted"])
def test_a_failure_leaves_everything_as_it_was(
    is_there: bool,
    where: str,
    error: BaseException,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    models, to = write_models(tmp_path / "from"), tmp_path / "to"
    results = results_of(models)
    assert 0 == call(models, results, to)
    if not is_there:
        shutil.rmtree(to)
        (tmp_path / INDEX).unlink()
    before = contents_of(tmp_path)

    def fail(*arguments: object) -> None:
        if where == "destination.index_packaged":
            (tmp_path / INDEX).write_text("half")
        raise error

    monkeypatch.setattr(f"training.{where}", fail)
    capsys.readouterr()
    assert code == call(models, results, to)
    assert ("No space left" if code == 1 else "interrupted") in capsys.readouterr().err
    assert before == contents_of(tmp_path)
    assert ["evaluation", "from", *([INDEX, "to"] if is_there else [])] == names_in(tmp_path)
