"""Fusable chains, and what an operation reads and writes."""

from __future__ import annotations

import pytest

from fuseproof.pipelines.profiling.chains import chains_of, chains_table, common_owner, owner_text
from fuseproof.pipelines.profiling.known_chains import fast_path_for, fast_paths
from fuseproof.pipelines.profiling.launches import PIPELINE, TRANSFORMER, Launch
from fuseproof.pipelines.profiling.tables import Step
from fuseproof.pipelines.profiling.tensors import MemoryUses, bytes_moved, key_text, reads_and_writes
from tests.pipelines.profiling.event_lists import given, operation, recorded, tensor

SIZE = 1024 * 4


def pointwise(name: str, time: int, reads: str, writes: str, **more) -> Launch:
    """A launch of 1000 ns on tensors of 4 KiB, named by letters."""
    uses = [tuple(tensor(ord(letter), 1024) for letter in letters) for letters in (reads, writes)]
    settings = {"class_": "elementwise", "component": TRANSFORMER, "module": "blocks.0", "line": "model.py:1"} | more
    return Launch(
        name, settings.pop("class_"), time, time, 1000, inputs=uses[0], outputs=uses[1], operation=name,
        bytes=bytes_moved(*uses), call=time, **settings,
    )  # fmt: skip


def names(launches) -> list[list[str]]:
    return [[one.operation for one in chain.launches] for chain in chains_of(launches)]


def test_what_hands_on_a_tensor_is_a_chain_and_what_does_not_is_none():
    mul, add, lone = pointwise("mul", 1, "a", "b"), pointwise("add", 2, "bc", "d"), pointwise("neg", 3, "x", "y")
    assert [["mul", "add"]] == names([mul, add, lone])


def test_two_chains_may_take_turns_and_share_no_launch():
    launches = [
        pointwise("m1", 1, "a", "b"), pointwise("m2", 2, "k", "l"), pointwise("a1", 3, "b", "c"),
        pointwise("a2", 4, "l", "m"),
    ]  # fmt: skip
    assert [["m1", "a1"], ["m2", "a2"]] == names(launches)


@pytest.mark.parametrize("class_", ["gemm", "attention", "convolution", "communication"])
def test_a_product_between_them_ends_a_chain(class_):
    launches = [
        pointwise("mul", 1, "a", "b"), pointwise("product", 2, "b", "c", class_=class_), pointwise("add", 3, "bc", "d"),
    ]  # fmt: skip
    assert [] == names(launches)


def test_a_memset_between_them_ends_no_chain():
    launches = [
        pointwise("pow", 1, "a", "b"), pointwise("sum", 2, "b", "c", class_="reduce"),
        pointwise("fill_", 3, "", "c", class_="memset"), pointwise("div_", 4, "c", "c"),
    ]  # fmt: skip
    assert [["pow", "sum", "div_"]] == names(launches)


def test_another_stream_is_another_chain():
    launches = [pointwise("mul", 1, "a", "b"), pointwise("add", 2, "b", "c", stream=9)]
    assert [] == names(launches)


def test_the_floor_is_what_comes_in_and_what_is_read_later():
    launches = [
        pointwise("mul", 1, "ab", "c"), pointwise("norm", 2, "c", "d"), pointwise("add", 3, "dc", "e"),
        pointwise("product", 4, "d", "z", class_="gemm"),
    ]  # fmt: skip
    (chain,) = chains_of(launches)
    assert (4 * SIZE, 8 * SIZE) == (chain.floor_bytes, chain.bytes)  # a, b in; e and d, which the product reads, out


def test_alike_chains_of_repeated_blocks_are_one_entry_ranked_by_saving():
    steps = [
        Step("DenoisingStage", index, 0, 9, (
            pointwise("aten::mul", 1, "a", "b"), pointwise("aten::add", 2, "b", "c"),
            pointwise("aten::mm", 3, "c", "d", class_="gemm"),
            pointwise("aten::mul", 4, "d", "e", module="blocks.1"),
            pointwise("aten::add", 5, "e", "f", module="blocks.1"),
            pointwise("aten::mm", 6, "f", "g", class_="gemm"),
            pointwise("aten::cos", 7, "g", "h", module="blocks.1.x"),
            pointwise("aten::sin", 8, "h", "i", module="blocks.1.y"),
        ))
        for index in (1, 2)
    ]  # fmt: skip
    kernels, components = {"gated_residual": ("gated_residual",)}, {"gated_residual": TRANSFORMER}
    report = {"sites": {"gated_residual": {"state": "declined", "reason": "no card"}}}
    first, second = chains_table(steps, 8.192, fast_paths(report, kernels, components))
    assert ("blocks.*", ["aten::mul", "aten::add"], 2.0, 4.0) == (
        first["module"], first["operations"], first["calls_per_step"], first["device_us_per_step"],
    )  # fmt: skip
    assert (2.0, 2.0, 2 * 4 * SIZE) == (
        first["fused_floor_us_per_step"], first["saving_us_per_step"], first["bytes_per_step"],
    )  # fmt: skip
    assert ("gated_residual", "declined: no card") == (first["fast_path"], first["fast_path_reason"])
    assert ("blocks.*", None, "1024 float32") == (second["module"], second["fast_path"], second["shape"])


