"""Why LongCat-Image's sites decline: the greater obstacle is named first."""

from types import SimpleNamespace

import pytest
import torch

from fuseproof.fastpaths.sites import longcat_image, plain_modules
from tests.fastpaths.small_model import small_pipe

KERNEL_SITES = (*longcat_image.KERNELS_OF_SITE, *longcat_image.LOOP_OPERATIONS)
ON_CPU = "the model is on cpu; Triton kernels need a CUDA device"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_on_a_cpu_every_site_that_needs_a_card_says_so_whatever_the_weights(dtype):
    reasons = longcat_image.site_reasons(small_pipe(dtype).transformer)
    assert dict.fromkeys(KERNEL_SITES, ON_CPU) == {name: reasons[name] for name in KERNEL_SITES}
    assert all("need" in reasons[name] and "CUDA device" in reasons[name] for name in longcat_image.APPROXIMATE_SITES)
    assert (dtype == torch.float16) == ("packed_blocks" in reasons)


@pytest.mark.parametrize(
    ("expected", "dtype", "device"),
    [
        (None, torch.bfloat16, "cuda"),
        (
            "weights are float32; on CUDA, float32 products of packed weights have other bits, so the rewritten blocks "
            "need bfloat16 there",
            torch.float32,
            "cuda",
        ),
        (None, torch.float32, "cpu"),
        (None, torch.bfloat16, "cpu"),
    ],
)
def test_fp32_blocks_are_rewritten_on_a_cpu_alone(expected, dtype, device):
    assert expected == plain_modules._products_reason(dtype, torch.device(device))


def test_on_a_card_kernels_say_that_they_need_bf16():
    parameter = SimpleNamespace(device=torch.device("cuda", 0), dtype=torch.float32)
    assert "weights are float32; the kernels need bfloat16" == plain_modules.kernels_reason(parameter)
