"""LongLive 2's promise on a CUDA device (`make test-gpu`): latents and every raw frame are the reference's, with fast
paths off and on, eager and from graphs; and frames come early there, too.
"""

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
from tests.pipelines.test_longlive2_session import BASE, IMAGE

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda", 0)
CASES: dict[str, dict[str, Any]] = {
    "text": {"width": 128, "height": 96},
    "image": {"width": 128, "height": 96, "image": IMAGE},
    "generator-on-the-device": {"generator_device": "cuda", "num_frames": 29},
}
ARMS = {
    "off": SessionSettings(fastpaths="off"),
    "auto": SessionSettings(fastpaths="auto"),
    "off-graphs": SessionSettings(fastpaths="off", enable_breakable_cuda_graph=True),
    "auto-graphs": SessionSettings(fastpaths="auto", enable_breakable_cuda_graph=True),
}


@pytest.fixture(scope="module", params=[torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def loaded(request: pytest.FixtureRequest, tiny_longlive2_folder: Path) -> tuple[Any, torch.dtype]:
    return load_pipeline(check_checkpoint(tiny_longlive2_folder), dtype=request.param, device=CUDA), request.param


@pytest.mark.parametrize("changes", [pytest.param(changes, id=name) for name, changes in CASES.items()])
def test_every_arm_equals_the_reference_bit_for_bit_on_cuda(
    loaded: tuple[Any, torch.dtype], changes: dict[str, Any]
) -> None:
    pipe, dtype = loaded
    request = replace(BASE, **changes)
    with Session(pipe, SessionSettings(backend="reference"), CUDA, dtype, SILENT) as session:
        reference = session.run(request)
    for name, settings in ARMS.items():
        with Session(pipe, settings, CUDA, dtype, SILENT) as session:
            session.warm_up(request)
            result = session.run(request)
            sites, graphs = session.fastpaths_report()["sites"], session.graphs_report()
            warnings = session.warnings
        assert reference.image.tobytes() == result.image.tobytes(), f"{name}: raw frames differ"
        assert reference.latents.tobytes() == result.latents.tobytes(), f"{name}: final latents differ"
        assert {} == {site: one["reason"] for site, one in sites.items() if one["state"] == "rejected"}, name
        assert (0, 0) == (graphs["missed"], graphs["unsupported"]), f"{name}: {graphs['reason']}"
        assert [] == [text for text in warnings if "decoded again" in text], name
        arrivals = result.frame_arrivals
        assert request.num_frames == sum(one.frames for one in arrivals)
        assert arrivals[0].milliseconds < result.worker_ms
