"""diffusers' own Wan modules, a card's norms in them, against the kernels called as a rewritten block calls them."""

import pytest
import torch
from diffusers.models.transformers import transformer_wan
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel, WanTransformerBlock
from torch import nn

from fuseproof.fastpaths.kernels import (
    across_heads_norm,
    across_heads_norm_rope,
    residual_table_layernorm_modulate,
    table_gated_residual,
    table_gated_residual_layernorm,
    table_gated_residual_table_layernorm_modulate,
    table_layernorm_modulate,
)
from tests.fastpaths.kernels.row_models import EPS, bits, normal
from tests.fastpaths.kernels.wan_transformer_models import (
    GATE,
    GATE_FFN,
    SCALE,
    SCALE_FFN,
    SHIFT,
    SHIFT_FFN,
    norms_of_cuda,
)

HEADS, WIDTH, TEXT = 2, 256, 5


@pytest.fixture(autouse=True)
def _norms_of_cuda(monkeypatch):
    norms_of_cuda(monkeypatch)


@pytest.fixture
def attended(monkeypatch):
    """What every attention was called with: query and key [B, S, H, head_dim]; as a result it has its query."""
    calls = []

    def attend(query, key, value, **_options):
        calls.append((query, key))
        return query + value.mean()

    monkeypatch.setattr(transformer_wan, "dispatch_attention_fn", attend)
    return calls


def in_bf16(model):
    """As ``from_pretrained(torch_dtype=torch.bfloat16)`` leaves a model: what its class names stays in fp32."""
    kept = set(WanTransformer3DModel._keep_in_fp32_modules)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if not kept & set(name.split(".")):
            tensor.data = tensor.data.bfloat16()
    return model.eval().requires_grad_(False)


