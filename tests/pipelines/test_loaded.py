"""Sessions that follow each other on one loaded pipeline: each is a fresh one, and none leaves anything behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuseproof.errors import UsageError
from fuseproof.pipelines.checkpoints import check_checkpoint
from fuseproof.pipelines.families import LONGCAT_IMAGE
from fuseproof.pipelines.loaded import LoadedPipeline
from fuseproof.pipelines.session import SessionSettings
from tests.pipelines.test_session_checks import REQUEST

ONE_STEP = replace(REQUEST, num_inference_steps=1, guidance_scale=1.0)
EVER_NEW = ("first_sight_ms", "jit_ms")
ON = "context_embedding,rotary_tables,timestep_embedding,modulation,packed_blocks"
"""Every kind of change to a model (replaced forwards, held results, packed weights), and no kernel to interpret."""


@pytest.fixture(scope="module")
def loaded(tiny_longcat_folder: Path) -> LoadedPipeline:
    checkpoint = check_checkpoint(tiny_longcat_folder)
    return LoadedPipeline.load(LONGCAT_IMAGE, checkpoint, SessionSettings(device="cpu"))


def traces(pipe: Any) -> dict[str, Any]:
    """What a mount could leave on the modules: their own attributes and hooks by identity, the bits of their weights.

    Where the weights lie may change: packed ones get places of their own again.
    """
    found: dict[str, Any] = {}
    for component in ("transformer", "vae", "text_encoder"):
        for name, module in getattr(pipe, component).named_modules():
            own = {key: id(value) for key, value in vars(module).items() if not key.startswith("_")}
            hooks = [len(getattr(module, kind)) for kind in ("_forward_pre_hooks", "_forward_hooks")]
            weights = [hash(tensor.detach().numpy().tobytes()) for tensor in module.parameters(recurse=False)]
            found[f"{component}.{name}"] = (type(module), own, hooks, weights)
    return found


def run(loaded: LoadedPipeline, fastpaths: str) -> tuple[Any, dict[str, Any]]:
    """The picture, and what its sites counted."""
    with loaded.session(SessionSettings(device="cpu", fastpaths=fastpaths)) as session:
        loaded.settle(gives_back=False)
        result = session.run(ONE_STEP)
        sites = session.fastpaths_report()["sites"]
        assert loaded.load_ms == session.load_ms
    loaded.settle(gives_back=True)
    counted = {name: {key: value for key, value in site.items() if key not in EVER_NEW} for name, site in sites.items()}
    return result.image, counted


def test_the_next_session_is_a_fresh_one(loaded: LoadedPipeline) -> None:
    ran = [run(loaded, "off")]  # the libraries' own first forward leaves hooks of theirs
    before = traces(loaded.pipe)
    images, sites = zip(*ran, *[run(loaded, arm) for arm in (ON, "off", ON)], strict=True)
    assert before == traces(loaded.pipe)
    assert (sites[0], sites[1]) == (sites[2], sites[3])
    assert 0 < sum(site["calls_fused"] for site in sites[1].values())
    assert 0 == sum(site["calls_fused"] for site in sites[2].values())
    for image in images[1:]:
        np.testing.assert_array_equal(images[0].view(np.uint32), image.view(np.uint32))


def test_a_session_that_fails_leaves_the_pipeline_as_it_was(
    loaded: LoadedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = traces(loaded.pipe)
    with pytest.raises(ValueError, match="broken"), loaded.session(SessionSettings(fastpaths=ON)) as session:
        monkeypatch.setattr(session._runner.pipe, "encode_prompt", lambda *_, **__: broken())
        session.run(ONE_STEP)
    monkeypatch.undo()
    assert before == traces(loaded.pipe)


def broken() -> None:
    raise ValueError("broken")


def test_one_session_at_a_time(loaded: LoadedPipeline) -> None:
    with loaded.session(SessionSettings(device="cpu")), pytest.raises(UsageError, match="already mounted"):
        loaded.session(SessionSettings(device="cpu"))
    loaded.session(SessionSettings(device="cpu")).close()


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("enable_torch_compile", "changes a transformer for good"),
        ("enable_breakable_cuda_graph", "needs a CUDA device"),
    ],
)
def test_what_cannot_be_taken_off_or_captured_is_refused(loaded: LoadedPipeline, setting: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        loaded.session(SessionSettings(device="cpu", **{setting: True}))
    loaded.session(SessionSettings(device="cpu")).close()
