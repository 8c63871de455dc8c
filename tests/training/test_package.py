"""What is packaged was judged, is good enough, and fits; and what lies there then gives the judged weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fuseproof.pipelines.checkpoint_marker import MARKER, Marker
from fuseproof.pipelines.packaged_models import index_packaged
from fuseproof.pipelines.packaged_parts import PARTS
from training.package import package, weights_sha256
from training.parts import BASE, DIFFERENCE, EDIT, NAMES, TRANSFORMER_WEIGHTS, TURBO, mark_trained, seal_part, whole

SAMPLING = {"steps": 20, "guidance": 4.5, "seed": 0, "subset": "all", "held_out": True}


def write_models(folder: Path) -> Path:
    """The three of them, with one matrix each."""
    for name in NAMES:
        (folder / name / "transformer").mkdir(parents=True)
        (folder / name / "training.json").write_text('{"step": 7}')
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
            weights = weights_sha256(checkpoint)
        counts = {"met": 180, "prompts": 200} if name == BASE else {"met": 85, "edits": 100}
        results[name] = {**counts, "psnr_db": 31.0, **SAMPLING, "weights_sha256": weights, **changes.get(nickname, {})}
    return results


def test_all_three_are_packaged_with_their_cards_and_shared_weights_once(tmp_path: Path) -> None:
    models, to = write_models(tmp_path / "from"), tmp_path / "embedded_models"
    (to / "older").mkdir(parents=True)
    results = results_of(models)
    assert [] == package(models, results, to)
    index_packaged(to)
    assert sorted(NAMES) == sorted(path.name for path in to.iterdir())
    assert "90.0 % (180 of 200), 95 % interval [85.1, 93.4]" in (to / BASE / "README.md").read_text()
    assert "85.0 % (85 of 100)" in (to / TURBO / "README.md").read_text()
    assert [BASE] == [path.relative_to(to).parts[0] for path in to.rglob("diffusion_pytorch_model.safetensors")]
    for name in (EDIT, TURBO):
        assert (to / name / PARTS).is_file()
        with whole(to / name) as checkpoint:
            assert results[name]["weights_sha256"] == weights_sha256(checkpoint)
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


def test_what_is_too_large_is_not_packaged(tmp_path: Path) -> None:
    models = write_models(tmp_path / "from")
    save_file({"w": torch.zeros(25_000_000, dtype=torch.uint8)}, models / BASE / "more.safetensors")
    judged = {**SAMPLING, "met": 180, "prompts": 200, "psnr_db": 31.0, "weights_sha256": weights_sha256(models / BASE)}
    reasons = package(models, {BASE: judged}, tmp_path / "to")
    assert 1 == len(reasons) and reasons[0].endswith("25000000 are the most")