def randomized(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.normal_(std=1.0 if parameter.ndim == 3 else 0.05, generator=generator)
    for module in model.modules():
        if isinstance(module, nn.RMSNorm) or (isinstance(module, nn.LayerNorm) and module.weight is not None):
            module.weight.data += 1
    return model


class Noted:
    """Inputs and outputs of modules while a forward runs."""

    def __init__(self, **modules):
        self.taken, self.given = {}, {}
        for name, module in modules.items():
            module.register_forward_pre_hook(lambda _module, inputs, name=name: self.taken.update({name: inputs[0]}))
            module.register_forward_hook(lambda _m, _inputs, output, name=name: self.given.update({name: output}))


def assert_bits(expected, actual):
    assert torch.bfloat16 == expected.dtype == actual.dtype
    assert torch.equal(bits(expected), bits(actual))


def modulation(batch, rows, embeddings):
    """The embedding [B, R, 6, D], what a block of diffusers is given in its place, and which row a token takes."""
    generator = torch.Generator().manual_seed(5)
    temb = torch.randn(batch, embeddings, 6, WIDTH, generator=generator).bfloat16()
    if embeddings == 1:
        return temb, temb[:, 0], None
    row_of_token = torch.tensor([0, 0, 1, 1, 1, 0, 1][:rows], dtype=torch.int32)
    return temb, temb[:, row_of_token], row_of_token


ROWS = {"one-timestep": (1, 4, 1), "two-samples": (2, 3, 1), "first-frame-apart": (1, 5, 2), "both": (2, 5, 2)}


@pytest.mark.parametrize(("batch", "rows", "embeddings"), ROWS.values(), ids=ROWS)
def test_a_block_of_diffusers(batch, rows, embeddings, attended):
    """Everything between its matrices and its attention, one kernel after the other."""
    block = in_bf16(randomized(WanTransformerBlock(WIDTH, 64, HEADS, cross_attn_norm=True, eps=EPS)))
    noted = Noted(attn1=block.attn1, attn2=block.attn2, ffn=block.ffn)
    temb, temb_of_diffusers, row_of_token = modulation(batch, rows, embeddings)
    hidden, text = normal(0, batch, rows, WIDTH), normal(1, batch, TEXT, WIDTH)
    generator = torch.Generator().manual_seed(3)
    rotary = tuple(torch.randn(1, rows, 1, WIDTH // HEADS, generator=generator) for _ in range(2))
    result = block(hidden, text, temb_of_diffusers, rotary)
    of_rows = (block.scale_shift_table, temb, row_of_token)

    normed = table_layernorm_modulate.fused(hidden, *of_rows, SHIFT, SCALE, block.norm1.eps)
    assert_bits(noted.taken["attn1"], normed)
    attention, (query, key) = block.attn1, attended[0]
    turned = across_heads_norm_rope.fused(
        attention.to_q(normed), attention.to_k(normed), attention.norm_q.weight, attention.norm_k.weight,
        *rotary, attention.norm_q.eps, HEADS,
    )  # fmt: skip
    assert_bits(query, turned[0])
    assert_bits(key, turned[1])
    affine = (block.norm2.weight, block.norm2.bias, block.norm2.eps)
    new, normed = table_gated_residual_layernorm.fused(hidden, noted.given["attn1"], *of_rows, GATE, *affine)
    assert_bits(noted.taken["attn2"], normed)
    attention, (query, key) = block.attn2, attended[1]
    for wanted, rows_of, norm in (
        (query, attention.to_q(normed), attention.norm_q),
        (key, attention.to_k(text), attention.norm_k),
    ):
        assert_bits(wanted, across_heads_norm.fused(rows_of, norm.weight, norm.eps).unflatten(2, (HEADS, -1)))
    modulated = (SHIFT_FFN, SCALE_FFN, block.norm3.eps)
    new, normed = residual_table_layernorm_modulate.fused(new, noted.given["attn2"], *of_rows, *modulated)
    assert_bits(noted.taken["ffn"], normed)
    assert_bits(result, table_gated_residual.fused(new, noted.given["ffn"], *of_rows, GATE_FFN))


def small_model():
    model = WanTransformer3DModel(
        num_attention_heads=HEADS, attention_head_dim=WIDTH // HEADS, in_channels=4, out_channels=4, text_dim=16,
        freq_dim=32, ffn_dim=64, num_layers=2, rope_max_seq_len=32,
    )  # fmt: skip
    return in_bf16(randomized(model))


@pytest.mark.parametrize("per_token", [False, True], ids=["one-timestep", "two-timesteps"])
def test_from_the_last_residual_to_the_output(per_token, attended):
    """The whole model of diffusers: a block's last residual with the norm of the next, and with ``norm_out``."""
    model = small_model()
    first, last = model.blocks
    noted = Noted(
        first=first, last=last, ffn=last.ffn, next=last.attn1, first_ffn=first.ffn, output=model.proj_out,
        attn1=last.attn1, attn2=last.attn2, first_attn1=first.attn1, first_attn2=first.attn2,
        embedder=model.condition_embedder,
    )  # fmt: skip
    latents, text = normal(0, 1, 4, 2, 4, 4), normal(1, 1, TEXT, 16)
    row_of_token = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1], dtype=torch.int32) if per_token else None
    timestep = torch.tensor([[0.0] * 4 + [700.0] * 4]) if per_token else torch.tensor([700.0])
    model(latents, timestep, text, return_dict=False)

    temb, projection, *_ = noted.given["embedder"]
    assert (torch.bfloat16, torch.bfloat16) == (temb.dtype, projection.dtype)
    assert {torch.float32} == {each.scale_shift_table.dtype for each in (model, first, last)}
    unique = [0, 4] if per_token else [0]
    if not per_token:
        temb, projection = temb[:, None], projection[:, None]
    temb, projection = temb[:, unique].unsqueeze(2), projection[:, unique].unflatten(2, (6, WIDTH))

    for block, prefix, following in (
        (first, "first_", (last.scale_shift_table, projection, SHIFT, SCALE)),
        (last, "", (model.scale_shift_table, temb, 0, 1)),
    ):
        of_rows = (block.scale_shift_table, projection, row_of_token)
        hidden = noted.taken["first" if prefix else "last"]
        affine = (block.norm2.weight, block.norm2.bias, EPS)
        hidden, _ = table_gated_residual_layernorm.fused(hidden, noted.given[f"{prefix}attn1"], *of_rows, GATE, *affine)
        hidden, _ = residual_table_layernorm_modulate.fused(
            hidden, noted.given[f"{prefix}attn2"], *of_rows, SHIFT_FFN, SCALE_FFN, EPS
        )
        joined = (hidden, noted.given[f"{prefix}ffn"], *of_rows, GATE_FFN, *following, EPS)
        assert table_gated_residual_table_layernorm_modulate.reject_reason(*joined) is None
        new, normed = table_gated_residual_table_layernorm_modulate.fused(*joined)
        assert_bits(noted.given["first" if prefix else "last"], new)
        assert_bits(noted.taken["next" if prefix else "output"], normed)
    assert 4 == len(attended)


def test_a_model_cast_as_a_whole_is_declined():
    """``.to(torch.bfloat16)`` rounds tables and rotary frequencies too; then the kernels' arithmetic is another one."""
    block = WanTransformerBlock(WIDTH, 64, HEADS, cross_attn_norm=True).bfloat16()
    temb, _, _ = modulation(1, 3, 1)
    reason = table_layernorm_modulate.reject_reason(
        normal(0, 1, 3, WIDTH), block.scale_shift_table, temb, None, SHIFT, SCALE, EPS
    )
    assert "table is bfloat16; the kernel needs float32" == reason
