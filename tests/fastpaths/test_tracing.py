"""Calls noted on the meta device are those that the model makes: same operations, layouts and gate keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuseproof.errors import FuseproofError
from fuseproof.fastpaths import UserSite, mount
from fuseproof.fastpaths.call_layouts import layout_of
from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.kernels.launching import is_interpreted
from fuseproof.fastpaths.prepared_calls import operation_of
from fuseproof.fastpaths.sites.longcat_image import KERNELS_OF_SITE, SITES
from fuseproof.fastpaths.tracing import trace, trace_modules, with_stand_ins, without_offsets
from fuseproof.pipelines.fastpath_workloads import Workload, transformer_run
from tests.fastpaths.small_model import IMAGE, TEXT, forwards, meta_transformer, small_pipe

WORKLOAD = Workload("small", TEXT, IMAGE)


def noted_in_a_real_forward(dtype: torch.dtype) -> set[tuple[str, Any]]:
    """Site and layout of every kernel call of a mounted model; no gate is asked, as none is once all keys are known."""
    pipe, noted = small_pipe(dtype), set()

    def observer(site):
        def note(operation, arguments, outputs):
            noted.add((site, without_offsets(layout_of(operation.name, arguments, outputs))))

        return note

    with mount(pipe, gate="off", call_observers={site: observer(site) for site in KERNELS_OF_SITE}):
        forwards(pipe, times=1)
    return noted


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_trace_is_what_the_model_does(dtype):
    transformer = meta_transformer(dtype)
    traced = trace(transformer, transformer_run(transformer, WORKLOAD, dtype))
    assert noted_in_a_real_forward(dtype) == {(call.site, without_offsets(call.layout)) for call in traced}
    assert {"layernorm_modulate", "gated_residual", "qk_norm_rope", "gelu_tanh"} == {call.site for call in traced}


class Everything(frozenset):
    """The keys of a certificate that vouches for any: all run fused, whatever a CPU rounds, and count as verified."""

    def __contains__(self, key):
        return True


EVERYTHING = Everything({"any"})


@pytest.mark.skipif(not is_interpreted(), reason="needs kernels on the CPU")
def test_a_call_made_from_the_trace_has_the_key_of_the_models_own():
    pipe, dtype = small_pipe(torch.bfloat16), torch.bfloat16
    observers = dict.fromkeys(KERNELS_OF_SITE, lambda *_: None)
    with mount(pipe, certified=dict.fromkeys(SITES, EVERYTHING), call_observers=observers) as mounted:
        forwards(pipe, times=1)
        keys = {site: mounted.gates[site].verified_key_texts() for site in KERNELS_OF_SITE}
    transformer = meta_transformer(dtype)
    made: dict[str, set[str]] = {site: set() for site in KERNELS_OF_SITE}
    for call in trace(transformer, transformer_run(transformer, WORKLOAD, dtype)):
        gate = Gate(call.site, certified=EVERYTHING)
        arguments, outputs = call.layout.make(torch.device("cpu"), torch.Tensor.zero_)
        with torch.no_grad():
            operation_of(call, gate)(*arguments, **outputs)
        made[call.site] |= gate.verified_key_texts()
    assert keys == made
    assert all(keys.values())


def test_tracing_leaves_the_model_as_it_was():
    transformer = meta_transformer(torch.bfloat16)
    trace(transformer, transformer_run(transformer, WORKLOAD))
    assert [] == [name for name, module in transformer.named_modules() if "forward" in vars(module)]


def test_each_distinct_call_is_noted_once():
    transformer = meta_transformer(torch.bfloat16)
    operations = [call.layout.operation for call in trace(transformer, transformer_run(transformer, WORKLOAD))]
    assert 1 == operations.count("gelu_tanh")
    assert 2 == operations.count("qk_norm_rope"), "with and without text rows"


def test_modules_of_ones_own_are_noted_by_name():
    site = UserSite("mine", fused=print, modules="transformer_blocks.*.norm2")
    transformer = meta_transformer(torch.bfloat16)
    calls = trace_modules(transformer, [site], transformer_run(transformer, WORKLOAD))
    assert [("mine", "transformer_blocks.0.norm2")] == [(call.site, call.layout.operation) for call in calls]
    assert (1, IMAGE, 128) == next(iter(calls[0].layout.places()))[1].shape
    assert [] == [name for name, module in transformer.named_modules() if "forward" in vars(module)]


def test_a_stand_in_has_the_calls_of_the_kernel_that_it_replaces():
    site = UserSite("mine", fused=print, replaces="gelu_tanh")
    transformer = meta_transformer(torch.bfloat16)
    traced = trace(transformer, transformer_run(transformer, WORKLOAD))
    own = with_stand_ins(traced, [site])
    assert [("mine", "gelu_tanh", site)] == [(call.site, call.layout.operation, call.user_site) for call in own]


def test_a_made_call_has_the_strides_overlaps_and_values_of_its_layout():
    buffer = torch.empty(2, 5, 24)
    query, rest = buffer[..., :8].unflatten(-1, (2, 4)), buffer[..., 8:]
    layout = layout_of("op", (query, rest, 1e-6, None, (rest, True)), {"out": query})
    arguments, outputs = layout.make(torch.device("cpu"), lambda block: block.copy_(torch.arange(block.numel())))
    assert [tensor.stride() for tensor in (query, rest)] == [tensor.stride() for tensor in arguments[:2]]
    assert (1e-6, None, True) == (arguments[2], arguments[3], arguments[4][1])
    assert 8.0 == arguments[1][0, 0, 0].item(), "the slice begins where it began"
    outputs["out"].zero_()
    assert 0.0 == arguments[0].abs().sum().item(), "an output that lies over an input still does"
    assert (2 * 5 * 24 * 4,) == layout.memory_bytes


def test_what_is_neither_tensor_nor_number_is_named():
    with pytest.raises(FuseproofError, match="argument 1 of op is a object"):
        layout_of("op", (torch.empty(1), object()), {})
