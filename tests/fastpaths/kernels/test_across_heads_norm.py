"""RMSNorm across heads, alone and with the rotation, against a model of CUDA's order; CPU eager sums in another one."""

import pytest
import torch
from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed
from torch._subclasses.fake_tensor import FakeTensorMode
from triton import knobs

from fuseproof.fastpaths.kernels import across_heads_norm, across_heads_norm_rope
from tests.fastpaths.kernels.row_models import EPS, NAN, bits, exact_fma, normal, poisoned
from tests.fastpaths.kernels.wan_transformer_models import norms_of_cuda, rms_norm

CASES = {
    "one-head": (1, 1, 1, 128),
    "two-samples-two-heads": (2, 3, 2, 128),
    "cut-round": (1, 5, 5, 128),
    "12-heads": (1, 2, 12, 128),
    "24-heads": (2, 1, 24, 128),
    "narrow-heads": (1, 3, 16, 16),
    "narrowest-heads": (1, 2, 3, 4),
}


@pytest.fixture(autouse=True)
def _norms_of_cuda(monkeypatch):
    norms_of_cuda(monkeypatch)


def weights_of(width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [(1 + 0.2 * torch.randn(width, generator=generator)).bfloat16() for _ in range(2)]


def arguments(batch, rows, heads, head_dim, seed=0):
    """The positional arguments with the rotation; cosine and sine differ within pairs, as they never do in a model."""
    width = heads * head_dim
    query, key = normal(seed, batch, rows, width), normal(seed + 1, batch, rows, width)
    generator = torch.Generator().manual_seed(seed)
    cosine, sine = (torch.randn(1, rows, 1, head_dim, generator=generator) for _ in range(2))
    return (query, key, *weights_of(width, seed), cosine, sine, EPS, heads)


def assert_bits(expected, actual):
    for wanted, result in zip(expected, actual, strict=True):
        assert torch.bfloat16 == result.dtype
        assert torch.equal(bits(wanted), bits(result))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bits_are_those_of_cuda(case):
    given = arguments(*case)
    before = [value.clone() for value in given[:6]]
    outputs = {name: poisoned(*case) for name in ("out_query", "out_key")}
    assert across_heads_norm_rope.reject_reason(*given, **outputs) is None
    results = across_heads_norm_rope.fused(*given, **outputs)
    assert_bits(across_heads_norm_rope.reference(*given), results)
    assert_bits(results, outputs.values())
    assert_bits(results, across_heads_norm_rope.fused(*given))
    assert all(torch.equal(old, new) for old, new in zip(before, given[:6], strict=True))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_norm_alone_has_the_bits_of_cuda(case):
    batch, rows, heads, head_dim = case
    x, (weight, _) = normal(3, batch, rows, heads * head_dim), weights_of(heads * head_dim)
    out = poisoned(*x.shape)
    assert across_heads_norm.reject_reason(x, weight, EPS, out) is None
    assert across_heads_norm.fused(x, weight, EPS, out) is out
    assert_bits([rms_norm(x, None, weight, EPS)], [out])
    assert_bits([out], [across_heads_norm.fused(x, weight, EPS)])


@pytest.mark.parametrize("rows", [1, 2])
def test_rows_side_by_side_change_nothing(rows, monkeypatch):
    x, (weight, _) = normal(3, 2, 3, 516), weights_of(516)
    monkeypatch.setattr(across_heads_norm, "rows_per_program", lambda _: rows)
    assert_bits([rms_norm(x, None, weight, EPS)], [across_heads_norm.fused(x, weight, EPS)])


def test_parts_of_a_packed_projection_in_place_leave_the_values_alone():
    query, key, *rest = arguments(2, 3, 2, 128)
    packed = torch.full((2, 3, 3 * 256), NAN).bfloat16()
    packed[..., :256], packed[..., 256:512] = query, key
    query, key, value = packed.chunk(3, dim=-1)
    wanted = across_heads_norm_rope.reference(query, key, *rest)
    outputs = {"out_query": query.unflatten(2, (2, 128)), "out_key": key.unflatten(2, (2, 128))}
    assert across_heads_norm_rope.reject_reason(query, key, *rest, **outputs) is None
    assert_bits(wanted, across_heads_norm_rope.fused(query, key, *rest, **outputs))
    assert packed.data_ptr() == outputs["out_query"].data_ptr()
    assert value.isnan().all()
    weight = rest[0]
    wanted = rms_norm(query, None, weight, EPS)
    assert across_heads_norm.reject_reason(query, weight, EPS, query) is None
    assert_bits([wanted], [across_heads_norm.fused(query, weight, EPS, query)])
    assert value.isnan().all()


def test_some_frames_of_a_longer_table():
    """Parts of cosine and sine, as a model that generates in chunks takes them."""
    *rest, eps, heads = arguments(1, 7, 2, 128)
    rows = [value[:, 2:5] if value.ndim > 1 else value for value in rest]
    assert across_heads_norm_rope.reject_reason(*rows, eps, heads) is None
    results = across_heads_norm_rope.fused(*rows, eps, heads)
    assert_bits([each[:, 2:5] for each in across_heads_norm_rope.reference(*rest, eps, heads)], results)


def test_the_table_of_diffusers():
    """Its cosines and sines are the same within a pair, and differ from row to row."""
    rope = WanRotaryPosEmbed(128, (1, 2, 2), 32)
    cosine, sine = rope(torch.zeros(1, 4, 3, 4, 2))
    query, key, *weights = arguments(1, cosine.shape[1], 2, 128)[:4]
    given = (query, key, *weights, cosine, sine, EPS, 2)
    assert across_heads_norm_rope.reject_reason(*given) is None
    assert_bits(across_heads_norm_rope.reference(*given), across_heads_norm_rope.fused(*given))


@pytest.mark.parametrize("order", [{"ascending": True}, {"weight_first": True}], ids=lambda order: next(iter(order)))
def test_the_order_of_operations_shows_in_the_bits(order):
    """Rows whose bf16 result would differ in another order."""
    x = torch.randn(1, 4000, 1536, generator=torch.Generator().manual_seed(2)).bfloat16()
    weight = torch.rand(1536, generator=torch.Generator().manual_seed(3)).bfloat16()
    other = rms_norm(x, None, weight, EPS, **order)
    telling = (bits(rms_norm(x, None, weight, EPS)) != bits(other)).any(dim=-1)[0].nonzero()[:4, 0]
    assert len(telling)
    result = across_heads_norm.fused(x[:, telling].contiguous(), weight, EPS)
    assert_bits([rms_norm(x, None, weight, EPS)[:, telling]], [result])
    assert not torch.equal(bits(other[:, telling]), bits(result))


def contracted(a, b, c):
    return torch.from_numpy(exact_fma(*(value.broadcast_to(a.shape).numpy() for value in (a, b, c))))


def turned(normed, cosine, sine, heads, *, rotate):
    even, odd = normed.float().unflatten(2, (heads, -1, 2)).unbind(-1)
    return torch.stack(rotate(even, odd, cosine, sine), dim=-1).flatten(3).bfloat16()


WRONG_ROTATIONS = {
    "other-places": lambda e, o, c, s: (e * c[..., 1::2] - o * s[..., 0::2], e * s[..., 0::2] + o * c[..., 1::2]),
    "other-sign": lambda e, o, c, s: (e * c[..., 0::2] + o * s[..., 1::2], o * c[..., 0::2] - e * s[..., 1::2]),
    "products-rounded-to-bf16": lambda e, o, c, s: (
        (e * c[..., 0::2]).bfloat16() - (o * s[..., 1::2]).bfloat16(),
        (e * s[..., 1::2]).bfloat16() + (o * c[..., 0::2]).bfloat16(),
    ),
}


@pytest.mark.parametrize("rotate", WRONG_ROTATIONS.values(), ids=WRONG_ROTATIONS)
def test_another_rotation_has_other_bits(rotate):
    query, key, weight, key_weight, cosine, sine, eps, heads = arguments(1, 2, 4, 128)
    other = turned(rms_norm(query, None, weight, eps), cosine, sine, heads, rotate=rotate)
    result, _ = across_heads_norm_rope.fused(query, key, weight, key_weight, cosine, sine, eps, heads)
    assert not torch.equal(bits(other), bits(result))


def test_the_rotation_is_not_contracted():
    """Sines for which both products of an even place are the same number once rounded: what is left is 0."""
    query, key, weight, key_weight, cosine, sine, eps, heads = arguments(1, 1, 1, 128)
    even, odd = rms_norm(query, None, weight, eps).float().unflatten(2, (1, -1, 2)).unbind(-1)
    sine[..., 1::2] = even * cosine[..., 0::2] / odd
    wanted, result = (
        form(query, key, weight, key_weight, cosine, sine, eps, heads)[0]
        for form in (across_heads_norm_rope.reference, across_heads_norm_rope.fused)
    )
    assert_bits([wanted], [result])
    product = (odd * sine[..., 1::2]).contiguous()
    other = contracted(even.contiguous(), cosine[..., 0::2].contiguous(), -product)
    vanishes = (even * cosine[..., 0::2]) == product
    assert vanishes.float().mean() > 0.3
    assert (result[..., 0::2][vanishes] == 0).all()
    assert (other[vanishes] != 0).any()


def test_the_norm_of_single_heads_has_other_bits():
    query, _, *rest = arguments(1, 2, 2, 128)
    single = torch.cat([rms_norm(each, None, rest[0][:128], EPS) for each in query.chunk(2, dim=-1)], dim=-1)
    assert not torch.equal(bits(single), bits(across_heads_norm.fused(query, rest[0], EPS)))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_special_values():
    """Zeros, subnormals, huge numbers, infinity and NaN: a whole row becomes NaN, its neighbours do not."""
    query, key, *rest = arguments(1, 6, 2, 128)
    query[0, 0], query[0, 1] = 0.0, -0.0
    query[0, 2] = torch.tensor(1, dtype=torch.int16).view(torch.bfloat16)
    query[0, 3] = 1e30
    query[0, 4, 5], query[0, 5, 5] = float("inf"), NAN
    wanted, result = (
        form(query, key, *rest)[0] for form in (across_heads_norm_rope.reference, across_heads_norm_rope.fused)
    )
    assert torch.equal(wanted.isnan(), result.isnan())
    assert torch.equal(bits(wanted)[~wanted.isnan()], bits(result)[~wanted.isnan()])
    assert [False, False, False, False, True, True] == result.isnan().flatten(2).any(dim=-1)[0].tolist()


def zeros(*shape):
    return torch.zeros(shape, dtype=torch.bfloat16)


QUERY, KEY, WEIGHT, KEY_WEIGHT, COSINE, SINE, _, HEADS = range(8)
REASONS = {
    "fp32": (QUERY, lambda x: x.float(), "query is float32; the kernel needs bfloat16"),
    "dimensions": (QUERY, lambda x: x[0], "query has 2 dimensions; the kernel needs 3: [B, S, D]"),
    "key-shape": (KEY, lambda x: x[:, :2], "key has shape [1, 2, 256]; the kernel needs [1, 3, 256]"),
    "fp32-weight": (WEIGHT, lambda w: w.float(), "query_weight is float32; the kernel needs bfloat16"),
    "weight-shape": (KEY_WEIGHT, lambda w: w[:128], "key_weight has shape [128]; the kernel needs [256]"),
    "bf16-cosine": (COSINE, lambda c: c.bfloat16(), "cosine is bfloat16; the kernel needs float32"),
    "short-sine": (SINE, lambda s: s[:, :2], "sine has shape [1, 2, 1, 128]; the kernel needs [1, 3, 1, 128]"),
    "heads": (
        HEADS,
        lambda _: 3,
        "heads is 3 of 256 columns; the kernel needs heads of one of 4, 8, 16, 32, 64, 128, 256, 512 columns",
    ),
}


@pytest.mark.parametrize(("position", "change", "expected_reason"), REASONS.values(), ids=REASONS)
def test_reject_reasons(position, change, expected_reason):
    given = list(arguments(1, 3, 2, 128))
    given[position] = change(given[position])
    assert expected_reason == across_heads_norm_rope.reject_reason(*given)


def test_reject_reasons_of_outputs_and_eps():
    given = arguments(1, 3, 2, 128)
    reason = across_heads_norm_rope.reject_reason
    assert f"eps is 0.0; the kernel needs at least {2.0**-126}" == reason(*given[:6], 0.0, 2)
    assert "out_key has shape [1, 3, 256]; the kernel needs [1, 3, 2, 128]" == reason(*given, out_key=zeros(1, 3, 256))
    apart = zeros(1, 2, 3, 128).transpose(1, 2)
    expected = "out_query has strides [768, 128, 384, 1]; the kernel needs the heads of a row side by side"
    assert expected == reason(*given, out_query=apart)


def test_reject_reasons_of_the_norm_alone():
    x, weight = zeros(1, 3, 256), zeros(256)
    reason = across_heads_norm.reject_reason
    assert "x is float32; the kernel needs bfloat16" == reason(x.float(), weight, EPS)
    assert "weight is float32; the kernel needs bfloat16" == reason(x, weight.float(), EPS)
    assert "weight has shape [128]; the kernel needs [256]" == reason(x, weight[:128], EPS)
    assert f"eps is nan; the kernel needs at least {2.0**-126}" == reason(x, weight, NAN)
    assert "out has shape [1, 2, 256]; the kernel needs [1, 3, 256]" == reason(x, weight, EPS, x[:, :2])


def test_without_the_interpreter_cpu_tensors_are_declined(monkeypatch):
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    expected = "is on cpu; the kernel needs a CUDA device"
    assert f"query {expected}" == across_heads_norm_rope.reject_reason(*arguments(1, 3, 2, 128))
    assert f"x {expected}" == across_heads_norm.reject_reason(zeros(1, 3, 256), zeros(256), EPS)


def test_the_operators_are_functional_and_have_fakes():
    given = arguments(1, 3, 2, 128)
    rope, norm = torch.ops.fuseproof.across_heads_norm_rope, torch.ops.fuseproof.across_heads_norm
    assert_bits(across_heads_norm_rope.reference(*given), rope(*given))
    assert_bits([rms_norm(given[0], None, given[2], EPS)], [norm(given[0], given[2], EPS)])
    for operator, values in ((rope, given), (norm, (given[0], given[2], EPS))):
        torch.library.opcheck(operator.default, values, test_utils=("test_schema", "test_faketensor"))
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(each) if isinstance(each, torch.Tensor) else each for each in given]
        query, key = rope(*fakes)
    assert ((1, 3, 2, 128), torch.bfloat16, True) == (tuple(query.shape), key.dtype, query.is_contiguous())
    with pytest.raises(ValueError, match="query is float32"):
        rope(given[0].float(), *given[1:])
    with pytest.raises(ValueError, match="x is float32"):
        norm(given[0].float(), given[2], EPS)


def test_traffic_counts_everything_once():
    given = arguments(2, 3, 2, 128)
    rows, weight, table = 2 * 3 * 256 * 2, 256 * 2, 3 * 128 * 4
    assert 4 * rows + 2 * weight + 2 * table == across_heads_norm_rope.traffic_bytes(*given)
    assert 2 * rows + weight == across_heads_norm.traffic_bytes(given[0], given[2], EPS)
