"""What a session checks about its fast paths: first sights in a timed request, every step, certificates, own sites."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch.nn.functional as F

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.fastpaths import UserSite
from fuseproof.pipelines.checkpoints import check_checkpoint
from fuseproof.pipelines.embedded import ResolvedModel
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.session import Session, SessionSettings
from fuseproof.pipelines.session_warnings import VERIFIES_EVERY_STEP

REQUEST = GenerationRequest(
    prompt="a red panda",
    negative_prompt=None,
    width=64,
    height=64,
    num_inference_steps=2,
    guidance_scale=4.5,
    seed=1,
    generator_device="cpu",
    enable_cfg_renorm=True,
    cfg_renorm_min=0.0,
    enable_prompt_rewrite=False,
    quality="lossless",
)


@pytest.fixture
def opened(tiny_longcat_model: ResolvedModel) -> Iterator[Any]:
    """Opens sessions, and closes them."""
    sessions = []

    def open_session(**settings: Any) -> Session:
        checkpoint = check_checkpoint(tiny_longcat_model.folder)
        sessions.append(Session.open(tiny_longcat_model, checkpoint, SessionSettings(device="cpu", **settings)))
        return sessions[-1]

    yield open_session
    for session in sessions:
        session.close()


def told(session: Session) -> list[str]:
    return [text for text in session.warnings if "first sight" in text]


@pytest.mark.parametrize("backend", ["native", "diffusers"])
def test_a_picture_of_another_size_is_an_error(opened: Any, backend: str) -> None:
    session = opened(backend=backend, fastpaths="off")
    processor = session._runner.pipe.image_processor
    eager = processor.postprocess
    processor.postprocess = lambda *a, **k: eager(*a, **k)[:, :32]
    with pytest.raises(FuseproofError, match="decoded 64x32 pixels of 3 channels; 64x64 pixels of 3 channels was"):
        session.run(REQUEST)
    with pytest.raises(UsageError, match="width is 72; a multiple of 16 was expected"):
        session.run(replace(REQUEST, width=72))


def test_a_first_sight_inside_a_timed_request_is_a_warning(opened: Any) -> None:
    session = opened()
    session.run(REQUEST)
    (warning,) = told(session)
    assert "fell inside a timed request, at most " in warning
    session.run(replace(REQUEST, seed=2))
    assert 1 == len(told(session)), "the second request met nothing new"


def test_a_warm_up_of_all_steps_leaves_none(opened: Any) -> None:
    session = opened()
    session.warm_up(REQUEST)
    session.run(REQUEST)
    assert [] == told(session)


def test_a_certificate_leaves_none_either(opened: Any) -> None:
    first = opened()
    expected = first.run(REQUEST)
    keys = first.verified_keys()
    first.close()
    session = opened(certified=keys)
    result = session.run(REQUEST)
    assert [] == told(session)
    assert np.array_equal(expected.latents, result.latents)
    sites = session.fastpaths_report()["sites"]
    assert {"certified"} == {sites[name]["state"] for name in ("packed_blocks", "modulation", "rotary_tables")}


def test_verifying_every_step_compares_every_call_and_says_so(opened: Any) -> None:
    plain = opened(fastpaths="off").run(REQUEST)
    session = opened(verify_every_step=True)
    result = session.run(REQUEST)
    assert np.array_equal(plain.latents, result.latents)
    assert VERIFIES_EVERY_STEP in session.warnings
    assert [] == told(session)
    gate = session._mount.gates["packed_blocks"]
    assert gate.calls_verified == gate.calls_fused > 6


def test_sites_of_ones_own_run_in_a_session_and_wrong_ones_change_nothing(opened: Any) -> None:
    sites = (
        UserSite("exact", lambda m, x: F.layer_norm(x, m.normalized_shape, eps=m.eps), modules="**.norm2"),
        UserSite("wrong", lambda m, x: x, modules="transformer_blocks.*.norm2_context"),
    )
    plain = opened(fastpaths="off").run(REQUEST)
    session = opened(user_sites=sites)
    result = session.run(REQUEST)
    assert np.array_equal(plain.latents, result.latents)
    assert np.array_equal(plain.image, result.image)
    report = session.fastpaths_report()["sites"]
    assert ("fused", "rejected", "declined") == tuple(
        report[name]["state"] for name in ("exact", "wrong", "packed_blocks")
    )
    (said,) = [text for text in session.warnings if "declined for the whole run" in text]
    assert "packed_blocks" in said and "transformer_blocks.0.norm2 has a fast path of your own" in said
