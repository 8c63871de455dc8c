"""What a pipeline cannot carry out as a request says it, refused on both backends before anything runs."""

from __future__ import annotations

from typing import Any

from fuseproof.errors import UsageError
from fuseproof.pipelines import edit_guards, ernie_guards, ernie_image, longcat_image_edit
from fuseproof.pipelines.requests import GenerationRequest


def refuse_unsupported(pipe: Any, request: GenerationRequest) -> None:
    """Raise a UsageError for a request that ``pipe`` would fail on, or would answer with something else."""
    kind = type(pipe).__name__
    if kind == longcat_image_edit.PIPELINE_CLASS:
        edit_guards.refuse_unsupported(pipe, request)
        return
    if request.image is not None:
        raise UsageError(f"The request has an input image, and {kind} takes none.", next_step="Leave it out.")
    if kind == ernie_image.PIPELINE_CLASS:
        ernie_guards.refuse_unsupported(pipe, request)
    elif request.use_pe:
        raise UsageError(f"The request asks for a prompt enhancer, which {kind} does not have.")