LONGCAT = {
    "layernorm_modulate": ("layernorm_modulate",),
    "qk_norm_rope": ("qk_norm_rope",),
    "gelu_tanh": ("gelu_tanh",),
    "gated_residual": ("gated_residual", "gated_residual_layernorm_modulate"),
}
NORM = "native_layer_norm add mul add"


@pytest.mark.parametrize(
    "operations, line, expected",
    [
        (NORM, "normalization.py:201", "layernorm_modulate"),
        (f"mul add {NORM}", "transformer.py:3", "gated_residual"),
        ("mul add", "transformer.py:3", "gated_residual"),
        ("_fused_rms_norm neg cat cat copy_ mul add", "transformer.py:3", "qk_norm_rope"),
        ("gelu cat", "transformer.py:3", "gelu_tanh"),
        ("pow mean sum", "qk_norm_rope.py:77", "qk_norm_rope"),
        ("pow mean sum", "transformer.py:77", None),
        ("cos copy_", "embeddings.py:1", None),
    ],
)
def test_the_fast_path_for_a_chain_is_told_by_its_operations_or_by_whose_reference_it_is(operations, line, expected):
    chain = [pointwise(f"aten::{name}", n, "a", "b", line=line) for n, name in enumerate(operations.split())]
    report = {"sites": {name: {"state": "off", "reason": "not requested"} for name in LONGCAT}}
    found = fast_path_for(chain, fast_paths(report, LONGCAT, dict.fromkeys(LONGCAT, TRANSFORMER)))
    assert (None if expected is None else (expected, "off: not requested")) == found


def test_without_a_bandwidth_nothing_is_promised():
    step = Step("DenoisingStage", 1, 0, 9, (pointwise("a", 1, "a", "b"), pointwise("b", 2, "b", "c")))
    (row,) = chains_table([step], None, [])
    assert (None, None) == (row["fused_floor_us_per_step"], row["saving_us_per_step"])


@pytest.mark.parametrize(
    "modules, owner",
    [
        (["blocks.3.attn.norm_q", "blocks.3.attn"], "blocks.*.attn"),
        (["blocks.3.norm", "blocks.4.norm"], "blocks"),
        (["blocks.3", ""], ""),
        (["a.b", "a.b"], "a.b"),
    ],
)
def test_the_common_owner_of_modules(modules, owner):
    assert owner == common_owner(modules)


@pytest.mark.parametrize(
    "modules, owner",
    [
        (["blocks.3.norm", "blocks.3"], "blocks.*"),
        (["blocks.9.attn", "blocks.10.norm1"], "blocks.* + blocks.*"),
        (["blocks.3.ff.net.0.proj", "blocks.3.ff.net.2"], "blocks.*.ff.net.* + blocks.*.ff.net.*"),
        (["blocks.18.attn", "blocks.18.attn", "single_blocks.0"], "blocks.* + single_blocks.*"),
        (["blocks.18", ""], "blocks.* + transformer"),
        (["", ""], ""),
    ],
)
def test_a_chain_over_two_modules_names_both(modules, owner):
    assert owner == owner_text([pointwise("add", n, "a", "b", module=module) for n, module in enumerate(modules)])


def test_a_chain_goes_with_the_component_that_launched_most_of_it():
    copied = pointwise("aten::copy_", 0, "a", "b", module="")
    loop = [pointwise(f"aten::{name}", 1, "b", "c", component=PIPELINE, module="") for name in ("sub", "mul", "add")]
    report = {"sites": {name: {"state": "off", "reason": "why"} for name in ("gated_residual", "guidance_step")}}
    kernels = {name: (name,) for name in report["sites"]}
    components = {"gated_residual": TRANSFORMER, "guidance_step": PIPELINE}
    assert ("guidance_step", "off: why") == fast_path_for([copied, *loop], fast_paths(report, kernels, components))
    assert "transformer + pipeline" == owner_text([copied, *loop])


def test_a_site_that_runs_but_ran_eagerly_here_says_so():
    report = {"sites": {"timestep_embedding": {"state": "fused", "reason": None}}}
    eager = {"site": "timestep_embedding", "site_state": "eager", "module": "time_embed.time_proj"}
    chain = [pointwise("aten::sin", 1, "a", "b", **eager), pointwise("aten::cat", 2, "b", "c", **eager)]
    assert ("timestep_embedding", "its calls here ran eagerly") == fast_path_for(chain, fast_paths(report, {}, {}))


TABLES = ("timestep_embedding", "rotary_tables", "packed_blocks")


