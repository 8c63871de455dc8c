"""On the card: RMSNorm across heads and the rotation, and blocks of diffusers, bit for bit against torch's own."""

import pytest
import torch
import torch.nn.functional as F
from diffusers.models.transformers import transformer_wan
from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed, WanTransformerBlock

from fuseproof.fastpaths.kernels import (
    across_heads_norm,
    across_heads_norm_rope,
    residual_table_layernorm_modulate,
    table_gated_residual,
    table_gated_residual_layernorm,
    table_layernorm_modulate,
)
from tests.fastpaths.kernels.test_kernels_gpu import KINDS, assert_bits, normal, of_codes, poisoned
from tests.fastpaths.kernels.test_wan_block_pieces import Noted, in_bf16, randomized
from tests.fastpaths.kernels.test_wan_kernels_gpu import GATE, GATE_FFN, SCALE, SCALE_FFN, SHIFT, SHIFT_FFN, tokens_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
EPS = 1e-6
SHAPES = {
    "ti2v-704x1280x121": (1, 27280, 24, 128),
    "1.3b-two-samples": (2, 1561, 12, 128),
    "14b": (1, 777, 40, 128),
    "one-row": (1, 1, 24, 128),
    "cut-round": (2, 333, 5, 128),
    "tiny": (1, 333, 2, 128),
    "narrow-heads": (1, 333, 16, 16),
}


@pytest.fixture(autouse=True)
def exact_rounding():
    """In place of the interpreter's fixture of this name: these tests run compiled kernels."""


@pytest.fixture
def generator():
    return torch.Generator("cuda").manual_seed(0)


def plain(generator, *shape):
    return torch.randn(shape, device="cuda", generator=generator)


