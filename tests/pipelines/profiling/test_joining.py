"""Launches joined to module, site, line and operation: from handmade events, and from those of an H200."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fuseproof.pipelines.profiling.events import Call, Recording
from fuseproof.pipelines.profiling.joining import join
from fuseproof.pipelines.profiling.launches import PIPELINE, TRANSFORMER, Names
from fuseproof.pipelines.profiling.profile import Seen, tables
from tests.pipelines.profiling import event_lists as given
from tests.pipelines.profiling.event_lists import kernel, module, on_device, operation, python, runtime, site, tensor

NAMES = Names({1: (TRANSFORMER, ""), 2: (TRANSFORMER, "norm")}, blocks=(("blocks.0", "B"), ("blocks.1", "B")),
              denoiser=1, block_sites=frozenset({"all_blocks"}))  # fmt: skip


def test_a_kernel_belongs_to_what_stands_round_its_launch_and_not_round_its_run():
    calls = [
        module(1, 0, 100), python("forward", 1, 99, line=10),
        module(2, 10, 50, caller_line=12, kind="LayerNorm"), python("forward", 11, 49, "torch/nn/modules/normal.py"),
        operation("aten::layer_norm", 20, 40, tensor(1, 2, 8)),
        operation("aten::native_layer_norm", 21, 39, tensor(1, 2, 8)),
        runtime(5, 30),
    ]  # fmt: skip
    (launch,) = join(on_device(calls, [kernel(5, 200, 260)], [given.given(9, 25, 64)]), NAMES)
    assert ("norm", "LayerNorm", TRANSFORMER) == (launch.module, launch.module_class, launch.component)
    assert ("transformers/transformer_some.py:12", "aten::native_layer_norm", "norm") == (
        launch.line, launch.operation, launch.class_,
    )  # fmt: skip
    assert ("2x8 float32", 128, 60) == (launch.key, launch.bytes, launch.nanoseconds)


def test_a_triton_kernel_without_an_operation_is_told_by_the_call_of_its_launch():
    mark, call = site(3, "norm_modulate", 20, 40, inputs=(tensor(1, 4, 8),), outputs=(tensor(2, 4, 8),))
    calls = [
        module(1, 0, 100), python("run", 2, 98, "fuseproof/fastpaths/sites/some/blocks.py", 5), mark,
        python("run", 19, 41, "fuseproof/fastpaths/gates.py", 7, caller_line=9),
        python("fused", 21, 39, "fuseproof/fastpaths/kernels/norm_modulate.py", 70, caller_line=9),
        python("run", 22, 38, "triton/runtime/jit.py", 3, caller_line=88), runtime(5, 30, "cuLaunchKernelEx"),
    ]  # fmt: skip
    (launch,) = join(on_device(calls, [kernel(5, 50, 60, "_norm_modulate_kernel")], sites=[call]), NAMES)
    assert ("norm_modulate", "fused", "norm") == (launch.site, launch.site_state, launch.class_)
    assert ("triton:_norm_modulate_kernel", "kernels/norm_modulate.py:88") == (launch.operation, launch.line)
    assert ("4x8 float32", 256) == (launch.key, launch.bytes)


def test_a_gate_round_whole_blocks_stands_for_one_block_after_the_other():
    marked = [site(n, "all_blocks", 10 * n, 10 * n + 9) for n in (1, 2)]
    inner = site(5, "norm_modulate", 22, 28)
    calls = [module(1, 0, 100), *(mark for mark, _ in (*marked, inner)), runtime(1, 13), runtime(2, 24), runtime(3, 40)]
    work = [kernel(1, 50, 51), kernel(2, 52, 53), kernel(3, 54, 55)]
    found = join(on_device(calls, work, sites=[call for _, call in (*marked, inner)]), NAMES)
    assert [("blocks.0", "all_blocks"), ("blocks.1", "norm_modulate"), ("", None)] == [
        (one.module, one.site) for one in found
    ]


def test_a_gate_that_did_not_run_once_a_block_stands_for_none():
    marked = [site(n, "all_blocks", 10 * n, 10 * n + 9) for n in (1, 2, 3)]
    calls = [module(1, 0, 100), *(mark for mark, _ in marked), runtime(1, 13)]
    (launch,) = join(on_device(calls, [kernel(1, 50, 51)], sites=[call for _, call in marked]), NAMES)
    assert ("", "all_blocks") == (launch.module, launch.site)


def test_another_thread_is_another_stack_and_a_lost_launch_is_nobodys():
    calls = [module(1, 0, 100), runtime(1, 30, thread=2)]
    there, lost = join(on_device(calls, [kernel(1, 50, 51), kernel(9, 60, 70)]), NAMES)
    assert (None, PIPELINE, True) == (there.module, there.component, there.is_attributed)
    assert (False, 10) == (lost.is_attributed, lost.nanoseconds)


def test_a_method_called_without_the_modules_call_is_told_by_its_file():
    names = replace(NAMES, files={"transformer_some.py": TRANSFORMER})
    calls = [python("forward_chunk", 0, 100, line=10), operation("aten::mul", 10, 20), runtime(1, 15)]
    (launch,) = join(on_device(calls, [kernel(1, 50, 51)]), names)
    assert (TRANSFORMER, "") == (launch.component, launch.module)


@pytest.mark.parametrize(
    "name, address, in_site, owner",
    [
        ("aten::addmm", 77, False, ("x_embedder", "Linear")),
        ("aten::addmm", 78, False, ("", "Linear")),
        ("aten::addmm", 77, True, ("", "Linear")),
        ("aten::mul", 77, False, ("", "Linear")),
    ],
    ids=["its weight", "another", "a site's", "no product"],
)
def test_a_product_outside_of_modules_belongs_to_the_module_of_its_weight(name, address, in_site, owner):
    names = replace(NAMES, weights={77: (TRANSFORMER, "x_embedder", "Linear")})
    marks, sites = zip(site(3, "modulation", 5, 90), strict=True) if in_site else ((), ())
    calls = [module(1, 0, 100), *marks, operation(name, 10, 20, tensor(1, 4, 4), tensor(address, 4, 4))]
    (launch,) = join(Recording(tuple(calls), sites=sites), names)
    assert owner == (launch.module, launch.module_class)
    recording = on_device([*calls, runtime(1, 15)], [kernel(1, 50, 51, "gemm")], sites=sites)
    assert owner == (join(recording, names)[0].module, launch.module_class)


@pytest.mark.parametrize(
    "before, after, line",
    [(12, 15, "12-15"), (12, 12, "12"), (30, 15, "30"), (None, None, "10 in forward")],
    ids=["between two calls", "on one line", "in a loop", "nothing tells"],
)
def test_an_operator_lies_between_the_calls_before_and_after_it(before, after, line):
    calls = [python("forward", 0, 100, line=10), operation("aten::mul", 30, 40), runtime(1, 35)]
    calls += [] if before is None else [python("f", 20, 21, caller_line=before)]
    calls += [] if after is None else [python("g", 50, 51, caller_line=after)]
    (launch,) = join(on_device(calls, [kernel(1, 60, 61)]), NAMES)
    assert f"transformers/transformer_some.py:{line}" == launch.line


def test_of_an_operation_with_several_kernels_the_longest_carries_the_bytes():
    calls = [operation("aten::addmm", 0, 50, tensor(1, 4, 4), tensor(2, 4, 4)), runtime(1, 10), runtime(2, 20)]
    work = [kernel(1, 60, 61, "Memset (Device)"), kernel(2, 62, 90, "nvjet_gemm")]
    memset, product = join(on_device(calls, work, [given.given(9, 5, 64)]), NAMES)
    assert [("memset", None), ("gemm", 192)] == [(one.class_, one.bytes) for one in (memset, product)]


def test_on_a_cpu_an_operation_has_its_own_time_and_a_product_its_preparations_too():
    calls = [
        operation("aten::linear", 0, 100), operation("aten::addmm", 5, 95, tensor(1, 4)),
        operation("aten::copy_", 10, 20, tensor(2, 4)), operation("aten::gelu", 100, 150),
        operation("aten::layer_norm", 200, 300), operation("aten::native_layer_norm", 210, 290),
        operation("aten::mul", 220, 250),
    ]  # fmt: skip
    found = join(Recording(tuple(calls)), NAMES)
    expected = [("aten::addmm", 90), ("aten::gelu", 50), ("aten::native_layer_norm", 50), ("aten::mul", 30)]
    assert expected == [(one.operation, one.nanoseconds) for one in found]


@pytest.mark.parametrize("name, launches", [("longcat_eager", 235), ("longcat_fused", 43)])
def test_on_an_h200_all_time_has_a_module_and_a_line_and_the_sums_hold(name, launches):
    recording, names = given.recorded(name)
    found = tables(Seen((recording,)), names, {}, steps_of_request={}, bandwidth_gb_s=4000.0, paths=[])
    (step,) = found["steps"]
    device_us = sum(one.end - one.start for one in recording.work) / 1000
    assert (launches, pytest.approx(device_us)) == (step["kernels"], step["device_us"])
    assert pytest.approx(device_us) == sum(row["device_us"] for row in found["rows"])
    assert launches == sum(row["calls"] for row in found["rows"])
    shares = found["attribution"]
    assert (1.0, 1.0, 1.0) == (shares["to_module"], shares["to_site_or_module"], shares["to_line"])
    assert "other" not in {row["class"] for row in found["rows"]}


def test_on_an_h200_fused_kernels_have_their_site_and_products_their_block():
    recording, names = given.recorded("longcat_fused")
    found = join(recording, names)
    kernels = {one.kernel: one for one in found}
    gelu, norm = kernels["_gelu_tanh_kernel"], kernels["_layernorm_modulate_kernel"]
    assert ("gelu_tanh", "elementwise", "transformer_blocks.0") == (gelu.site, gelu.class_, gelu.module)
    assert ("layernorm_modulate", "norm", "fused") == (norm.site, norm.class_, norm.site_state)
    products = {one.module for one in found if one.class_ == "gemm" and one.site == "packed_blocks"}
    assert {path for path, _ in given.BLOCKS} == products
    attention = [one for one in found if one.class_ == "attention"]
    assert [("aten::_cudnn_attention_forward", path) for path, _ in given.BLOCKS] == [
        (one.operation, one.module) for one in attention
    ]


def test_on_an_h200_bytes_are_those_of_the_tensors_not_of_the_allocator():
    recording, names = given.recorded("longcat_eager")
    gelu = next(one for one in join(recording, names) if one.module == "single_transformer_blocks.0.act_mlp")
    assert 2 * 4608 * 12288 * 2 == gelu.bytes


def test_events_of_any_order_are_joined_alike():
    recording, names = given.recorded("longcat_fused")
    backwards = replace(recording, calls=tuple(reversed(recording.calls)), work=tuple(reversed(recording.work)))
    plain = [replace(one, call=None) for one in join(recording, names)]
    assert plain == [replace(one, call=None) for one in join(backwards, names)]
    assert all(isinstance(call, Call) for call in backwards.calls)
