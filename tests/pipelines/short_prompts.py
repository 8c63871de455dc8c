"""Prompts padded to fewer tokens than the 512 of a release: most of a small forward, and no code branches on it."""

from __future__ import annotations

from typing import Any

SHORT_PROMPT_TOKENS = 96
"""More than any prompt here that is not meant to be cut: the small tokenizers make a token of nearly every byte."""


def with_short_prompts(pipe: Any) -> Any:
    """The pipeline itself, its prompts padded to 96 tokens: diffusers reads the number anew in every request."""
    pipe.tokenizer_max_length = SHORT_PROMPT_TOKENS
    return pipe
