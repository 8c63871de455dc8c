"""Texts that a model writes and a pipeline draws in the prompt's place: a prompt enhancer's, a rewriter's.

What goes wrong while one is written is a fault of the model's files or of its chat template, so it is told in one
sentence, with the library's own cause. An empty text is refused: diffusers draws it without a word, as a picture of
nothing that was asked for, and it cannot be drawn again with ``--fixed-prompt``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from fuseproof.errors import FuseproofError

CAUSE_CHARACTERS = 200


def text_written_by(writer: str, flag: str, prompt: str, write: Callable[[], str]) -> str:
    """What ``write`` returns; ``writer`` and the ``flag`` that asks for it name it where it fails.

    Raises :class:`FuseproofError` for whatever the libraries raise, but a lack of memory, which is told elsewhere, and
    for a text of white space alone.
    """
    try:
        text = write()
    except (FuseproofError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise FuseproofError(
            f"The {writer} failed on the prompt {_short(prompt)}: {first_line_of(error)}.",
            next_step=f"Compare its files with the published ones, or leave {flag} out.",
        ) from error
    if not text.strip():
        raise FuseproofError(
            f"The {writer} wrote {text!r} for the prompt {_short(prompt)}; a text to draw was expected.",
            next_step=f"Use another --seed or another prompt, or leave {flag} out.",
        )
    return text


def first_line_of(error: Exception) -> str:
    """The kind of ``error`` and the first line of its text, without the end of a sentence."""
    first_line = (str(error).strip().splitlines() or [""])[0][:CAUSE_CHARACTERS].rstrip(".: ")
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__


def _short(prompt: str) -> str:
    return repr(prompt) if len(prompt) <= 40 else f"{prompt[:40]!r}…"
