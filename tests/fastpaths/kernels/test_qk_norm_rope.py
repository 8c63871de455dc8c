"""The interpreted kernel against a model of CUDA's order in numpy and torch: CPU eager sums in another order."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fuseproof.fastpaths.kernels import qk_norm_rope
from fuseproof.fastpaths.kernels.qk_norm_rope import Launch

EPS = 1e-6
CASES = {
    "one-row-one-head": (1, 1, 1, 0),
    "prime-rows-below-a-tile": (1, 7, 3, 0),
    "two-samples-with-text": (2, 3, 5, 2),
    "text-only": (1, 3, 2, 3),
    "two-tiles-the-second-cut": (1, 2, 11, 1),
    "24-heads": (1, 2, 24, 1),
}


def bits(tensor):
    return tensor.contiguous().view(torch.int16)


def folded(lanes, ascending=False):
    """The sum of 32 lanes as lane 0 of a warp gets it: [N, 32] -> [N]."""
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., 0::2] + lanes[..., 1::2] if ascending else lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]


def normalized(x, weight, fold=folded, weight_first=False):
    """aten's CUDA rms_norm: [..., 128] bf16 -> bf16; rsqrt correctly rounded twice, as Triton's interpreter has it."""
    values = x.float().numpy()
    squares = (values * values).reshape(*values.shape[:-1], 32, 4)
    lanes = ((squares[..., 0] + squares[..., 1]) + squares[..., 2]) + squares[..., 3]
    mean = fold(lanes) / np.float32(128)
    rstd = np.float32(1) / np.sqrt(mean + np.float32(EPS))
    weights, rstd = weight.float().numpy(), rstd[..., None]
    return torch.from_numpy((weights * rstd) * values if weight_first else weights * (rstd * values)).bfloat16()


def turned(x, cos, sin):
    """Interleaved rotation of [B, S, H, 128], two rounded products and a sum."""
    even, odd = x.float()[..., 0::2], x.float()[..., 1::2]
    cos, sin = cos[None, :, None], sin[None, :, None]
    pairs = (even * cos[..., 0::2] - odd * sin[..., 0::2], odd * cos[..., 1::2] + even * sin[..., 1::2])
    return torch.stack(pairs, dim=-1).flatten(3).bfloat16()


def expected(x, weight, text_weight, text_rows, cos, sin):
    rows = [normalized(x[:, :text_rows], text_weight), normalized(x[:, text_rows:], weight)]
    return turned(torch.cat(rows, dim=1), cos, sin)


def random_arguments(batch, rows, heads, text_rows, seed=0):
    """The positional arguments of ``fused`` on two separate tensors; cos and sin differ within pairs."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    query, key = ((normal(batch, rows, heads, 128) * normal(batch, rows, heads, 1).exp()).bfloat16() for _ in range(2))
    weights = [(1 + 0.2 * normal(128)).bfloat16() for _ in range(4)]
    text_weights = weights[2:] if text_rows else (None, None)
    return (query, key, *weights[:2], normal(rows, 128), normal(rows, 128), EPS, *text_weights, text_rows)


def expected_pair(arguments):
    query, key, query_weight, key_weight, cos, sin, _, text_query_weight, text_key_weight, text_rows = arguments
    text = (query_weight, key_weight) if text_query_weight is None else (text_query_weight, text_key_weight)
    return (
        expected(query, query_weight, text[0], text_rows, cos, sin),
        expected(key, key_weight, text[1], text_rows, cos, sin),
    )


def assert_bits(expected_tensors, actual_tensors):
    for expected_tensor, actual in zip(expected_tensors, actual_tensors, strict=True):
        assert torch.equal(bits(expected_tensor), bits(actual))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bits_are_those_of_cudas_order(case):
    arguments = random_arguments(*case)
    assert qk_norm_rope.reject_reason(*arguments) is None
    assert_bits(expected_pair(arguments), qk_norm_rope.fused(*arguments))


@pytest.mark.parametrize("launch", [Launch(tile=2, tiles=2), Launch(tile=4, tiles=1)], ids=["2x2", "4x1"])
def test_other_tiles_change_nothing(launch, monkeypatch):
    arguments = random_arguments(1, 2, 11, 1)
    monkeypatch.setattr(qk_norm_rope, "_LAUNCH", launch)
    assert_bits(expected_pair(arguments), qk_norm_rope.fused(*arguments))


