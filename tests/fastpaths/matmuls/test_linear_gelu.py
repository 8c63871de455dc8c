"""The GELU epilogue: why it declines where it would be another function, and what it replaces."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fuseproof.fastpaths.matmuls import linear_gelu


def operands():
    torch.manual_seed(0)
    linear = nn.Linear(24, 16)
    return torch.randn(5, 24), linear.weight.detach(), linear.bias.detach()


def test_the_reference_is_diffusers_own_chain():
    from diffusers.models.activations import GELU

    x, weight, bias = operands()
    module = GELU(24, 16, approximate="tanh")
    module.proj.weight.data, module.proj.bias.data = weight, bias
    assert torch.equal(module(x), linear_gelu.reference(x, weight, bias))


def test_the_cpu_has_another_gelu_in_its_epilogue_and_therefore_declines():
    x, weight, bias = operands()
    found = linear_gelu.fused(x, weight, bias)
    torch.testing.assert_close(found, F.gelu(F.linear(x, weight, bias)), rtol=0, atol=1e-6)
    assert (found - linear_gelu.reference(x, weight, bias)).abs().max() > 1e-5
    expected = "weights are on cpu; the tanh-GELU epilogue needs a CUDA device"
    assert expected == linear_gelu.reject_reason(weight.bfloat16())


@pytest.mark.parametrize(
    ("expected", "dtype", "shape"),
    [
        (None, torch.bfloat16, (16, 24)),
        ("weights are float32; the GELU epilogue is used for bfloat16", torch.float32, (16, 24)),
        ("a weight has shape [1, 24]; the epilogue needs at least 2 rows and 2 columns", torch.bfloat16, (1, 24)),
        ("a weight has shape [16, 1]; the epilogue needs at least 2 rows and 2 columns", torch.bfloat16, (16, 1)),
    ],
    ids=["fits", "fp32", "one-row", "one-column"],
)
def test_reasons_on_a_card_that_is_not_here(expected, dtype, shape):
    weight = SimpleNamespace(dtype=dtype, device=torch.device("cuda", 0), shape=torch.Size(shape))
    assert expected == linear_gelu.reject_reason(weight)


def test_bytes_count_everything_once():
    x, weight, bias = (tensor.bfloat16() for tensor in operands())
    assert 2 * (5 * 24 + 16 * 24 + 16 + 5 * 16) == linear_gelu.traffic_bytes(x, weight, bias)
