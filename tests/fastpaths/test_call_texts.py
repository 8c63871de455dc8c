"""Calls of one shape are told apart by what differs, and small differences on a CPU have their own cause each."""

from __future__ import annotations

import pytest
import torch

from fuseproof.fastpaths.call_layouts import layout_of
from fuseproof.fastpaths.call_texts import distinct_texts
from fuseproof.fastpaths.cpu_roundings import CAUSE_OF_KERNEL, cpu_cause
from fuseproof.fastpaths.tracing import SiteCall
from fuseproof.fastpaths.verification import cases_for, labelled


def guidance(scale: float, renormalises: bool = True, rows: int = 3) -> SiteCall:
    velocity = torch.empty(1, rows, 8, dtype=torch.bfloat16, device="meta")
    step = torch.empty((), device="meta")
    arguments = (velocity, velocity, velocity, step, scale, renormalises, 0.0)
    return SiteCall("guidance_step", layout_of("guidance_step", arguments, {}))


def test_only_what_differs_is_said():
    texts = distinct_texts([guidance(4.5), guidance(1.0), guidance(4.5, rows=2)])
    assert ["1x3x8, 1x3x8 and 2 more (guidance_scale 4.5)", "1x3x8, 1x3x8 and 2 more (guidance_scale 1.0)"] == texts[:2]
    assert "1x2x8, 1x2x8 and 2 more" == texts[2]


def test_every_two_calls_of_a_workload_have_two_texts():
    calls = [guidance(scale, renormalises) for scale in (1.0, 4.5) for renormalises in (True, False)]
    cases = labelled(case for name in ("a", "b") for case in cases_for(calls, name, edge_values=True))
    texts = {(case.workload, case.text) for case in cases}
    assert 8 == len(texts)


FEW, MANY = "0.9000% of the values differ, by at most 13349 ulp", "1.1000% of the values differ, by at most 1 ulp"


@pytest.mark.parametrize(
    ("words", "kernel"),
    [
        ("a CPU's tanh differs", "gelu_tanh"),
        ("a CPU's tanh differs", "attention_mlp_gelu"),
        ("adds up a row in another order", "layernorm_modulate"),
        ("divides where a card multiplies", "conv_bias_residual"),
        (None, "gated_residual"),
        (None, "channels_last_copy"),
    ],
)
def test_a_difference_that_a_cpu_may_cause_has_the_kernels_own_cause(words, kernel):
    found = cpu_cause(kernel, FEW)
    assert found is None if words is None else words in str(found)


@pytest.mark.parametrize("kernel", CAUSE_OF_KERNEL)
@pytest.mark.parametrize("rejection", [MANY, "ZeroDivisionError at first sight", "nan% of the values differ"])
def test_more_is_a_fault(kernel, rejection):
    assert cpu_cause(kernel, rejection) is None
