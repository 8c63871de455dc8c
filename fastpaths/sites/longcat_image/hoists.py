"""Computing once what does not change: prompt, positions and step, each held from the call that computed it.

Site: context_embedding, rotary_tables, timestep_embedding, modulation
Formula: each evaluated in eager on every forward, here
    - ``context_embedding``: ``context_embedder(encoder_hidden_states)``, once per request and guidance branch;
    - ``rotary_tables``: ``pos_embed(cat(txt_ids, img_ids))``, once per request and branch;
    - ``timestep_embedding``: ``time_embed(timestep.to(dtype) * 1000, dtype)``, once per step;
    - ``modulation``: ``linear(silu(temb))`` of every AdaLN, once per step. In this family temb depends on the timestep
      alone, so both branches share it. Where the blocks are rewritten, one table (:mod:`modulation`) takes the place
      of these replacements.
Shapes: [B, 512, 3584] -> [B, 512, D]; [S, 3] -> 2 x [S, 128] fp32; [B] -> [B, D]; [B, D] -> [B, 6 D], [B, 3 D] or
    [B, 2 D]. Any device, any dtype.
Rounds: not at all; there is no kernel.
Replaces: those expressions of ``LongCatImageTransformer2DModel.forward``, diffusers 0.42.1.
Exact: a held result *is* an earlier eager result of the same objects: the very tensors that a module, or the
    transformer around it, was called with, unchanged since. A step is its timestep tensor: the second branch shares the
    first one's work where the loop hands both the same object, as the native pipeline does.
Declines: tensors made under ``inference_mode``, whose writes nobody counts, and an adapter in an AdaLN. diffusers' own
    loop makes a new timestep for each branch, and there the two per-request sites alone take effect. ``modulation``
    sees the same temb only where ``timestep_embedding`` is mounted too.
Bytes: none moved; saved on the released model, the 3.4 GB of AdaLN weights in every second branch of a forward.
Check first: if the trace shows a GEMV for every AdaLN in both branches of a step, check that both were handed the same
    timestep tensor; if ``pos_embed`` appears in every forward, check that the position ids are not made anew.
Source: diffusers transformer_longcat_image.py, 0.42.1.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fuseproof.fastpaths.gates import Gate, undecidable
from fuseproof.fastpaths.hoisting import HeldResults, are_countable
from fuseproof.fastpaths.replacements import Forward

TRANSFORMER_CLASS = "LongCatImageTransformer2DModel"


class CurrentCall(threading.local):
    """The tensors of the transformer call in progress in this thread; None between calls."""

    txt_ids: torch.Tensor | None = None
    img_ids: torch.Tensor | None = None
    timestep: torch.Tensor | None = None
    numerics: Hashable = None

    @contextmanager
    def of(
        self,
        txt_ids: torch.Tensor | None,
        img_ids: torch.Tensor | None,
        timestep: torch.Tensor | None,
        device: torch.device,
    ) -> Iterator[None]:
        """While a call runs, this is whose it is."""
        self.txt_ids, self.img_ids, self.timestep = txt_ids, img_ids, timestep
        self.numerics = numerics_of(device)
        try:
            yield
        finally:
            self.txt_ids = self.img_ids = self.timestep = self.numerics = None


@dataclass(frozen=True)
class Hoist:
    """One module whose forward is replaced: its site and its name in the model.

    ``identify`` gives the tensors that its arguments were made from; None where the arguments speak for themselves.
    """

    site: str
    name: str
    module: nn.Module
    identify: Callable[[CurrentCall], tuple[torch.Tensor | None, ...]] | None = None


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
        yield Hoist("context_embedding", "context_embedder", transformer.context_embedder)
    if "rotary_tables" in sites:
        yield Hoist("rotary_tables", "pos_embed", transformer.pos_embed, lambda call: (call.txt_ids, call.img_ids))
    if "timestep_embedding" in sites:
        yield Hoist("timestep_embedding", "time_embed", transformer.time_embed, lambda call: (call.timestep,))
    if "modulation" in sites:
        for name, module in _modulation_modules(transformer):
            yield Hoist("modulation", name, module)


def hoisted_forward(hoist: Hoist, call: CurrentCall, gate: Gate, held: HeldResults, eager: Forward) -> Forward:
    """The replacement of ``hoist.module.forward``: a held result where the sources are the same tensors, else eager."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return eager(*args, **kwargs)
        sources = _sources(hoist, call, args)
        if sources is None or undecidable():
            return gate.run_eager(lambda: eager(*args, **kwargs))
        key = (hoist.name, call.numerics, *(_signature(argument) for argument in (*args, *kwargs.values())))
        entry = held.find(key, sources)
        if entry is not None:
            return gate.run(key, lambda: entry.result, lambda: eager(*args, **kwargs))
        result = gate.run_eager(lambda: eager(*args, **kwargs))
        gate.decide(key, result, lambda: eager(*args, **kwargs))
        held.hold(key, sources, result)
        return result

    return forward


def watched_forward(call: CurrentCall, eager: Forward) -> Forward:
    """The replacement of ``transformer.forward``: note whose call this is, then run it unchanged."""

    def forward(
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        timestep: torch.Tensor | None = None,
        img_ids: torch.Tensor | None = None,
        txt_ids: torch.Tensor | None = None,
        guidance: torch.Tensor | None = None,
        return_dict: bool = True,
    ) -> Any:
        with call.of(txt_ids, img_ids, timestep, hidden_states.device):
            return eager(hidden_states, encoder_hidden_states, timestep, img_ids, txt_ids, guidance, return_dict)

    return forward


def numerics_of(device: torch.device) -> Hashable:
    """The process-wide switches that change the arithmetic of the same modules on the same tensors."""
    autocast = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
    return autocast, torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()


def _sources(hoist: Hoist, call: CurrentCall, args: tuple[Any, ...]) -> tuple[torch.Tensor, ...] | None:
    """Every tensor that the result is a function of, weights included; None where their writes cannot be told."""
    inputs = args if hoist.identify is None else hoist.identify(call)
    sources = (*inputs, *hoist.module.parameters())
    tensors = tuple(tensor for tensor in sources if isinstance(tensor, torch.Tensor))
    return tensors if len(tensors) == len(sources) and are_countable(tensors) else None


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
