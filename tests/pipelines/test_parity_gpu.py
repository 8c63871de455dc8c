"""The same promise on a CUDA device (`make test-gpu`), in bf16 and fp32, with the generator on either device."""

from dataclasses import replace

import pytest
import torch

from fuseproof.pipelines.checkpoints import check_checkpoint
from fuseproof.pipelines.loading import load_pipeline
from fuseproof.pipelines.progress import SILENT
from fuseproof.pipelines.session import Session, SessionSettings
from tests.pipelines.test_parity import ARMS, BASE

pytestmark = pytest.mark.gpu

CASES = {
    "base": {},
    "256": {"width": 256, "height": 256, "num_inference_steps": 8},
    "no-guidance": {"guidance_scale": 1.0},
    "no-renorm": {"enable_cfg_renorm": False, "seed": 7},
    "generator-on-the-device": {"generator_device": "cuda"},
}


@pytest.fixture(scope="module", params=[torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def loaded(request, tiny_longcat_folder):
    pipe = load_pipeline(check_checkpoint(tiny_longcat_folder), dtype=request.param, device=torch.device("cuda", 0))
    pipe.set_progress_bar_config(disable=True)
    return pipe, request.param


@pytest.mark.parametrize("changes", [pytest.param(changes, id=name) for name, changes in CASES.items()])
def test_native_equals_diffusers_bit_for_bit_on_cuda(loaded, changes):
    pipe, dtype = loaded
    request = replace(BASE, **changes)
    results = {}
    for name, settings in {"reference": SessionSettings(backend="diffusers"), **ARMS}.items():
        with Session(pipe, settings, torch.device("cuda", 0), dtype, SILENT) as session:
            results[name] = session.run(request)
            rejected = [site for site in session.fastpaths_report()["sites"].values() if site["state"] == "rejected"]
            assert [] == rejected
    for name, result in results.items():
        assert results["reference"].image.tobytes() == result.image.tobytes(), f"{name}: raw image differs"
        assert results["reference"].latents.tobytes() == result.latents.tobytes(), f"{name}: final latents differ"
