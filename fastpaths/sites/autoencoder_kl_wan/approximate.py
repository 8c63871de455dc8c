"""Which form of the coders is in force: the exact one, or an approximate one behind a gate of its own.

A call of a whole coder, one chunk of frames with its cache, is what an approximate form replaces and what is compared:
at first sight the exact form, behind its own gates, runs on the same input and the same cache, in eager's dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.sites.autoencoder_kl_wan.bf16 import computed_in_bf16
from fuseproof.fastpaths.sites.autoencoder_kl_wan.held_weights import TurnedWeights
from fuseproof.fastpaths.sites.autoencoder_kl_wan.one_pass import ComputedIn, KernelDeclinesError, OnePass
from fuseproof.fastpaths.sites.autoencoder_kl_wan.paths import computed_in, settings_of
from fuseproof.fastpaths.sites.forms import FormsInForce

ONE_PASS, BF16 = "wan_vae_one_pass", "wan_vae_bf16"
Exact = Callable[[list[Any], list[int]], torch.Tensor]


@dataclass(frozen=True)
class CoderForm:
    """One form of both coders. ``gate`` is the approximate site's; None: this is the exact form."""

    gate: Gate | None = None
    computed_in: ComputedIn = computed_in


def forms() -> FormsInForce[CoderForm]:
    """The forms of one VAE, and a choice among them for each thread."""
    return FormsInForce(
        CoderForm(), lambda name, gate: CoderForm(gate, computed_in_bf16 if name == BF16 else computed_in)
    )


def run(
    form: CoderForm,
    coder: Any,
    weights: TurnedWeights,
    x: torch.Tensor,
    feat_cache: list[Any],
    feat_idx: list[int],
    first_chunk: bool,
    exact: Exact,
) -> torch.Tensor:
    """One call of ``coder`` in an approximate ``form``; at first sight, and where that is rejected, ``exact`` too."""
    assert form.gate is not None
    dtype = computed_in(x, coder.conv_in)
    outcomes: list[tuple[torch.Tensor, list[Any], int]] = []

    def approximate() -> torch.Tensor:
        entries, one_pass = list(feat_cache), OnePass(coder, weights, form.computed_in)
        result = one_pass.run(x, entries, first_chunk=first_chunk).to(dtype)
        outcomes.append((result, entries, one_pass.place))
        return result

    def eager() -> torch.Tensor:
        entries, index = [_as_eager(entry, dtype) for entry in feat_cache], [0]
        result = exact(entries, index)
        outcomes.append((result, entries, index[0]))
        return result

    key = (type(coder).__name__, first_chunk, *map(_shape, (x, *feat_cache)), settings_of(x), id(coder))
    try:
        result: torch.Tensor = form.gate.run(key, approximate, eager, same_layout=False)
    except KernelDeclinesError as declined:
        result = form.gate.decline(str(declined), eager)
    entries, place = next((entries, place) for outcome, entries, place in outcomes if outcome is result)
    feat_cache[:] = entries
    feat_idx[0] = place
    return result


def _as_eager(entry: Any, dtype: torch.dtype) -> Any:
    """An entry of the cache as the exact form may have it."""
    return entry.to(dtype).contiguous() if isinstance(entry, torch.Tensor) else entry


def _shape(entry: Any) -> Hashable:
    return (entry.shape, entry.dtype) if isinstance(entry, torch.Tensor) else entry
