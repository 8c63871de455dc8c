"""What diffusers' editing pipeline fails on, or would take another way, refused on both backends before it runs.

The faults (``LongCatImageEditPipeline``, diffusers 0.42.1): a prompt over 512 tokens ends in a TypeError, because the
sentence that should announce its truncation calls ``len`` twice; an image placeholder in a prompt, ``image=None`` and a
list of prompts end deep inside the libraries. Renormalisation and prompt rewriting do not exist there, so a request
must not ask for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fuseproof.errors import UsageError
from fuseproof.pipelines.absent_features import refuse_absent_features
from fuseproof.pipelines.checkpoints import Checkpoint
from fuseproof.pipelines.longcat_image_edit import PIPELINE_CLASS
from fuseproof.pipelines.requests import GenerationRequest

PROMPT_TOKENS = 512
IMAGE_TOKEN = "<|image_pad|>"


def refuse_unsupported(pipe: Any, request: GenerationRequest) -> None:
    """Raise a UsageError for a request that the editing ``pipe`` cannot carry out as written."""
    if request.image is None or request.canvas_pixels is None:
        raise UsageError(
            "The request has no input image, and this model edits one.", next_step="Give the image with --image-path."
        )
    refuse_absent_features(request, PIPELINE_CLASS)
    _refuse_prompts(pipe.tokenizer, request)


def refuse_prompts_before_loading(checkpoint: Checkpoint, requests: Iterable[GenerationRequest]) -> None:
    """The same for prompts alone, before a weight is read. The tokenizer is loaded only where a prompt may be long."""
    if not checkpoint.family.takes_image:
        return
    doubtful = [request for request in requests if not all(map(_is_surely_short, _prompts(request)))]
    if not doubtful:
        return
    from fuseproof.pipelines.loading import load_tokenizer

    tokenizer = load_tokenizer(checkpoint)
    for request in doubtful:
        _refuse_prompts(tokenizer, request)


def count_tokens(tokenizer: Any, prompt: str) -> int:
    """How many tokens the pipeline makes of ``prompt``: as a whole, but character by character inside quotes."""
    from diffusers.pipelines.longcat_image.pipeline_longcat_image_edit import split_quotation

    pieces = [piece for text, is_quoted in split_quotation(prompt) for piece in (text if is_quoted else [text])]
    return sum(len(tokenizer(piece, add_special_tokens=False)["input_ids"]) for piece in pieces)


def _refuse_prompts(tokenizer: Any, request: GenerationRequest) -> None:
    for name, prompt in zip(("prompt", "negative prompt"), _prompts(request), strict=True):
        if not isinstance(prompt, str):
            raise UsageError(
                f"The {name} is a {type(prompt).__name__}; one request takes one text.", next_step="Make it a request."
            )
        if IMAGE_TOKEN in prompt:
            raise UsageError(
                f"The {name} holds {IMAGE_TOKEN!r}, which stands for the input image in this model.",
                next_step="Leave it out; the image comes from --image-path.",
            )
        tokens = 0 if _is_surely_short(prompt) else count_tokens(tokenizer, prompt)
        if tokens > PROMPT_TOKENS:
            raise UsageError(
                f"The {name} has {tokens} tokens, and this model takes at most {PROMPT_TOKENS}: {prompt[:40]!r}…",
                next_step="Shorten it; it is never cut silently.",
            )


def _prompts(request: GenerationRequest) -> tuple[str, str]:
    return request.prompt_for_model, request.negative_prompt or ""


def _is_surely_short(prompt: str) -> bool:
    """No tokenizer makes more tokens of ASCII than it has characters; the image token is looked for by itself."""
    return prompt.isascii() and len(prompt) <= PROMPT_TOKENS and IMAGE_TOKEN not in prompt
