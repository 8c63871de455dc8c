"""What is predicted without weights is what a mount then says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from fuseproof.errors import UsageError
from fuseproof.fastpaths import UserSite, mount
from fuseproof.fastpaths.prediction import make_skeleton, predict
from tests.fastpaths import small_wan
from tests.fastpaths.small_model import meta_transformer, small_pipe

CPU = torch.device("cpu")


def skeleton(dtype=torch.float32):
    return SimpleNamespace(transformer=make_skeleton(meta_transformer(torch.float32), CPU, dtype), vae=None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_prediction_is_what_the_mount_reports(dtype):
    predicted = {one.site: one.reason for one in predict(skeleton(dtype)) if one.quality == "lossless"}
    with mount(small_pipe(dtype)) as mounted:
        sites = mounted.report()["sites"]
    declined = {name: site["reason"] if site["state"] == "declined" else None for name, site in sites.items()}
    assert declined == {name: predicted[name] for name in declined}


def test_a_skeleton_weighs_nothing_and_has_the_real_shapes():
    model = skeleton(torch.bfloat16).transformer
    weight = model.transformer_blocks[0].attn.to_q.weight
    assert ((128, 128), torch.bfloat16, CPU) == (tuple(weight.shape), weight.dtype, weight.device)
    assert 2 == weight.untyped_storage().nbytes()


def test_a_skeleton_keeps_in_fp32_what_a_loaded_model_keeps():
    model = make_skeleton(small_wan.small_pipe().transformer.to("meta"), CPU, torch.bfloat16)
    assert torch.bfloat16 == model.proj_out.weight.dtype
    assert torch.float32 == model.scale_shift_table.dtype == model.blocks[0].norm2.weight.dtype
    reasons = {one.site: one.reason for one in predict(SimpleNamespace(transformer=model, vae=None))}
    assert reasons["video_blocks"] is None


def test_sites_of_another_quality_say_which():
    reasons = {one.site: one.reason for one in predict(skeleton(torch.bfloat16), "lossless")}
    assert "needs --quality high" == reasons["fp8_linear"]


def test_sites_of_ones_own_are_predicted_and_the_model_is_left_alone():
    site = UserSite("mine", fused=lambda module, x: F.layer_norm(x, (128,)), modules="transformer_blocks.*.norm2")
    pipe = skeleton()
    found = {one.site: one for one in predict(pipe, user_sites=[site])}
    assert "would mount" == found["mine"].state
    assert "transformer_blocks.0.norm2" in str(found["packed_blocks"].reason)
    assert [] == [name for name, module in pipe.transformer.named_modules() if "forward" in vars(module)]


def test_an_unknown_glob_is_one_sentence():
    with pytest.raises(UsageError, match="names no module"):
        predict(skeleton(), user_sites=[UserSite("mine", fused=print, modules="nowhere.*")])
