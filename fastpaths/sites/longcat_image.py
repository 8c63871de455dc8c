"""LongCat-Image: computing once what does not change.

Formulas (diffusers 0.42.1, ``LongCatImageTransformer2DModel.forward``), each evaluated in eager on every forward:

- ``context_embedding``: ``context_embedder(encoder_hidden_states)``, [B, 512, 3584] -> [B, 512, D]; once per request
  and guidance branch.
- ``rotary_tables``: ``pos_embed(cat(txt_ids, img_ids))``, [S, 3] -> 2 x [S, 128] fp32; once per request and branch.
- ``timestep_embedding``: ``time_embed(timestep.to(dtype) * 1000, dtype)``, [B] -> [B, D]; once per step.
- ``modulation``: ``linear(silu(temb))`` of every AdaLN, [B, D] -> [B, 6 D], [B, 3 D] or [B, 2 D]; once per step. In
  this family temb depends on the timestep alone, so both branches share it.

Exact: a held result *is* an earlier eager result of the same objects. No kernel, no rounding of its own, any device,
any dtype. Bytes saved per forward on the real model: the 3.4 GB of AdaLN weights for every second branch.

What is "the same step": the pipeline's own current-timestep object while a pipeline runs the loop, else the timestep
tensor passed to the transformer; and never across a ``scheduler.step``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from fuseproof.fastpaths.gates import Gate, undecidable
from fuseproof.fastpaths.hoisting import HeldResults

TRANSFORMER_CLASS = "LongCatImageTransformer2DModel"
SITES = ("context_embedding", "rotary_tables", "timestep_embedding", "modulation")
QUALITY_OF_SITE = dict.fromkeys(SITES, "lossless")


@dataclass
class CurrentCall:
    """The objects of the transformer call in progress; empty between calls."""

    context: torch.Tensor | None = None
    txt_ids: torch.Tensor | None = None
    img_ids: torch.Tensor | None = None
    step: object | None = None


@dataclass(frozen=True)
class Hoist:
    """One module whose forward is replaced: its site, a result's lifetime, and the objects that identify its inputs."""

    site: str
    name: str
    module: nn.Module
    lives_for: Literal["request", "step"]
    identify: Callable[[CurrentCall], tuple[object | None, ...]]


def reject_reason(transformer: nn.Module) -> str | None:
    """Why this transformer cannot carry the sites, naming what was seen and what is needed; None if it can."""
    if type(transformer).__name__ != TRANSFORMER_CLASS:
        return f"transformer is {type(transformer).__name__}, the sites need {TRANSFORMER_CLASS}"
    for attribute in ("context_embedder", "pos_embed", "time_embed", "transformer_blocks", "single_transformer_blocks"):
        if not hasattr(transformer, attribute):
            return f"transformer has no `{attribute}`"
    for name, module in _modulation_modules(transformer):
        if type(module) not in (nn.SiLU, nn.Linear):
            return f"{name} is {type(module).__name__}, the sites need a plain SiLU or Linear (an adapter changes it)"
    return None


def hoists(transformer: Any, sites: tuple[str, ...]) -> Iterator[Hoist]:
    """The modules to replace for the chosen ``sites``."""
    if "context_embedding" in sites:
        module = transformer.context_embedder
        yield Hoist("context_embedding", "context_embedder", module, "request", lambda call: (call.context,))
    if "rotary_tables" in sites:
        module = transformer.pos_embed
        yield Hoist("rotary_tables", "pos_embed", module, "request", lambda call: (call.txt_ids, call.img_ids))
    if "timestep_embedding" in sites:
        module = transformer.time_embed
        yield Hoist("timestep_embedding", "time_embed", module, "step", lambda call: (call.step,))
    if "modulation" in sites:
        for name, module in _modulation_modules(transformer):
            yield Hoist("modulation", name, module, "step", lambda call: (call.step,))


def hoisted_forward(hoist: Hoist, call: CurrentCall, gate: Gate, held: HeldResults) -> Callable[..., Any]:
    """The replacement of ``hoist.module.forward``: a held result where the inputs are the same objects, else eager."""
    eager = hoist.module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return eager(*args, **kwargs)
        identity = hoist.identify(call)
        if any(part is None for part in identity) or undecidable():
            return gate.run_eager(lambda: eager(*args, **kwargs))
        key = (hoist.name, *(_signature(argument) for argument in (*args, *kwargs.values())))
        entry = held.find(key, identity)
        if entry is not None:
            return gate.run(key, lambda: entry.result, lambda: eager(*args, **kwargs))
        result = gate.run_eager(lambda: eager(*args, **kwargs))
        held.hold(key, identity, result)
        return result

    return forward


def watched_forward(
    transformer: Any, call: CurrentCall, current_step: Callable[[], object | None]
) -> Callable[..., Any]:
    """The replacement of ``transformer.forward``: note whose call this is, then run it unchanged."""
    eager = transformer.forward

    def forward(
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        timestep: torch.Tensor | None = None,
        img_ids: torch.Tensor | None = None,
        txt_ids: torch.Tensor | None = None,
        guidance: torch.Tensor | None = None,
        return_dict: bool = True,
    ) -> Any:
        step = current_step()
        call.context, call.txt_ids, call.img_ids = encoder_hidden_states, txt_ids, img_ids
        call.step = timestep if step is None else step
        try:
            return eager(hidden_states, encoder_hidden_states, timestep, img_ids, txt_ids, guidance, return_dict)
        finally:
            call.context = call.txt_ids = call.img_ids = call.step = None

    return forward


def _modulation_modules(transformer: Any) -> Iterator[tuple[str, nn.Module]]:
    for name, norm in _adaptive_norms(transformer):
        yield f"{name}.silu", norm.silu
        yield f"{name}.linear", norm.linear


def _adaptive_norms(transformer: Any) -> Iterator[tuple[str, Any]]:
    for index, block in enumerate(transformer.transformer_blocks):
        yield f"transformer_blocks.{index}.norm1", block.norm1
        yield f"transformer_blocks.{index}.norm1_context", block.norm1_context
    for index, block in enumerate(transformer.single_transformer_blocks):
        yield f"single_transformer_blocks.{index}.norm", block.norm
    yield "norm_out", transformer.norm_out


def _signature(argument: Any) -> Hashable:
    if isinstance(argument, torch.Tensor):
        return (tuple(argument.shape), argument.stride(), argument.dtype, argument.device)
    signature: Hashable = argument
    return signature
