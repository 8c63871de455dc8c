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
Replaces: in ``LongCatImageTransformer2DModel.forward``, diffusers 0.42.1,
    - ``context_embedding``: the projection of the prompt (``context_embedder``), anew in every forward;
    - ``rotary_tables``: the cos and sin of all positions (``pos_embed``), anew in every forward;
    - ``timestep_embedding``: the embedding of the step (``time_embed``), anew in each guidance branch;
    - ``modulation``: SiLU and linear of every AdaLN, anew in each guidance branch.
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

from fuseproof.fastpaths.foreign_code import foreign_reason
from fuseproof.fastpaths.gates import Gate, undecidable_because
from fuseproof.fastpaths.hoisting import HeldResults, are_countable
from fuseproof.fastpaths.module_state import Guard
from fuseproof.fastpaths.numerics import numerics_of
from fuseproof.fastpaths.replacements import Forward, is_replaced
from fuseproof.fastpaths.sites.held_values import UNTRACKED, held_value

TRANSFORMER_CLASS = "LongCatImageTransformer2DModel"
OUTSIDE = "called by other code than the transformer's own forward"


class CurrentCall(threading.local):
    """The tensors of the transformer call in progress in this thread; None between calls."""

    txt_ids: torch.Tensor | None = None
    img_ids: torch.Tensor | None = None
    timestep: torch.Tensor | None = None
    numerics: Hashable = None
    is_running: bool = False
    reason: str | None = None
    """Why nothing may be held or reused in this call."""

    @contextmanager
    def of(self, arguments: CallArguments, reason: str | None) -> Iterator[None]:
        """While a call runs, this is whose it is."""
        self.txt_ids, self.img_ids, self.timestep = arguments.txt_ids, arguments.img_ids, arguments.timestep
        self.is_running, self.reason = True, reason
        self.numerics = numerics_of(arguments.hidden_states.device) if reason is None else None
        try:
            yield
        finally:
            self.txt_ids = self.img_ids = self.timestep = self.numerics = self.reason = None
            self.is_running = False


@dataclass(frozen=True)
class CallArguments:
    """The parameters of ``LongCatImageTransformer2DModel.forward``; a TypeError where a call has others."""

    hidden_states: torch.Tensor
    encoder_hidden_states: torch.Tensor | None = None
    timestep: torch.Tensor | None = None
    img_ids: torch.Tensor | None = None
    txt_ids: torch.Tensor | None = None
    guidance: torch.Tensor | None = None
    return_dict: bool = True

    def reject_reason(self) -> str | None:
        """Why nothing can be decided about these, whatever runs: one is no tensor, a subclass, or has no memory."""
        for name in ("hidden_states", "encoder_hidden_states", "timestep", "img_ids", "txt_ids"):
            value = getattr(self, name)
            if type(value) not in (torch.Tensor, nn.Parameter):
                return f"{name} is a {type(value).__name__}; the sites take plain tensors"
            if value.is_meta:
                return f"{name} is on the meta device"
        return None


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
    from diffusers import LongCatImageTransformer2DModel

    if type(transformer) is not LongCatImageTransformer2DModel:
        kind = type(transformer)
        return (
            f"transformer is {kind.__module__}.{kind.__qualname__}, the sites need diffusers' own {TRANSFORMER_CLASS}"
        )
    for attribute in ("context_embedder", "pos_embed", "time_embed", "transformer_blocks", "single_transformer_blocks"):
        if not hasattr(transformer, attribute):
            return f"transformer has no `{attribute}`"
    for name, module in _modulation_modules(transformer):
        if type(module) not in (nn.SiLU, nn.Linear):
            return f"{name} is {type(module).__name__}, the sites need a plain SiLU or Linear (an adapter changes it)"
    if is_replaced(transformer):
        return "the transformer's own forward was replaced (by offloading?), which the fast paths would pass by"
    return foreign_reason(_outside_of_blocks(transformer))


def site_reasons(transformer: Any) -> dict[str, str]:
    """Hoisting sites with somebody's hook or forward on what they would hold: its effect would be held too."""
    reasons: dict[str, str] = {}
    for hoist in hoists(transformer, ("context_embedding", "rotary_tables", "timestep_embedding", "modulation")):
        for name, module in hoist.module.named_modules(prefix=hoist.name):
            if is_replaced(module) or module._forward_hooks or module._forward_pre_hooks:
                reasons.setdefault(hoist.site, f"{name} has a hook or another forward, whose effect would be held")
    return reasons


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
        if call.reason is not None:
            return gate.decline(call.reason, lambda: eager(*args, **kwargs))
        sources = _sources(hoist, call, (*args, *kwargs.values()))
        cause = undecidable_because() if call.is_running else OUTSIDE
        if sources is None or cause is not None:
            return gate.run_eager(lambda: eager(*args, **kwargs), cause or UNTRACKED)
        key = (hoist.name, call.numerics, *(_signature(argument) for argument in (*args, *kwargs.values())))
        return held_value(gate, held, key, sources, lambda: eager(*args, **kwargs))

    return forward


def watched_forward(call: CurrentCall, guard: Guard, eager: Forward) -> Forward:
    """The replacement of ``transformer.forward``: note whose call this is, then run it unchanged."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        arguments = arguments_of(args, kwargs)
        if arguments is None or torch.compiler.is_compiling():
            return eager(*args, **kwargs)
        with call.of(arguments, guard.reason() or arguments.reject_reason()):
            return eager(*args, **kwargs)

    return forward


def arguments_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallArguments | None:
    """A call's arguments by name; None where diffusers' own forward has no such parameters."""
    try:
        return CallArguments(*args, **kwargs)
    except TypeError:
        return None


def _sources(hoist: Hoist, call: CurrentCall, args: tuple[Any, ...]) -> tuple[torch.Tensor, ...] | None:
    """Every tensor that the result is a function of, weights included; None where their writes cannot be told."""
    inputs = args if hoist.identify is None else hoist.identify(call)
    sources = (*inputs, *hoist.module.parameters(), *hoist.module.buffers())
    tensors = tuple(tensor for tensor in sources if isinstance(tensor, torch.Tensor))
    return tensors if len(tensors) == len(sources) and are_countable(tensors) else None


def _outside_of_blocks(transformer: Any) -> Iterator[tuple[str, nn.Module]]:
    """The transformer itself and all that is in no block."""
    for name, module in transformer.named_modules():
        if not name.startswith(("transformer_blocks.", "single_transformer_blocks.")):
            yield name or "transformer", module


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