@pytest.mark.parametrize(
    "operations, more, expected",
    [
        ("arange exp sin cos", {"module": "time_embed.time_proj"}, ("timestep_embedding", "off: why")),
        ("arange outer cos sin", {"module": "pos_embed"}, ("rotary_tables", "off: why")),
        ("pow mean rsqrt mul", {"module": "blocks.0.attn.norm_q"}, ("qk_norm_rope", "off: why")),
        ("pow mean rsqrt mul", {"module": "blocks.0.attn.norm_added_k"}, ("qk_norm_rope", "off: why")),
        ("sin cos", {"site": "timestep_embedding", "site_state": "eager"},
         ("timestep_embedding", "off: why")),
        ("sin cos", {"site": "packed_blocks", "site_state": "fused"},
         ("packed_blocks", "fused: these launches are its own")),
        ("gelu cat", {"site": "packed_blocks", "site_state": "fused"}, ("gelu_tanh", "off: why")),
        ("sin cos", {}, None),
    ],
)  # fmt: skip
def test_where_no_kernel_is_known_a_site_is_told_by_its_modules_or_its_launches(operations, more, expected):
    chain = [pointwise(f"aten::{name}", n, "a", "b", **more) for n, name in enumerate(operations.split())]
    report = {"sites": {name: {"state": "off", "reason": "why"} for name in (*LONGCAT, *TABLES)}}
    paths = fast_paths(report, LONGCAT, dict.fromkeys((*LONGCAT, *TABLES), TRANSFORMER))
    assert expected == fast_path_for(chain, paths)


@pytest.mark.parametrize(
    "call, memory, expected",
    [
        (operation("aten::mul", 10, 20, tensor(1, 8), tensor(2, 8)), [given(3, 12, 512)], 2 * 32 + 512),
        (operation("aten::mul", 10, 20, tensor(1, 8), tensor(1, 8)), [given(3, 12, 32)], 32 + 32),
        (operation("aten::add_", 10, 20, tensor(1, 8), tensor(2, 8)), [], 3 * 32),
        (operation("aten::copy_", 10, 20, tensor(1, 8), tensor(2, 8, dtype="bfloat16")), [], 32 + 16),
        (operation("aten::mm", 10, 20, tensor(1, 8), tensor(2, 8), tensor(3, 4)), [], 2 * 32 + 16),
        (operation("aten::mm", 10, 20, tensor(1, 8)), [given(4, 11, 99), given(4, 15, -99), given(5, 16, 7)], 32 + 7),
        (operation("aten::_local_scalar_dense", 10, 20, tensor(1, 1)), [], 4),
        (operation("aten::arange", 10, 20), [], None),
    ],
    ids=[
        "a result",
        "the same tensor twice",
        "in place",
        "written only",
        "out=",
        "workspace",
        "to the host",
        "nothing",
    ],
)
def test_each_distinct_input_is_read_once_and_each_output_written_once(call, memory, expected):
    assert expected == bytes_moved(*reads_and_writes(call, MemoryUses(memory)))


def test_a_result_has_the_bytes_of_the_tensor_that_is_read_later():
    first = operation("aten::mul", 10, 20, tensor(1, 8))
    calls = [first, operation("aten::add", 30, 40, tensor(2, 100))]
    _, (made,) = reads_and_writes(first, MemoryUses([given(2, 12, 512)], calls))
    assert 400 == made.bytes


def test_memory_that_was_given_out_again_is_other_memory():
    memory = MemoryUses([given(1, 5, 32), given(1, 15, -32), given(1, 25, 32)])
    first, second, before = (memory.dated(tensor(1, 8), time).storage for time in (10, 30, 2))
    assert 3 == len({first, second, before})


def test_keys_tell_shapes_dtypes_and_other_strides():
    turned = operation("x", 0, 1, tensor(1, 2, 8)).inputs[0]
    turned = type(turned)(1, (8, 2), (1, 8), "bfloat16", 32)
    assert "2x8 float32, 8x2 bfloat16 strides 1x8" == key_text([tensor(1, 2, 8), turned])


def test_on_an_h200_eager_norm_and_modulation_is_a_chain_with_a_floor_below_its_time():
    from fuseproof.pipelines.profiling.joining import join

    recording, module_names = recorded("longcat_eager")
    step = Step("DenoisingStage", 1, 0, 1, tuple(join(recording, module_names)))
    rows = chains_table([step], 4000.0, [])
    (norm,) = (row for row in rows if row["module"] == "single_transformer_blocks.*.norm")
    assert ["aten::native_layer_norm", "aten::add", "aten::mul", "aten::add"] == norm["operations"]
    assert 2.0 == norm["calls_per_step"]
    assert 0 < norm["fused_floor_us_per_step"] < norm["device_us_per_step"]
    assert len(step.launches) > sum(len(chain.launches) for chain in chains_of(step.launches))
