"""What a request may ask for and a pipeline does not have."""

from __future__ import annotations

from fuseproof.errors import UsageError
from fuseproof.pipelines.requests import GenerationRequest


def refuse_absent_features(request: GenerationRequest, pipeline_class: str) -> None:
    """Raise a UsageError for guidance renormalised, a prompt rewritten or enhanced, of which the pipeline has none."""
    for is_asked, what in (
        (request.enable_cfg_renorm, "renormalised guidance"),
        (request.enable_prompt_rewrite, "prompt rewriting"),
        (request.use_pe, "a prompt enhancer"),
    ):
        if is_asked:
            raise UsageError(f"The request asks for {what}, which {pipeline_class} does not have.")
