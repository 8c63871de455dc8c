"""What diffusers' ERNIE-Image pipeline leaves out without a word, refused or said on both backends.

Without a loaded prompt enhancer, ``use_pe=True`` draws the bare prompt; a chat template that leaves the prompt out has
the enhancer write about nothing; a prompt over the tokenizer's limit is cut; and a scheduler that shifts by the number
of tokens fails, because the pipeline hands it no number (``ErnieImagePipeline``, diffusers 0.42.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines.ernie_image import PIPELINE_CLASS, prepare_timesteps
from fuseproof.pipelines.families import PROMPT_ENHANCER
from fuseproof.pipelines.guided_step import EULER
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.timestep_guards import refuse_unusable_timesteps
from fuseproof.pipelines.written_texts import first_line_of

SIZE_MULTIPLE = 16
PROBE = "probe"
"""A prompt that every usable chat template puts to the enhancer as it is."""
TEMPLATE_STEP = "Put the published chat_template.jinja into the folder pe_tokenizer, or leave --use-pe out."


def refuse_unsupported(pipe: Any, request: GenerationRequest) -> None:
    """Raise for a request that the ERNIE-Image ``pipe`` cannot carry out as written."""
    for name, side in (("width", request.width), ("height", request.height)):
        if side % SIZE_MULTIPLE:
            raise UsageError(f"The request's {name} is {side}; a multiple of {SIZE_MULTIPLE} was expected.")
    for is_asked, what in (
        (request.enable_cfg_renorm, "renormalised guidance"),
        (request.enable_prompt_rewrite, "prompt rewriting"),
    ):
        if is_asked:
            raise UsageError(f"The request asks for {what}, which {PIPELINE_CLASS} does not have.")
    if request.use_pe:
        _refuse_without_enhancer(pipe)
    if pipe.scheduler.config.get("use_dynamic_shifting"):
        raise FuseproofError(
            f"The scheduler shifts its sigmas by the number of tokens (use_dynamic_shifting), and {PIPELINE_CLASS} "
            "does not tell it that number.",
            next_step="Use a scheduler config with a fixed shift, as ERNIE-Image is published with.",
        )
    if type(pipe.scheduler).__name__ == EULER:
        refuse_unusable_timesteps(
            pipe.scheduler,
            request,
            lambda scheduler: prepare_timesteps(scheduler, request.num_inference_steps, torch.device("cpu")),
        )


def cut_texts(pipe: Any, request: GenerationRequest, written: str | None) -> Iterator[str]:
    """One sentence for each text that the tokenizer cut: ``written`` in the prompt's place, and the negative prompt.

    Other pipelines cut theirs elsewhere, and say so there.
    """
    if type(pipe).__name__ != PIPELINE_CLASS:
        return
    longest = pipe.tokenizer.model_max_length
    texts = [("a prompt", request.prompt if written is None else written)]
    if request.guidance_scale > 1:
        texts.append(("a negative prompt", request.negative_prompt or ""))
    for name, text in texts:
        # No tokenizer makes more tokens of a text than it has bytes, and one that stands in front.
        if len(text.encode()) < longest:
            continue
        # Asked, not reckoned: a tokenizer with a limit of 0 cuts nothing.
        tokens, used = (
            len(pipe.tokenizer(text, add_special_tokens=True, truncation=is_cut)["input_ids"])
            for is_cut in (False, True)
        )
        if tokens > used:
            yield f"{name} has {tokens} tokens and only its first {used} were used"


def _refuse_without_enhancer(pipe: Any) -> None:
    absent = [name for name in PROMPT_ENHANCER if getattr(pipe, name) is None]
    if absent:
        raise UsageError(
            f"The prompt enhancer is not loaded: this pipeline has no {' and no '.join(absent)}.",
            next_step="Leave --use-pe out, or use a checkpoint with its prompt enhancer.",
        )
    if pipe.pe_tokenizer.chat_template is None:
        raise FuseproofError(
            "The prompt enhancer's tokenizer has no chat template, so the prompt cannot be put to it.",
            next_step=TEMPLATE_STEP,
        )
    message = {"role": "user", "content": PROBE}
    try:
        rendered = pipe.pe_tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=False)
    except Exception as error:
        raise FuseproofError(
            f"The chat template of the prompt enhancer cannot be used: {first_line_of(error)}.", next_step=TEMPLATE_STEP
        ) from error
    if PROBE not in rendered:
        raise FuseproofError(
            f"The chat template of the prompt enhancer leaves the prompt out: it makes {rendered[:40]!r} of {PROBE!r}.",
            next_step=TEMPLATE_STEP,
        )
