"""The class of a launch, by operation and by kernel."""

from __future__ import annotations

import pytest

from fuseproof.pipelines.profiling.classing import CLASSES, OPERATIONS, class_of
from fuseproof.pipelines.profiling.events import KERNEL, MEMCPY, MEMSET

NCHW = "void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16, ...>"
CASES = [
    ("aten::addmm", "nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", "gemm"),
    ("aten::addmm", "void cublasLt::splitKreduce_kernel<32, 16, int, float>", "gemm"),
    ("aten::_scaled_mm", "cutlass::device_kernel", "gemm"),
    ("aten::_cudnn_attention_forward", "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_", "attention"),
    ("aten::_flash_attention_forward", "void pytorch_flash::flash_fwd_kernel<...>", "attention"),
    ("aten::_efficient_attention_forward", "fmha_cutlassF_bf16_aligned_64x128_rf_sm80", "attention"),
    ("aten::cudnn_convolution", "sm90_xmma_fprop_implicit_gemm_bf16bf16", "convolution"),
    ("aten::cudnn_convolution", NCHW, "copy"),
    ("aten::convolution", "void at::native::elementwise_kernel<128, 4>", "convolution"),
    ("aten::add_", "void at::native::elementwise_kernel<128, 4>", "elementwise"),
    ("aten::native_layer_norm", "vectorized_layer_norm_kernel", "norm"),
    ("aten::native_group_norm", "RowwiseMomentsCUDAKernel", "norm"),
    ("aten::copy_", "void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda>", "copy"),
    ("aten::cat", "CatArrayBatchedCopy_vectorized", "cat"),
    ("aten::cat", "void at::native::elementwise_kernel<128, 4>", "cat"),
    ("aten::mean", "void at::native::reduce_kernel<512, 1>", "reduce"),
    ("aten::some_new_pointwise", "void at::native::vectorized_elementwise_kernel<4>", "elementwise"),
    ("aten::some_new_pointwise", "what_no_one_knows", "elementwise"),
    ("aten::fill_", "void at::native::vectorized_elementwise_kernel<4, FillFunctor>", "memset"),
    ("c10d::allreduce_", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "communication"),
    (None, "ncclDevKernel_AllGather_RING_LL", "communication"),
    (None, "_attention_mlp_gelu_kernel", "elementwise"),
    (None, "_gated_residual_layernorm_modulate_kernel", "norm"),
    (None, "_group_norm_statistics_kernel", "reduce"),
    (None, "_channels_last_copy_kernel", "copy"),
    (None, "triton_poi_fused_add_mul_3", "elementwise"),
    (None, "triton_red_fused_mean_1", "reduce"),
    (None, "flash_fwd_hdim128_bf16", "attention"),
    (None, "what_no_one_knows", "other"),
]


@pytest.mark.parametrize("operation, kernel, expected", CASES)
def test_the_operation_decides_first_and_the_kernel_second(operation, kernel, expected):
    assert expected == class_of(KERNEL, kernel, [operation] if operation else [], None)


def test_copies_and_memsets_inside_an_operation_are_what_they_are():
    assert "copy" == class_of(MEMCPY, "Memcpy DtoD", ["aten::_to_copy"], None)
    assert "memset" == class_of(MEMSET, "Memset (Device)", ["aten::addmm"], None)
    assert "cat" == class_of(MEMCPY, "Memcpy DtoD", ["aten::cat"], None)


def test_a_kernel_of_ones_own_takes_the_class_of_its_site():
    assert "norm" == class_of(KERNEL, "mine", [], "my_rmsnorm")


def test_every_class_that_operations_have_is_one_of_the_eleven():
    assert 11 == len(CLASSES)
    assert set(OPERATIONS) <= set(CLASSES)