@pytest.mark.parametrize(
    "other_order",
    [{"fold": lambda lanes: folded(lanes, ascending=True)}, {"weight_first": True}],
    ids=["folds-1-to-16", "weight-times-rstd-first"],
)
def test_the_order_of_operations_shows_in_the_bits(other_order):
    """Head vectors whose bf16 result would differ in another order."""
    generator = torch.Generator().manual_seed(1)
    scale = torch.exp2(torch.randint(-4, 12, (60000, 128), generator=generator).float())
    x = (torch.randn(60000, 128, generator=generator) * scale).bfloat16()
    weight = torch.rand(128, generator=generator).bfloat16()
    other = normalized(x, weight, **other_order)
    telling = (bits(normalized(x, weight)) != bits(other)).any(dim=1).nonzero()[:6, 0]
    query = x[telling].reshape(1, 2, 3, 128)
    cos, sin = torch.ones(2, 128), torch.zeros(2, 128)
    actual, _ = qk_norm_rope.fused(query, query, weight, weight, cos, sin, EPS)
    assert torch.equal(bits(normalized(query, weight)), bits(actual))
    assert not torch.equal(bits(other[telling].reshape(query.shape)), bits(actual))


def test_packed_projection_in_place_leaves_the_values_alone():
    arguments = random_arguments(2, 3, 5, 2)
    packed = torch.full((2, 3, 3, 5, 128), float("nan"), dtype=torch.bfloat16)
    query, key, value = packed.unbind(2)
    query.copy_(arguments[0])
    key.copy_(arguments[1])
    outputs = qk_norm_rope.fused(query, key, *arguments[2:], out_query=query, out_key=key)
    assert_bits(expected_pair(arguments), outputs)
    assert (query.data_ptr(), key.data_ptr()) == tuple(output.data_ptr() for output in outputs)
    assert value.isnan().all()


def test_outputs_may_be_rows_of_a_joint_buffer():
    arguments = random_arguments(1, 3, 2, 0)
    joint = torch.full((2, 1, 8, 2, 128), float("nan"), dtype=torch.bfloat16)
    outputs = qk_norm_rope.fused(*arguments, out_query=joint[0, :, 2:5], out_key=joint[1, :, 2:5])
    assert_bits(expected_pair(arguments), outputs)
    assert joint[:, :, :2].isnan().all()
    assert joint[:, :, 5:].isnan().all()


def test_heads_before_rows_in_memory():
    arguments = random_arguments(1, 3, 2, 1)
    query, key = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in arguments[:2])
    assert not query.is_contiguous()
    assert_bits(expected_pair(arguments), qk_norm_rope.fused(query, key, *arguments[2:]))


def test_inputs_are_unchanged_and_the_same_call_gives_the_same_bits():
    arguments = random_arguments(1, 3, 5, 1)
    before = [argument.clone() if isinstance(argument, torch.Tensor) else argument for argument in arguments]
    poisoned = [torch.full_like(x, float("nan")) for x in arguments[:2]]
    first = qk_norm_rope.fused(*arguments, out_query=poisoned[0], out_key=poisoned[1])
    second = qk_norm_rope.fused(*arguments)
    assert_bits(first, second)
    for expected_argument, argument in zip(before, arguments, strict=True):
        assert not isinstance(argument, torch.Tensor) or torch.equal(expected_argument, argument)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_special_values_behave_as_in_eager():
    """Zeros, subnormals, infinities and NaN: a whole head becomes NaN, its neighbours do not."""
    query, key, *rest = random_arguments(1, 1, 6, 0)
    query[0, 0, 0] = 0.0
    query[0, 0, 1] = -0.0
    query[0, 0, 2] = torch.tensor(1, dtype=torch.int16).view(torch.bfloat16)
    query[0, 0, 3, 5] = float("inf")
    query[0, 0, 4, 5] = float("nan")
    actual, _ = qk_norm_rope.fused(query, key, *rest)
    wanted = expected(query, rest[0], rest[0], 0, rest[2], rest[3])
    assert torch.equal(wanted.isnan(), actual.isnan())
    assert torch.equal(bits(wanted)[~wanted.isnan()], bits(actual)[~wanted.isnan()])
    assert [False, False, False, True, True, False] == actual.isnan().any(dim=-1).flatten().tolist()


def test_the_reference_is_diffusers_expression():
    from diffusers.models.embeddings import apply_rotary_emb

    arguments = random_arguments(1, 4, 2, 1)
    query, _, weight, _, cos, sin, _, text_weight, _, _ = arguments
    norm, text_norm = torch.nn.RMSNorm(128, EPS), torch.nn.RMSNorm(128, EPS)
    norm.weight.data, text_norm.weight.data = weight, text_weight
    with torch.no_grad():
        wanted = apply_rotary_emb(torch.cat([text_norm(query[:, :1]), norm(query[:, 1:])], 1), (cos, sin), True, -1, 1)
    assert torch.equal(bits(wanted), bits(qk_norm_rope.reference(*arguments)[0]))


def shifted(tensor):
    """The same values at an address that is no multiple of 16."""
    buffer = torch.zeros(tensor.numel() + 1, dtype=tensor.dtype)
    return buffer[1:].view(tensor.shape).copy_(tensor)


def zeros(*shape):
    return torch.zeros(shape, dtype=torch.bfloat16)


