"""The head with which the edit stage begins: it finds the given token of its place, and disturbs no other head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from training import edit_stages, train
from training.copying import begin_copying
from training.folders import Run, write_checkpoint
from training.geometry import (
    FULL,
    HEAD_DIM,
    HEADS,
    SMOKE,
    build_scheduler,
    build_text_encoder,
    build_transformer,
    build_vae,
    image_ids,
)
from training.tokens import build_tokenizer

CPU = torch.device("cpu")
TOKENS = FULL.image_tokens


def block_with_content(geometry: Any) -> Any:
    """A transformer whose queries and keys depend on what they see, with norms as training leaves them."""
    torch.manual_seed(0)
    transformer = build_transformer(geometry)
    attention = transformer.transformer_blocks[0].attn
    for norm in (attention.norm_q, attention.norm_k):
        torch.nn.init.uniform_(norm.weight, 0.9, 1.6)
    return transformer


def queries_and_keys(transformer: Any, tokens: torch.Tensor) -> list[torch.Tensor]:
    """Of the first joint block, before the rotation, each [1, tokens, heads, HEAD_DIM]."""
    attention = transformer.transformer_blocks[0].attn
    pairs = ((attention.norm_q, attention.to_q), (attention.norm_k, attention.to_k))
    return [norm(linear(tokens).unflatten(-1, (HEADS, HEAD_DIM))) for norm, linear in pairs]


@torch.no_grad()
@pytest.mark.parametrize("head", range(HEADS))
def test_a_noisy_token_looks_at_the_given_one_of_its_place(head: int) -> None:
    from diffusers.models.embeddings import apply_rotary_emb

    transformer = block_with_content(FULL)
    begin_copying(transformer, head=head)
    positions = torch.cat([image_ids(FULL, CPU, modality) for modality in (1, 2)])
    rotation = transformer.pos_embed(positions)
    tokens = torch.randn(1, 2 * TOKENS, transformer.inner_dim)
    query, key = (apply_rotary_emb(each, rotation, sequence_dim=1)[0] for each in queries_and_keys(transformer, tokens))
    weights = torch.einsum("qhd,khd->hqk", query, key).div(HEAD_DIM**0.5).softmax(-1)[:, :TOKENS, TOKENS:]
    own = weights.diagonal(dim1=1, dim2=2)
    assert own[head].min() > 0.7
    assert own[head].mean() > 0.85
    assert own[1 - head].mean() < 0.1


@torch.no_grad()
def test_the_other_head_goes_on_as_it_did() -> None:
    transformer = block_with_content(SMOKE)
    tokens = torch.randn(1, 40, transformer.inner_dim)
    before = queries_and_keys(transformer, tokens)
    begin_copying(transformer, head=0)
    for was, now in zip(before, queries_and_keys(transformer, tokens), strict=True):
        similarity = torch.nn.functional.cosine_similarity(was[:, :, 1], now[:, :, 1], dim=-1)
        assert similarity.min() > 0.9999
        assert (now[:, :, 1].norm(dim=-1) / was[:, :, 1].norm(dim=-1)).sub(1).abs().max() < 0.05
        assert torch.nn.functional.cosine_similarity(was[:, :, 0], now[:, :, 0], dim=-1).max() < 0.6


def test_the_edit_stage_begins_so_and_goes_on_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, tokenizer = Run(tmp_path / "run"), build_tokenizer()
    models = build_vae(SMOKE), build_text_encoder(SMOKE, tokenizer), build_transformer(SMOKE)
    write_checkpoint(run.checkpoint, *models, tokenizer, build_scheduler(), {"step": 5, "spent_s": 1.0, "share": 1.0})
    begun = []
    monkeypatch.setattr(edit_stages, "begin_copying", lambda transformer: begun.append(begin_copying(transformer)))
    sizes = ["--geometry=smoke", "--scenes=4", "--batch=2", "--workers=1", "--device=cpu", "--seconds=60"]
    for step in (1, 2):
        assert 0 == train.main(["--stage=edit", f"--run={run.folder}", "--resume", f"--steps={step}", *sizes])
        assert 1 == len(begun)
        assert step == json.loads((run.models / "longcat-image" / "training.json").read_text())["step"]
    assert str(tmp_path) not in "".join(path.read_text() for path in run.models.glob("*/*/*config.json"))
