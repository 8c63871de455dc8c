"""The tokenizer, and prompts as the pipeline hands them to the text encoder.

A byte-level Qwen2 tokenizer whose merges make one token of each word that captions know. Whatever else is written
comes out in bytes and pieces. The merges are worked out here, from the list of words alone: no library decides them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch

from training.captions import lexicon
from training.data import sent

PREFIX = (
    "<|im_start|>system\nAs an image captioning expert, generate a descriptive text prompt based on an image content, "
    "suitable for input to a text-to-image model.<|im_end|>\n<|im_start|>user\n"
)
"""``LongCatImagePipeline.prompt_template_encode_prefix``; a test holds the two together."""

PROMPT_TOKENS = 512
"""What the pipeline pads every prompt to."""
LONGEST_PROMPT = 48
"""What a training prompt may have of them."""

QUOTATION_MARKS = frozenset("'\"‘’“”")

Merge = tuple[str, str]


def build_tokenizer() -> Any:
    """The tokenizer: 256 bytes, the merged words, and Qwen2's chat tokens. Pads on the right."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Tokenizer

    from fuseproof.pipelines.tiny.longcat_image import CHAT_TEMPLATE, CHAT_TOKENS

    merges = word_merges([f"Ġ{word}" for word in all_words()] + all_words())
    symbols = [*sorted(ByteLevel.alphabet()), *(first + second for first, second in merges)]
    vocabulary = {symbol: number for number, symbol in enumerate(symbols)}
    vocabulary["<|endoftext|>"] = len(vocabulary)
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=merges, model_max_length=4096, padding_side="right")
    tokenizer.add_special_tokens({"additional_special_tokens": list(CHAT_TOKENS)})
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def all_words() -> list[str]:
    """The words of captions and of the pipeline's own sentence round every prompt."""
    template = PREFIX.replace("<|im_start|>", " ").replace("<|im_end|>", " ").replace("-", " ")
    return sorted({*lexicon(), *(word.strip(",.") for word in template.split()), "assistant"})


def word_merges(words: Sequence[str]) -> list[Merge]:
    """Byte-pair merges, the most frequent pair first (ties: the smaller), until every word is one symbol."""
    split = [list(word) for word in dict.fromkeys(words)]
    merges: dict[Merge, None] = {}
    made: set[str] = set()
    while True:
        pairs = Counter(pair for symbols in split for pair in pairwise(symbols))
        if not pairs:
            return list(merges)
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merged = "".join(best)
        if merged not in made:
            merges[best] = None
            made.add(merged)
        for symbols in split:
            _merge_in_place(symbols, best)


def _merge_in_place(symbols: list[str], pair: Merge) -> None:
    position = 0
    while position < len(symbols) - 1:
        if (symbols[position], symbols[position + 1]) == pair:
            symbols[position : position + 2] = ["".join(pair)]
        position += 1


