"""``generate --load-format dummy``: what is asked of the session, what the dump says, and one real narrow run."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuseproof.cli import hash_seed
from fuseproof.cli.main import main
from fuseproof.harness.perf.dump import read_perf_dump
from fuseproof.pipelines import dummy, hub, memory
from fuseproof.pipelines.dummy_geometry import RECIPE, WARNING
from fuseproof.pipelines.families import LONGCAT_IMAGE
from tests.cli.desk import SMALL, Desk
from tests.pipelines.narrow_geometry import NARROW

DUMMY = ("--load-format=dummy", "--model-path=longcat-image", "--prompt=a red panda")


@pytest.fixture(autouse=True)
def no_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "download_snapshot", lambda *args: pytest.fail("downloaded"))


@pytest.mark.parametrize("model_path", ["longcat-image", "meituan-longcat/LongCat-Image"])
def test_a_family_or_its_published_id_opens_dummy_weights(model_path: str, real_models: Desk) -> None:
    assert 0 == real_models.run("--load-format=dummy", f"--model-path={model_path}", "--prompt=a", "--no-save-output")
    assert LONGCAT_IMAGE is real_models.session.dummy_family
    request = real_models.session.requests[0]
    assert (1024, 1024, 50, 4.5) == (
        request.width,
        request.height,
        request.num_inference_steps,
        request.guidance_scale,
    )


def test_the_dump_names_the_recipe_and_no_hash(real_models: Desk) -> None:
    assert 0 == real_models.run(*DUMMY, *SMALL, "--perf-dump-path=p.json")
    config = read_perf_dump("p.json").config
    expected = {
        "load_format": "dummy",
        "weights": {"format": "dummy", "recipe": RECIPE, "seed": 0},
        "model_source": "dummy",
        "model_sha256": None,
        "resolved_revision": None,
        "family": "longcat-image",
    }
    assert expected == {name: config[name] for name in expected}


def test_a_checkpoint_run_records_that_its_weights_were_loaded(desk: Desk) -> None:
    assert 0 == desk.run("--prompt=a", *SMALL, "--perf-dump-path=p.json")
    config = read_perf_dump("p.json").config
    assert ("auto", None, "embedded") == tuple(config[name] for name in ("load_format", "weights", "model_source"))


@pytest.mark.parametrize(
    ("expected", "arguments"),
    [
        ("'flux' is no family", ["--model-path=flux"]),
        ("'here' is a folder", ["--model-path=here"]),
        ("embedded:longcat-image is a checkpoint of its own", ["--model-path=embedded:longcat-image"]),
        ("cannot make width 100", ["--model-path=longcat-image", "--width=100"]),
    ],
    ids=["unknown", "folder", "embedded", "size"],
)
def test_mistakes_are_found_before_anything_is_opened(
    expected: str, arguments: list[str], real_models: Desk, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    assert 2 == real_models.run("--load-format=dummy", "--prompt=a", *arguments)
    assert expected in real_models.err
    assert 2 == real_models.err.count("\n")
    assert real_models.session.opened_with is None


@pytest.fixture
def narrow_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The real session on the narrow geometry, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.delenv(hash_seed.MARKER, raising=False)
    monkeypatch.setattr(dummy, "geometry_of", lambda family: NARROW)
    return tmp_path


def test_a_narrow_model_runs_from_the_command_line(narrow_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*DUMMY, "--width=64", "--height=64", "--num-inference-steps=2", "--device=cpu", "--fastpaths=off")
    assert 0 == main(["generate", *arguments, "--perf-dump-path=p.json", "--output-file-name=x"])
    assert f"fuseproof: warning: {WARNING}" == capsys.readouterr().err.splitlines()[-1]
    assert (narrow_model / "outputs" / "x.png").is_file()
    dump = read_perf_dump("p.json")
    assert [WARNING] == dump.warnings
    assert ("longcat-image", "native", "float32") == (dump.model, dump.config["backend_used"], dump.config["dtype"])
    assert (0, None) == tuple(dump.outputs[0][key] for key in ("nonfinite", "degenerate"))
    assert dump.timers["load_ms"] > 0


def test_too_little_memory_is_one_sentence(
    narrow_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 2**20)
    assert 1 == main(["generate", *DUMMY, "--device=cpu", "--perf-dump-path=p.json"])
    error, step = capsys.readouterr().err.splitlines()[-2:]
    assert "the dummy weights of LongCat-Image need" in error
    assert "only 0.0 GiB are free" in error
    assert "embedded:longcat-image" in step
    assert [] == list(narrow_model.iterdir())
