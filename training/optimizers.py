"""How weights are stepped: AdamW, and Muon for the transformer's products, which needs fewer steps.

In the rehearsal of training/README.md Muon took about 0.6 of the steps that AdamW took to the same loss. Both take the
same learning rate: Muon's updates are scaled to the size that AdamW's have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from training.replayed_muon import ReplayedMuon

_SHARPNESS = re.compile(r"\.norm_(added_)?[qk]\.")
Groups = Iterable[tuple[torch.nn.Module, float]]
"""Modules, each with its share of the learning rate."""


class Optimizer:
    """One or several of torch's optimizers, stepped, saved and read as one."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of all parts; each has its ``rate_share``."""
        return [group for part in self.parts for group in part.param_groups]

    def step(self, rate: float, largest_norm: float) -> None:
        """One step at ``rate``, gradients clipped, then dropped."""
        for group in self.param_groups:
            group["lr"] = rate * group["rate_share"]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, largest_norm)
        for part in self.parts:
            part.step()
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """Forget all gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, Any]]:
        """Each part's."""
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        """What :meth:`state_dict` gave; a ValueError where the parts are others."""
        if len(states) != len(self.parts):
            raise ValueError(f"the state is of {len(states)} optimizers, and here are {len(self.parts)}")
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)


def adamw(groups: Groups, weight_decay: float, device: torch.device) -> Optimizer:
    """AdamW over modules; matrices alone decay."""
    return Optimizer(_adamw([(_trained(module), share) for module, share in groups], weight_decay, device))


def muon_and_adamw(
    transformer: torch.nn.Module,
    others: Groups,
    weight_decay: float,
    device: torch.device,
    *,
    sharpness_share: float = 1.0,
    replay: bool = False,
) -> Optimizer:
    """Muon for the products in the blocks of ``transformer``, AdamW for all other weights.

    ``sharpness_share``: the part of the rate that ``norm_q`` and ``norm_k`` get, which alone can make attention sharp.
    ``replay``: Muon's step is a CUDA graph.
    """
    products = [
        parameter
        for name, parameter in transformer.named_parameters()
        if parameter.requires_grad and parameter.ndim == 2 and "blocks." in name and "norm" not in name
    ]
    taken = {id(parameter) for parameter in products}
    left = [
        (name, parameter)
        for name, parameter in transformer.named_parameters()
        if parameter.requires_grad and id(parameter) not in taken
    ]
    sharpness = [parameter for name, parameter in left if _SHARPNESS.search(name)]
    plain = [parameter for name, parameter in left if not _SHARPNESS.search(name)]
    rest = [(plain, 1.0), (sharpness, sharpness_share), *((_trained(module), share) for module, share in others)]
    groups = [{"params": products, "rate_share": 1.0}]
    muon = (ReplayedMuon if replay else torch.optim.Muon)(
        groups, lr=1e-3, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    return Optimizer(muon, _adamw(rest, weight_decay, device))


def _trained(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _adamw(
    groups: Iterable[tuple[list[torch.nn.Parameter], float]], weight_decay: float, device: torch.device
) -> torch.optim.AdamW:
    parameters = []
    for trained, share in groups:
        for chosen, decay in (
            ([parameter for parameter in trained if parameter.ndim > 1], weight_decay),
            ([parameter for parameter in trained if parameter.ndim <= 1], 0.0),
        ):
            parameters.append({"params": chosen, "weight_decay": decay, "rate_share": share})
    return torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, fused=device.type == "cuda")
