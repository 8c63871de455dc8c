"""The same promise for editing on a CUDA device (`make test-gpu`), with fast paths off and on."""

import pytest
import torch

from fuseproof.pipelines.checkpoints import check_checkpoint
from fuseproof.pipelines.loading import load_pipeline
from fuseproof.pipelines.progress import SILENT
from fuseproof.pipelines.session import Session, SessionSettings
from tests.pipelines.input_pictures import encoded, picture
from tests.pipelines.test_parity_edit import DIFFUSERS, NATIVE, edit_request

pytestmark = pytest.mark.gpu

CASES = {
    "base": {"num_inference_steps": 3},
    "no-guidance": {"guidance_scale": 1.0},
    "embedded-canvas": {"canvas_pixels": 256 * 256, "num_inference_steps": 8},
    "generator-on-the-device": {"generator_device": "cuda"},
}
ARMS = {"native": NATIVE, "native with fast paths": SessionSettings(backend="native", fastpaths="auto")}


@pytest.fixture(scope="module", params=[torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def loaded(request, tiny_edit_folder):
    checkpoint = check_checkpoint(tiny_edit_folder)
    return load_pipeline(checkpoint, dtype=request.param, device=torch.device("cuda", 0)), request.param


@pytest.mark.parametrize("changes", [pytest.param(changes, id=name) for name, changes in CASES.items()])
def test_native_equals_diffusers_bit_for_bit_on_cuda(loaded, changes):
    pipe, dtype = loaded
    request = edit_request(encoded(picture(158, 106)), **changes)
    results = {}
    for name, settings in {"reference": DIFFUSERS, **ARMS}.items():
        with Session(pipe, settings, torch.device("cuda", 0), dtype, SILENT) as session:
            results[name] = session.run(request)
            rejected = [site for site in session.fastpaths_report()["sites"].values() if site["state"] == "rejected"]
            assert [] == rejected
    for name, result in results.items():
        assert results["reference"].image.tobytes() == result.image.tobytes(), f"{name}: raw image differs"
        assert results["reference"].latents.tobytes() == result.latents.tobytes(), f"{name}: final latents differ"


def test_the_loop_never_waits_for_the_device(loaded):
    """Everything between the first step and the last is queued: a synchronising call inside the loop raises."""
    pipe, dtype = loaded
    request = edit_request()
    with Session(pipe, NATIVE, torch.device("cuda", 0), dtype, SILENT) as session:
        session.run(request)
        forward = pipe.transformer.forward
        calls = []

        def watched(*args, **kwargs):
            torch.cuda.set_sync_debug_mode("error" if len(calls) < 3 else "default")
            calls.append(None)
            return forward(*args, **kwargs)

        pipe.transformer.forward = watched
        try:
            session.run(request)
        finally:
            torch.cuda.set_sync_debug_mode("default")
            del pipe.transformer.forward
    assert 4 == len(calls)
