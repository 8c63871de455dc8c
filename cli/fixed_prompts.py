"""Texts that are drawn in the prompts' place: what a prompt enhancer wrote once, so that every run draws the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuseproof.errors import FuseproofError, UsageError

if TYPE_CHECKING:
    from fuseproof.cli.generate_options import GenerateOptions

FIXED_STEP = "Give one --fixed-prompt for each prompt, in their order."


def read_fixed_prompts(options: GenerateOptions, prompts: tuple[str, ...]) -> tuple[str | None, ...]:
    """For each of ``prompts``, the text of ``--fixed-prompt`` or ``--fixed-prompt-path``; None where there is none.

    The file is the perf dump of a run that enhanced (or rewrote) the same prompts. Raises :class:`UsageError` where the
    texts are not as many, or are of other prompts, and :class:`FuseproofError` for a file that is no such dump.
    """
    if options.fixed_prompt_path is not None:
        return _texts_of_dump(options.fixed_prompt_path, prompts)
    if not options.fixed_prompt:
        return (None,) * len(prompts)
    if len(options.fixed_prompt) != len(prompts):
        raise UsageError(
            f"{len(options.fixed_prompt)} --fixed-prompt were given for {len(prompts)} prompts.", next_step=FIXED_STEP
        )
    return options.fixed_prompt


def _texts_of_dump(path: str, prompts: tuple[str, ...]) -> tuple[str, ...]:
    from fuseproof.harness.perf.dump import read_perf_dump

    entries = read_perf_dump(path).requests
    recorded = tuple(entry.get("prompt") for entry in entries)
    if recorded != prompts:
        shown = ", ".join(repr(prompt) for prompt in recorded[:3]) or "no requests"
        raise UsageError(
            f"--fixed-prompt-path {path} holds the texts of other prompts than these: {shown}.",
            next_step="Give the prompts of that run, in its order.",
        )
    texts = [entry.get("rewritten_prompt") for entry in entries]
    for prompt, text in zip(prompts, texts, strict=True):
        if not isinstance(text, str) or not text.strip():
            raise FuseproofError(
                f"--fixed-prompt-path {path} holds no text that was written for the prompt {prompt!r}.",
                next_step="Name the perf dump of a run with --use-pe.",
            )
    return tuple(str(text) for text in texts)