def prompt_ids(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text as the pipeline makes them: what stands in quotation marks, character by character."""
    from diffusers.pipelines.longcat_image.pipeline_longcat_image import split_quotation

    parts: list[str] = []
    owners: list[int] = []
    for number, text in enumerate(texts):
        may_quote = not QUOTATION_MARKS.isdisjoint(text)
        for part, is_quoted in split_quotation(text) if may_quote else [(text, False)] if text else []:
            pieces = list(part) if is_quoted else [part]
            parts.extend(pieces)
            owners.extend([number] * len(pieces))
    ids: list[list[int]] = [[] for _ in texts]
    if parts:
        encoded = tokenizer.backend_tokenizer.encode_batch_fast(parts, add_special_tokens=False)
        for owner, tokens in zip(owners, encoded, strict=True):
            ids[owner].extend(tokens.ids)
    return ids


def padded_ids(tokenizer: Any, texts: Sequence[str]) -> torch.Tensor:
    """[N, LONGEST_PROMPT] int32, -1 after the end; a ValueError names a text that is too long."""
    ids = prompt_ids(tokenizer, texts)
    lengths = np.array([len(tokens) for tokens in ids])
    if len(lengths) and lengths.max() > LONGEST_PROMPT:
        longest = int(lengths.argmax())
        raise ValueError(f"{texts[longest]!r} has {lengths[longest]} tokens; {LONGEST_PROMPT} are the most in training")
    rows = np.full((len(texts), LONGEST_PROMPT), -1, dtype=np.int32)
    rows[np.arange(LONGEST_PROMPT) < lengths[:, None]] = np.fromiter(chain.from_iterable(ids), dtype=np.int32)
    return torch.from_numpy(rows)


@dataclass(frozen=True)
class Template:
    """What stands before every prompt, and the padding token."""

    prefix: torch.Tensor
    padding: int

    @classmethod
    def of(cls, tokenizer: Any, device: torch.device) -> Template:
        """The template in the tokens of ``tokenizer``, int64 on ``device``."""
        tokens = tokenizer(PREFIX, add_special_tokens=False)["input_ids"]
        return cls(torch.tensor(tokens, device=device), tokenizer.pad_token_id)


def drawn_positions(random_padding: int | None, seed: int, device: torch.device) -> torch.Tensor:
    """Which of the 512 positions a training step keeps, ascending [L] int64 on ``device``; None keeps all.

    No position attends to padding, so leaving padding tokens out changes no other token's embedding: what is dropped
    is only their share in the transformer's attention. The first LONGEST_PROMPT always stay.
    """
    if random_padding is None:
        return torch.arange(PROMPT_TOKENS, device=device)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(PROMPT_TOKENS - LONGEST_PROMPT, generator=generator)[:random_padding] + LONGEST_PROMPT
    return sent(torch.cat([torch.arange(LONGEST_PROMPT), chosen.sort().values]), device)


def embed_prompts(text_encoder: Any, ids: torch.Tensor, positions: torch.Tensor, template: Template) -> torch.Tensor:
    """Prompt embeddings [B, L, hidden] at ``positions``: what the pipeline's ``encode_prompt`` gives there.

    ``ids`` [B, LONGEST_PROMPT], -1 after the end. The suffix after the padding is left out: attention is causal.
    """
    return embed_behind(text_encoder, ids, positions, template.prefix, template.padding)[:, len(template.prefix) :]


def embed_behind(
    text_encoder: Any,
    ids: torch.Tensor,
    positions: torch.Tensor,
    before: torch.Tensor,
    padding: int,
    zero_token: int | None = None,
) -> torch.Tensor:
    """Last hidden states [B, before + L, hidden] of the tokens ``before`` and of the prompts ``ids`` at ``positions``.

    All on one device, and nothing in here waits for it or sends to it: a CUDA graph can hold it.
    The text encoder reads zeros where ``zero_token`` stands.
    """
    count, device = len(ids), ids.device
    wide = torch.full((count, len(positions)), -1, device=device, dtype=torch.int64)
    wide[:, : ids.shape[1]] = ids.long()
    is_prompt = wide >= 0
    tokens = torch.cat([before.expand(count, -1), torch.where(is_prompt, wide, padding)], dim=1)
    is_seen = torch.cat([torch.ones(count, len(before), device=device, dtype=torch.bool), is_prompt], dim=1)
    places = torch.cat([torch.arange(len(before), device=device), positions + len(before)])
    language_model = text_encoder.model.language_model
    embedded = language_model.embed_tokens(tokens)
    if zero_token is not None:
        embedded = embedded * (tokens != zero_token)[..., None]
    hidden: torch.Tensor = language_model(
        inputs_embeds=embedded,
        attention_mask=causal_mask(is_seen),
        position_ids=places.view(1, 1, -1).expand(3, count, -1),
        use_cache=False,
    ).last_hidden_state
    return hidden


def causal_mask(is_seen: torch.Tensor) -> dict[str, torch.Tensor]:
    """What transformers would make of the attention mask ``is_seen`` [B, L], bool: keys that are seen, and not later.

    Handed over ready-made. Its own code first asks the device whether all is seen, and so waits for it in every step.
    """
    length = is_seen.shape[1]
    is_earlier = torch.ones(length, length, device=is_seen.device, dtype=torch.bool).tril()
    return {"full_attention": is_earlier & is_seen[:, None, None, :]}


def text_ids(positions: torch.Tensor) -> torch.Tensor:
    """The transformer's position ids [L, 3] of text tokens, as ``prepare_pos_ids`` makes them."""
    return torch.stack([torch.zeros_like(positions), positions, positions], dim=-1).float()