def with_rotation(query, key, generator, heads):
    """The positional arguments; cosine and sine differ within pairs, as they never do in a model."""
    rows, width = query.shape[1:]
    weights = [(1 + 0.2 * plain(generator, width)).bfloat16() for _ in range(2)]
    cosine, sine = (plain(generator, 1, rows, 1, width // heads) for _ in range(2))
    return (query, key, *weights, cosine, sine, EPS, heads)


def assert_exact(given, **outputs):
    """Expected values first: outputs may be the inputs. The norm alone as well."""
    query, key, query_weight, key_weight, *_ = given
    assert across_heads_norm_rope.reject_reason(*given, **outputs) is None
    expected = across_heads_norm_rope.reference(*given)
    for x, weight in ((query, query_weight), (key, key_weight)):
        assert across_heads_norm.reject_reason(x, weight, EPS) is None
        assert_bits(
            F.rms_norm(x, x.shape[-1:], weight, EPS), across_heads_norm.fused(x, weight, EPS, poisoned(*x.shape))
        )
    assert_bits(expected, across_heads_norm_rope.fused(*given, **outputs))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_shapes_of_models(shape, generator):
    batch, rows, heads, head_dim = shape
    query, key = (normal(generator, batch, rows, heads * head_dim) for _ in range(2))
    outputs = {name: poisoned(*shape) for name in ("out_query", "out_key")}
    assert_exact(with_rotation(query, key, generator, heads), **outputs)


def test_many_plain_rows(generator):
    """20,000 rows of even numbers: a wrong order of additions would show in a few values of a million."""
    query, key = (plain(generator, 1, 20_000, 3072).bfloat16() for _ in range(2))
    assert_exact(with_rotation(query, key, generator, 24))


@pytest.mark.parametrize("heads", [24, 12, 2])
def test_parts_of_a_packed_projection_in_place(heads, generator):
    packed = normal(generator, 2, 333, 3 * heads * 128)
    query, key, value = packed.chunk(3, dim=-1)
    before = value.clone()
    outputs = {"out_query": query.unflatten(2, (heads, 128)), "out_key": key.unflatten(2, (heads, 128))}
    assert_exact(with_rotation(query, key, generator, heads), **outputs)
    assert_bits(before, value)


def test_the_table_of_diffusers(generator):
    rope = WanRotaryPosEmbed(128, (1, 2, 2), 1024).cuda()
    cosine, sine = rope(torch.zeros(1, 48, 6, 26, 30, device="cuda"))
    rows = cosine.shape[1]
    query, key = (normal(generator, 1, rows, 3072) for _ in range(2))
    given = (*with_rotation(query, key, generator, 24)[:4], cosine, sine, EPS, 24)
    assert_exact(given)


@pytest.mark.parametrize("kind", KINDS)
def test_special_values(kind, generator):
    query, key = (of_codes(generator, KINDS[kind], 1, 64, 3072) for _ in range(2))
    assert_exact(with_rotation(query, key, generator, 24))


def test_folds_that_are_spelled_out_give_the_same_bits(generator, monkeypatch):
    for module in (across_heads_norm, across_heads_norm_rope):
        monkeypatch.setattr(module, "is_interpreted", lambda: True)
    query, key = (normal(generator, 1, 333, 1536) for _ in range(2))
    assert_exact(with_rotation(query, key, generator, 12))


def test_operators_compile_and_captured_launches_replay(generator):
    query, key = (normal(generator, 1, 512, 3072) for _ in range(2))
    given = with_rotation(query, key, generator, 24)

    @torch.compile(fullgraph=True)
    def compiled(given):
        return torch.ops.fuseproof.across_heads_norm_rope(*given)

    assert_bits(across_heads_norm_rope.reference(*given), compiled(given))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = across_heads_norm_rope.fused(*given)
    query.copy_(normal(generator, 1, 512, 3072))
    graph.replay()
    assert_bits(across_heads_norm_rope.reference(*given), outputs)


@pytest.mark.parametrize("embeddings", [1, 2])
@pytest.mark.parametrize("heads", [24, 12])
def test_a_block_of_diffusers(heads, embeddings, generator, monkeypatch):
    """Everything between its matrices and its attention, one kernel after the other, on rows of its own making."""
    width, rows = heads * 128, 1560
    attended, attend = [], transformer_wan.dispatch_attention_fn

    def noted_attention(*given, **options):
        attended.append(given)
        return attend(*given, **options)

    monkeypatch.setattr(transformer_wan, "dispatch_attention_fn", noted_attention)
    block = in_bf16(randomized(WanTransformerBlock(width, 512, heads, cross_attn_norm=True, eps=EPS))).cuda()
    noted = Noted(attn1=block.attn1, attn2=block.attn2, ffn=block.ffn)
    hidden, text = normal(generator, 1, rows, width), normal(generator, 1, 512, width)
    temb, row_of_token = plain(generator, 1, embeddings, 6, width).bfloat16(), tokens_of(rows, embeddings)
    rotary = WanRotaryPosEmbed(128, (1, 2, 2), 1024).cuda()(torch.zeros(1, 48, 1, 104, 60, device="cuda"))
    result = block(hidden, text, temb[:, 0] if row_of_token is None else temb[:, row_of_token], rotary)
    of_rows = (block.scale_shift_table, temb, row_of_token)

    normed = table_layernorm_modulate.fused(hidden, *of_rows, SHIFT, SCALE, EPS)
    assert_bits(noted.taken["attn1"], normed)
    attention = block.attn1
    weights = attention.norm_q.weight, attention.norm_k.weight
    turned = across_heads_norm_rope.fused(attention.to_q(normed), attention.to_k(normed), *weights, *rotary, EPS, heads)
    assert_bits(tuple(attended[0][:2]), turned)
    affine = block.norm2.weight, block.norm2.bias, EPS
    new, normed = table_gated_residual_layernorm.fused(hidden, noted.given["attn1"], *of_rows, GATE, *affine)
    assert_bits(noted.taken["attn2"], normed)
    query = across_heads_norm.fused(block.attn2.to_q(normed), block.attn2.norm_q.weight, EPS)
    key = across_heads_norm.fused(block.attn2.to_k(text), block.attn2.norm_k.weight, EPS)
    assert_bits(tuple(attended[1][:2]), (query.unflatten(2, (heads, 128)), key.unflatten(2, (heads, 128))))
    new, normed = residual_table_layernorm_modulate.fused(
        new, noted.given["attn2"], *of_rows, SHIFT_FFN, SCALE_FFN, EPS
    )
    assert_bits(noted.taken["ffn"], normed)
    assert_bits(result, table_gated_residual.fused(new, noted.given["ffn"], *of_rows, GATE_FFN))
