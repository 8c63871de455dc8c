"""The interpreted kernel against a model of CUDA's norm and diffusers' own rotation, whose roundings a CPU shares."""

import pytest
import torch
from diffusers.models.transformers.transformer_ernie_image import ErnieImageAttention, ErnieImageEmbedND3

from fuseproof.fastpaths.kernels import qk_norm_rotate_half
from fuseproof.fastpaths.kernels.qk_norm_rotate_half import Launch
from tests.fastpaths.kernels.test_qk_norm_rope import EPS, assert_bits, normalized, shifted

CASES = {
    "one-row-one-head": (1, 1, 1),
    "prime-rows-below-a-tile": (1, 7, 3),
    "two-samples": (2, 3, 5),
    "two-tiles-the-second-cut": (1, 2, 19),
    "32-heads": (1, 2, 32),
    "beyond-one-program": (1, 1, 33),
}


def turned(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos.unsqueeze(2) + torch.cat((-second, first), dim=-1) * sin.unsqueeze(2)


def arguments(batch, rows, heads, seed=0):
    """The positional arguments of ``fused``; every angle is its own, so that no mix-up can hide."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator)

    query, key = ((random(batch, rows, heads, 128) * random(batch, rows, heads, 1).exp()).bfloat16() for _ in range(2))
    weights = [(1 + 0.2 * random(128)).bfloat16() for _ in range(2)]
    angles = 9 * random(batch, rows, 128)
    return query, key, *weights, angles.cos().bfloat16(), angles.sin().bfloat16(), EPS


def expected_pair(given):
    query, key, query_weight, key_weight, cos, sin, _ = given
    return turned(normalized(query, query_weight), cos, sin), turned(normalized(key, key_weight), cos, sin)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bits_are_those_of_cudas_order(case):
    given = arguments(*case)
    before = [value.clone() for value in given[:6]]
    assert qk_norm_rotate_half.reject_reason(*given) is None
    assert_bits(expected_pair(given), qk_norm_rotate_half.fused(*given))
    assert_bits(before, given[:6])


def test_other_tiles_change_nothing(monkeypatch):
    given = arguments(1, 2, 11)
    monkeypatch.setattr(qk_norm_rotate_half, "_LAUNCH", Launch(tile=4, tiles=2))
    assert_bits(expected_pair(given), qk_norm_rotate_half.fused(*given))


def test_packed_projection_in_place_leaves_the_values_alone():
    given = arguments(2, 3, 5)
    packed = torch.full((2, 3, 3, 5, 128), float("nan"), dtype=torch.bfloat16)
    query, key, value = packed.unbind(2)
    query.copy_(given[0])
    key.copy_(given[1])
    outputs = qk_norm_rotate_half.fused(query, key, *given[2:], out_query=query, out_key=key)
    assert_bits(expected_pair(given), outputs)
    assert (query.data_ptr(), key.data_ptr()) == tuple(output.data_ptr() for output in outputs)
    assert value.isnan().all()


def test_zeros_keep_their_signs():
    """Products that vanish, of either sign: -0 and +0 are different bits."""
    query, key, *weights, cos, sin, eps = arguments(1, 4, 4)
    signs = torch.tensor([1.0, -1.0]).bfloat16().repeat(64)
    query = query * 0 * signs
    cos, sin = cos * 0 * signs.flip(0), sin * 0
    sin[:, 2:] = -sin[:, 2:]
    given = query, key, *weights, cos, sin, eps
    wanted = expected_pair(given)
    assert 2 == len(torch.signbit(wanted[0]).unique())
    assert_bits(wanted, qk_norm_rotate_half.fused(*given))


@torch.no_grad()
def test_the_reference_is_diffusers_expression(monkeypatch):
    """Query and key as diffusers' own processor hands them to the attention, with its interleaved angles."""
    from diffusers.models.transformers import transformer_ernie_image

    seen = []

    def note(query, key, value, **_):
        seen.append((query, key))
        return value

    monkeypatch.setattr(transformer_ernie_image, "dispatch_attention_fn", note)
    torch.manual_seed(0)
    attention = ErnieImageAttention(256, heads=2, dim_head=128, eps=EPS, out_bias=False).bfloat16()
    attention.norm_q.weight.normal_()
    angles = ErnieImageEmbedND3(128, 256, (32, 48, 48))(9 * torch.rand(2, 5, 3))
    x = torch.randn(2, 5, 256).bfloat16()
    attention(x, image_rotary_emb=angles)
    query, key = (layer(x).unflatten(-1, (2, -1)) for layer in (attention.to_q, attention.to_k))
    tables = (table(angles).bfloat16().squeeze(2) for table in (torch.cos, torch.sin))
    given = (query, key, attention.norm_q.weight, attention.norm_k.weight, *tables, EPS)
    assert_bits(seen[0], qk_norm_rotate_half.reference(*given))


QUERY, KEY, QUERY_WEIGHT, KEY_WEIGHT, COS, SIN = range(6)
REASONS = {
    "fp16": (QUERY, lambda x: x.half(), "query is float16; the kernel needs bfloat16"),
    "head-dim-64": (QUERY, lambda x: x[..., :64], "query has shape [1, 4, 2, 64]; the kernel needs [1, 4, 2, 128]"),
    "other-key-heads": (KEY, lambda x: x[:, :, :1], "key has shape [1, 4, 1, 128]; the kernel needs [1, 4, 2, 128]"),
    "address": (KEY, shifted, "key starts 2 bytes past a 16-byte address; the kernel needs 0"),
    "fp32-cos": (COS, lambda x: x.float(), "cos is float32; the kernel needs bfloat16"),
    "one-table-for-all": (SIN, lambda x: x[0], "sin has shape [4, 128]; the kernel needs [1, 4, 128]"),
    "strides": (
        QUERY,
        lambda x: torch.cat([x, x[..., :4]], dim=-1)[..., :128],
        "query has strides [1056, 264, 132, 1]; the kernel needs multiples of 8",
    ),
}


@pytest.mark.parametrize(("position", "change", "expected_reason"), REASONS.values(), ids=REASONS)
def test_reject_reasons(position, change, expected_reason):
    given = list(arguments(1, 4, 2))
    given[position] = change(given[position])
    assert expected_reason == qk_norm_rotate_half.reject_reason(*given)


def test_the_operator_is_functional_and_has_a_fake():
    given = arguments(1, 3, 2)
    operator = torch.ops.fuseproof.qk_norm_rotate_half
    torch.library.opcheck(operator.default, given, test_utils=("test_schema", "test_faketensor"))
    with pytest.raises(ValueError, match="query is float16"):
        operator(given[0].half(), *given[1:])


def test_traffic_counts_everything_once():
    assert 4 * 3 * 2 * 256 + 2 * 3 * 256 == qk_norm_rotate_half.traffic_bytes(*arguments(1, 3, 2))
