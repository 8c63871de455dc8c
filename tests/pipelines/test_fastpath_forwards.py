"""What a transformer is called with on the meta device: each architecture's own arguments, at any size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import ErnieImageTransformer2DModel

from fuseproof.errors import UsageError
from fuseproof.fastpaths.installation import Installation
from fuseproof.pipelines.families import ERNIE_IMAGE, ERNIE_IMAGE_TURBO, FAMILIES
from fuseproof.pipelines.fastpath_forwards import NARROW, changes_for_width, head_width, quantized_parts, width_of
from fuseproof.pipelines.fastpath_workloads import REAL, Workload, real_workloads, site_calls, transformer_run, widened

ERNIE = "ErnieImageTransformer2DModel"


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
