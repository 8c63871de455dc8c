"""The class of a launch: by its aten operation first, by its kernel's name second."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fuseproof.pipelines.profiling.events import MEMCPY, MEMSET

GEMM, ATTENTION, CONVOLUTION, NORM, ELEMENTWISE, COPY, REDUCE, CAT, COMMUNICATION, SET, OTHER = CLASSES = (
    "gemm", "attention", "convolution", "norm", "elementwise", "copy", "reduce", "cat", "communication", "memset",
    "other",
)  # fmt: skip
IN_CHAINS = frozenset((ELEMENTWISE, NORM, COPY, CAT, REDUCE))

OPERATIONS = {
    GEMM: "mm addmm bmm baddbmm linear mkldnn_linear matmul mv addmv addbmm dot vdot einsum _scaled_mm _scaled_mm_v2 "
    "_scaled_grouped_mm _grouped_mm _int_mm _addmm_activation _mixed_dtypes_linear",
    CONVOLUTION: "convolution _convolution conv1d conv2d conv3d cudnn_convolution cudnn_convolution_transpose "
    "mkldnn_convolution slow_conv3d slow_conv3d_forward _slow_conv2d_forward thnn_conv2d conv_depthwise3d "
    "_conv_depthwise2d convolution_overrideable conv_transpose2d conv_transpose3d miopen_convolution",
    NORM: "layer_norm native_layer_norm rms_norm _fused_rms_norm group_norm native_group_norm batch_norm "
    "native_batch_norm cudnn_batch_norm instance_norm",
    COPY: "copy_ clone contiguous to _to_copy index index_select gather embedding constant_pad_nd pad pad_sequence "
    "reflection_pad2d replication_pad2d replication_pad3d roll repeat flip pixel_shuffle pixel_unshuffle "
    "channel_shuffle _local_scalar_dense item index_put_ scatter scatter_ masked_select take tril triu "
    "upsample_nearest2d upsample_nearest3d _upsample_nearest_exact2d _upsample_nearest_exact3d",
    CAT: "cat stack _cat concat hstack vstack",
    REDUCE: "sum mean amax amin max min any all prod argmax argmin std var var_mean norm linalg_vector_norm cumsum "
    "cumprod logsumexp softmax _softmax log_softmax _log_softmax topk sort median nonzero count_nonzero aminmax",
    SET: "zero_ fill_ zeros zeros_like ones full",
}
_CLASS_OF = {f"aten::{name}": class_ for class_, names in OPERATIONS.items() for name in names.split()}
_ATTENTION_OPERATION = re.compile(r"attention|flash_attn|sage_?attn", re.IGNORECASE)

OWN_KERNELS = (
    (re.compile(r"statistics"), REDUCE),
    (re.compile(r"norm|welford"), NORM),
    (re.compile(r"copy|bordered|conv_input"), COPY),
    (re.compile(r"rope|rotate|gelu|geglu|gated|residual|guidance|upsample|downsample|table|quantize|quotient"),
     ELEMENTWISE),
)  # fmt: skip
"""Of fused kernels, by the names of their functions or sites; the first that fits."""

KERNEL_NAMES = (
    (re.compile(r"^nccl|ncclDev|all_?reduce_kernel|one_shot_all"), COMMUNICATION),
    (re.compile(r"^Memset"), SET),
    (re.compile(r"^Memcpy|nchwToNhwc|nhwcToNchw|nchw_to_nhwc|nhwc_to_nchw|nhwcAddPadding|direct_copy|copy_kernel"
                r"|CopyKernel|transpose_readWrite", re.IGNORECASE), COPY),
    (re.compile(r"CatArray|cat_kernel"), CAT),
    (re.compile(r"flash|fmha|mha_|attention|cudnn_generated_fort_native_sdpa|sdpa", re.IGNORECASE), ATTENTION),
    (re.compile(r"conv|implicit_gemm|wgrad|dgrad|fprop|winograd|fft2d", re.IGNORECASE), CONVOLUTION),
    (re.compile(r"gemm|gemv|cutlass|nvjet|cublas|splitK|xmma|matmul|_mm_|cijk", re.IGNORECASE), GEMM),
    (re.compile(r"layer_?norm|rms_?norm|group_?norm|batch_?norm|RowwiseMoments|welford", re.IGNORECASE), NORM),
    (re.compile(r"reduce|softmax|argmax|scan_|sort", re.IGNORECASE), REDUCE),
    (re.compile(r"index_|gather|scatter|embedding", re.IGNORECASE), COPY),
    (re.compile(r"elementwise|pointwise|triton_poi|Functor"), ELEMENTWISE),
    (re.compile(r"^triton_red"), REDUCE),
    (re.compile(r"^triton_per"), NORM),
)  # fmt: skip
LAYOUT_COPY = KERNEL_NAMES[2][0]
"""Copies between layouts that a convolution's library makes count as copies, not as the convolution."""

_OWN_NAME = re.compile(r"^_\w+_kernel$")

_WITHOUT_WORK = (
    "view as_strided as_strided_ expand expand_as permute transpose t numpy_T mT unsqueeze squeeze slice select split "
    "split_with_sizes chunk unbind narrow reshape flatten unflatten _unsafe_view alias detach detach_ view_as movedim "
    "swapaxes real imag view_as_real view_as_complex diagonal tensor_split lift lift_fresh resolve_conj resolve_neg "
    "_reshape_alias empty empty_like empty_strided new_empty new_empty_strided resize_ set_ to _to_copy contiguous "
    "linear matmul conv1d conv2d conv3d convolution _convolution layer_norm rms_norm group_norm dropout result_type "
    "scaled_dot_product_attention is_nonzero item type_as broadcast_tensors clone stack zeros zeros_like ones "
    "ones_like full full_like new_zeros new_ones einsum pad softmax size stride"
)
WITHOUT_WORK = frozenset(prefix + name for prefix in ("aten::", "") for name in _WITHOUT_WORK.split())
"""On a CPU: operations that only look at memory, give it out, or call another one that does the work."""


def class_of(kind: str, kernel: str, operations: Sequence[str], site: str | None) -> str:
    """The class of a launch. ``operations`` stand round it, innermost first; ``site`` is that of a fused kernel."""
    by_operation = _of_operations(operations)
    if by_operation == CAT:
        return CAT
    if kind in (MEMCPY, MEMSET):
        return COPY if kind == MEMCPY else SET
    if by_operation is not None:
        return COPY if by_operation == CONVOLUTION and LAYOUT_COPY.search(kernel) else by_operation
    if not operations and (site is not None or _OWN_NAME.match(kernel)):
        own = _matching(OWN_KERNELS, kernel) or _matching(OWN_KERNELS, site or "")
        if own is not None:
            return own
    by_name = _matching(KERNEL_NAMES, kernel)
    if by_name is not None:
        return by_name
    return ELEMENTWISE if operations and operations[0].startswith("aten::") else OTHER


def _of_operations(operations: Sequence[str]) -> str | None:
    for name in operations:
        if name in _CLASS_OF:
            return _CLASS_OF[name]
        if _ATTENTION_OPERATION.search(name):
            return ATTENTION
        if name.startswith(("nccl:", "c10d::")):
            return COMMUNICATION
        if name.startswith("aten::"):
            return None  # by its kernel's name, else it is elementwise; what calls it says less
    return None


def _matching(patterns: Sequence[tuple[re.Pattern[str], str]], name: str) -> str | None:
    return next((class_ for pattern, class_ in patterns if pattern.search(name)), None)
