"""What a transformer is called with on the meta device: each architecture's own arguments, at any size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import ErnieImageTransformer2DModel, WanTransformer3DModel

from fuseproof.errors import UsageError
from fuseproof.fastpaths.installation import Installation
from fuseproof.pipelines.families import ERNIE_IMAGE, ERNIE_IMAGE_TURBO, FAMILIES, LONGLIVE2, WAN22_TI2V_5B
from fuseproof.pipelines.fastpath_forwards import (
    CHANNELS_TOLD_BY_TOKEN,
    NARROW,
    changes_for_width,
    dtype_of,
    forward_inputs,
    head_width,
    quantized_parts,
    ways_to_tell,
    width_of,
)
from fuseproof.pipelines.fastpath_workloads import (
    REAL,
    Workload,
    in_dtype,
    real_workloads,
    site_calls,
    transformer_run,
    widened,
)

ERNIE, WAN, CAUSAL = "ErnieImageTransformer2DModel", "WanTransformer3DModel", "LongLive2Transformer3DModel"


@pytest.fixture(scope="module")
def ernie() -> Any:
    arguments = {**NARROW[ERNIE], "rope_axes_dim": (32, 48, 48)}
    with torch.device("meta"):
        return ErnieImageTransformer2DModel(**arguments).eval().to(torch.bfloat16)


@pytest.mark.parametrize(
    ("expected", "workload"),
    [((1, 128, 4, 4), Workload("square", 7, 16)), ((2, 128, 1, 34), Workload("a line", 1, 34, batch=2))],
    ids=lambda value: value.name if isinstance(value, Workload) else None,
)
@torch.no_grad()
def test_a_forward_of_ernie_is_a_picture_of_latents(expected: tuple[int, ...], workload: Workload, ernie: Any) -> None:
    (velocity,) = transformer_run(ernie, workload)(Installation())
    assert expected == tuple(velocity.shape)


def test_every_kernel_of_ernie_is_called(ernie: Any) -> None:
    from fuseproof.fastpaths.families import family_of, kernels_of_site

    calls = site_calls(ernie, Workload("guided", 7, 16, batch=2), ERNIE_IMAGE)
    found = {call.layout.operation for call in calls}
    kernels = {kernel for several in kernels_of_site(family_of(ernie)).values() for kernel in several}
    assert kernels | {"row_quantize"} == found


@pytest.fixture(scope="module")
def wan() -> Any:
    arguments = {**NARROW[WAN], "in_channels": CHANNELS_TOLD_BY_TOKEN, "out_channels": CHANNELS_TOLD_BY_TOKEN}
    with torch.device("meta"):
        return in_dtype(WanTransformer3DModel(**arguments).eval(), torch.bfloat16)


def test_every_kernel_of_wan_is_called_with_tokens_told_alike_and_apart(wan: Any) -> None:
    from fuseproof.fastpaths.families import family_of, kernels_of_site

    calls = site_calls(wan, Workload("two samples", 7, 16, batch=2), WAN22_TI2V_5B)
    kernels = {kernel for several in kernels_of_site(family_of(wan)).values() for kernel in several}
    assert kernels == {call.layout.operation for call in calls}
    told = [call.layout.arguments for call in calls if call.layout.operation == "table_layernorm_modulate"]
    shapes = {(embedding.shape, None if rows is None else rows.shape) for _, _, embedding, rows, *_ in told}
    assert {((2, 1, 6, 256), None), ((2, 2, 6, 256), (16,))} == shapes
    assert {torch.float32} == {table.dtype for _, table, *_ in told}, "as from_pretrained leaves it in a bf16 model"


def test_a_wan_that_is_told_one_timestep_runs_one_way(wan: Any) -> None:
    inputs = forward_inputs(wan, 1, 7, 16, torch.bfloat16)
    assert [(1,), (1, 16)] == [tuple(one["timestep"].shape) for one in ways_to_tell(inputs)]
    assert 1 == len(list(ways_to_tell({**inputs, "timestep": inputs["timestep"][:, 0]})))
    assert torch.bfloat16 == dtype_of(wan) != next(wan.parameters()).dtype


@pytest.fixture(scope="module")
def longlive2() -> Any:
    from fuseproof.pipelines.longlive2_model import LongLive2Transformer3DModel

    with torch.device("meta"):
        return in_dtype(LongLive2Transformer3DModel(**NARROW[CAUSAL]).eval(), torch.bfloat16)


def test_every_kernel_of_longlive2_is_called_with_frames_told_alike_and_apart(longlive2: Any) -> None:
    from fuseproof.fastpaths.families import family_of, kernels_of_site

    calls = site_calls(longlive2, Workload("two samples", 7, 32, batch=2), LONGLIVE2)
    kernels = {kernel for several in kernels_of_site(family_of(longlive2)).values() for kernel in several}
    assert kernels == {call.layout.operation for call in calls}
    told = [call.layout.arguments for call in calls if call.layout.operation == "table_layernorm_modulate"]
    shapes = {(embedding.shape, None if rows is None else rows.shape) for _, _, embedding, rows, *_ in told}
    assert {((2, 8, 6, 256), (32,)), ((2, 1, 6, 256), None)} == shapes, "a row for each frame, and one for all"
    (turned,) = (call.layout for call in calls if call.layout.operation == "across_heads_norm_rope")
    assert ["out_key"] == [name for name, _ in turned.keywords], "keys go where they are kept"


@pytest.mark.parametrize(
    ("expected", "rows"), [((2, 48, 8, 2, 4), 16), ((2, 48, 2, 334, 2), 334), ((2, 48, 1, 2, 2), 1)]
)
@torch.no_grad()
def test_a_forward_of_longlive2_is_one_chunk(expected: tuple[int, ...], rows: int, longlive2: Any) -> None:
    (velocity,) = transformer_run(longlive2, Workload("a chunk", 7, rows, batch=2))(Installation())
    assert expected == tuple(velocity.shape)
    inputs = forward_inputs(longlive2, 2, 7, rows, torch.bfloat16)
    assert expected[2] == inputs["timestep"].shape[1]
    assert 1 == len(list(ways_to_tell(inputs)))


def test_ernie_quantises_rows_of_both_widths(ernie: Any) -> None:
    shapes = [tuple(None if part is None else tuple(part.shape) for part in parts) for parts in
              quantized_parts(ernie, 2, 5, torch.bfloat16)]  # fmt: skip
    assert [((5, 2, 256), None), ((5, 2, 768), None)] == shapes


def test_ernie_widens_by_whole_heads(ernie: Any) -> None:
    assert (256, 128) == (width_of(ernie), head_width(ernie))
    assert {"num_attention_heads": 4, "hidden_size": 512, "ffn_hidden_size": 1536} == changes_for_width(ernie, 4)
    assert 512 == width_of(widened(ernie, 512))
    with pytest.raises(UsageError, match="a multiple of 128 is needed"):
        widened(ernie, 200)


def test_every_family_has_real_sizes() -> None:
    assert set(FAMILIES) == set(REAL)
    assert {2, 1} == {workload.batch for workload in real_workloads(ERNIE_IMAGE, is_embedded=False)}
    assert [1] == [workload.batch for workload in real_workloads(ERNIE_IMAGE_TURBO, is_embedded=False)]
    assert [256] == [workload.image_rows for workload in real_workloads(ERNIE_IMAGE, is_embedded=True)]
    size = (LONGLIVE2.embedded_width // 32) * (LONGLIVE2.embedded_height // 32)
    assert [8 * size] == [workload.image_rows for workload in real_workloads(LONGLIVE2, is_embedded=True)], "a chunk"
    assert (832 // 32) * (480 // 32) * 8 == real_workloads(LONGLIVE2, is_embedded=False)[0].image_rows