QUERY, KEY, QUERY_WEIGHT, KEY_WEIGHT, COS, SIN = range(6)
REASONS = {
    "fp16": (QUERY, lambda x: x.half(), "query is float16; the kernel needs bfloat16"),
    "three-dimensions": (QUERY, lambda x: x[0], "query has 3 dimensions; the kernel needs 4: [B, S, H, 128]"),
    "empty": (QUERY, lambda x: x[:, :0], "query has shape [1, 0, 2, 128]; the kernel needs at least one element"),
    "head-dim-64": (QUERY, lambda x: x[..., :64], "query has shape [1, 4, 2, 64]; the kernel needs [1, 4, 2, 128]"),
    "other-key-heads": (KEY, lambda x: x[:, :, :1], "key has shape [1, 4, 1, 128]; the kernel needs [1, 4, 2, 128]"),
    "key-device": (KEY, lambda x: x.to("meta"), "key is on meta; the other tensors are on cpu"),
    "last-dimension": (
        KEY,
        lambda x: torch.stack([x, x], dim=-1)[..., 0],
        "key has strides [2048, 512, 256, 2]; the kernel needs a contiguous last dimension",
    ),
    "address": (KEY, shifted, "key starts 2 bytes past a 16-byte address; the kernel needs 0"),
    "strides": (
        QUERY,
        lambda x: torch.cat([x, x[..., :8]], dim=-1)[..., :128],
        "query has strides [1088, 272, 136, 1]; the kernel needs multiples of 16",
    ),
    "fp32-weight": (QUERY_WEIGHT, lambda x: x.float(), "query_weight is float32; the kernel needs bfloat16"),
    "weight-shape": (KEY_WEIGHT, lambda x: x[:64], "key_weight has shape [64]; the kernel needs [128]"),
    "bf16-cos": (COS, lambda x: x.bfloat16(), "cos is bfloat16; the kernel needs float32"),
    "short-sin": (SIN, lambda x: x[:3], "sin has shape [3, 128]; the kernel needs [4, 128]"),
}


@pytest.mark.parametrize(("position", "change", "expected_reason"), REASONS.values(), ids=REASONS)
def test_reject_reasons(position, change, expected_reason):
    arguments = list(random_arguments(1, 4, 2, 0))
    arguments[position] = change(arguments[position])
    assert expected_reason == qk_norm_rope.reject_reason(*arguments)


@pytest.mark.parametrize(
    ("expected_reason", "changes"),
    [
        ("eps is 0.0; the kernel needs at least 1.1754943508222875e-38", {"eps": 0.0}),
        ("text_rows is 5; the kernel needs 0 to 4, the number of rows", {"text_rows": 5}),
        ("text_rows is -1; the kernel needs 0 to 4, the number of rows", {"text_rows": -1}),
        (
            "text_rows is 1 without text_query_weight and text_key_weight; the kernel needs both",
            {"text_rows": 1, "text_query_weight": torch.ones(128).bfloat16()},
        ),
        ("out_query has shape [1, 4, 1, 128]; the kernel needs [1, 4, 2, 128]", {"out_query": zeros(1, 4, 1, 128)}),
        (
            "out_key has strides [0, 0, 0, 1]; an output needs its own memory for every element",
            {"out_key": zeros(128).expand(1, 4, 2, 128)},
        ),
    ],
    ids=["eps", "too-many-text-rows", "negative-text-rows", "no-text-weights", "out-shape", "out-overlaps-itself"],
)
def test_reject_reasons_of_options(expected_reason, changes):
    names = ("query", "key", "query_weight", "key_weight", "cos", "sin", "eps")
    arguments = dict(zip(names, random_arguments(1, 4, 2, 0), strict=False))
    assert expected_reason == qk_norm_rope.reject_reason(**{**arguments, **changes})


def test_without_the_interpreter_cpu_tensors_are_declined(monkeypatch):
    from triton import knobs

    monkeypatch.setattr(knobs.runtime, "interpret", False)
    reason = qk_norm_rope.reject_reason(*random_arguments(1, 4, 2, 0))
    assert reason == "query is on cpu; the kernel needs a CUDA device"


def test_the_operator_is_functional_and_has_a_fake():
    arguments = random_arguments(1, 3, 2, 1)
    assert_bits(expected_pair(arguments), torch.ops.fuseproof.qk_norm_rope(*arguments))
    torch.library.opcheck(
        torch.ops.fuseproof.qk_norm_rope.default, arguments, test_utils=("test_schema", "test_faketensor")
    )
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments]
        query, key = torch.ops.fuseproof.qk_norm_rope(*fakes)
    assert ((1, 3, 2, 128), torch.bfloat16, True) == (tuple(query.shape), key.dtype, query.is_contiguous())
    with pytest.raises(ValueError, match="query is float16"):
        torch.ops.fuseproof.qk_norm_rope(arguments[0].half(), *arguments[1:])


def test_traffic_counts_everything_once():
    arguments = random_arguments(1, 3, 2, 0)
    assert 4 * 3 * 2 * 256 + 2 * 3 * 512 == qk_norm_rope.traffic_bytes(*arguments)
