"""What a session says of its own measurement: compiling inside a timed request, where models lie, one image alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fuseproof.pipelines.checkpoints import check_checkpoint
from fuseproof.pipelines.loading import load_pipeline
from fuseproof.pipelines.progress import SILENT
from fuseproof.pipelines.session import Session, SessionSettings
from fuseproof.pipelines.session_environment import residency
from fuseproof.pipelines.session_warnings import COMPILED_INSIDE
from tests.pipelines.test_session_checks import REQUEST

CPU = torch.device("cpu")
ONE_STEP = replace(REQUEST, num_inference_steps=1, guidance_scale=1.0)


def loaded(folder: Path) -> Any:
    return load_pipeline(check_checkpoint(folder), dtype=torch.float32, device=CPU)


@pytest.fixture(scope="module")
def pipe(tiny_longcat_folder: Path) -> Any:
    return loaded(tiny_longcat_folder)


def opened(pipe: Any, **settings: Any) -> Session:
    return Session(pipe, SessionSettings(**settings), CPU, torch.float32, SILENT)


def test_a_compilation_inside_a_timed_request_is_a_warning(tiny_longcat_folder: Path) -> None:
    """Dynamo itself traces and counts; its ``eager`` backend needs no compiler."""
    pipe = loaded(tiny_longcat_folder)
    pipe.transformer.norm_out.compile(backend="eager", dynamic=False)
    try:
        with opened(pipe, fastpaths="off", enable_torch_compile=True) as session:
            session.warm_up(ONE_STEP)
            session.run(ONE_STEP)
            assert COMPILED_INSIDE not in session.warnings, "the warm-up compiled this size"
            session.run(replace(ONE_STEP, width=96))
            assert COMPILED_INSIDE in session.warnings, "another resolution compiles again"
    finally:
        torch._dynamo.reset()


def test_a_dump_says_where_the_models_lay(pipe: Any) -> None:
    with opened(pipe) as session:
        found = session.environment()["residency"]
    assert {"components": dict.fromkeys(("text_encoder", "transformer", "vae"), "cpu"), "offload": "none"} == found


def test_offloading_is_named_with_its_component(tiny_longcat_folder: Path) -> None:
    pipe = loaded(tiny_longcat_folder)
    pipe.vae.enable_group_offload(onload_device=CPU, offload_device=CPU, offload_type="leaf_level", use_stream=False)
    pipe.text_encoder.to("meta")
    found = residency(pipe)
    assert ["vae"] == list(found["offload"])
    assert all("group_offloading" in name for name in found["offload"]["vae"])
    assert "meta" == found["components"]["text_encoder"]


def test_every_image_of_a_run_can_be_made_alone_from_its_prompt_and_seed(pipe: Any) -> None:
    """No request shares a batch with another, so image k does not depend on those before it."""
    requests = [
        replace(ONE_STEP, prompt=prompt, seed=seed) for prompt, seed in (("a cat", 1), ("a dog", 2), ("a cat", 3))
    ]
    with opened(pipe) as session:
        together = [session.run(request).image.tobytes() for request in requests]
    assert 3 == len(set(together))
    with opened(pipe) as alone:
        assert together[1] == alone.run(requests[1]).image.tobytes()
