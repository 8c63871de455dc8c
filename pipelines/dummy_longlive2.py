"""LongLive 2 on dummy weights: those of Wan 2.2 TI2V 5B, whose sizes it has, in the causal transformer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fuseproof.pipelines import dummy_wan
from fuseproof.pipelines.dummy_geometry import DummyGeometry
from fuseproof.pipelines.family import Family
from fuseproof.pipelines.longlive2_steps import FLOW_SHIFT
from fuseproof.pipelines.tiny.wan import flow_scheduler, letter_tokenizer

GAINS = dummy_wan.GAINS


def builders(geometry: DummyGeometry) -> dict[str, Callable[[], Any]]:
    """What makes each model component, by its name."""
    wan = dummy_wan.builders(geometry)
    return {**wan, "transformer": lambda: _causal(wan["transformer"]())}


def finish(models: Mapping[str, torch.nn.Module]) -> None:
    """What is changed in drawn ``models``, in place, so that a denoising loop denoises."""
    dummy_wan.finish(models)


def other_components(_family: Family) -> dict[str, Any]:
    """What the pipeline takes besides models."""
    return {"scheduler": flow_scheduler(FLOW_SHIFT), "tokenizer": letter_tokenizer()}


def _causal(transformer: Any) -> Any:
    from fuseproof.pipelines.longlive2_model import as_longlive2

    return as_longlive2(transformer)
