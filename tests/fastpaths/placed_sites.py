"""A small module, and a site of one's own in its place, for tests of what becomes of a call."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fuseproof.fastpaths import Gate, UserSite
from fuseproof.fastpaths.user_families import ModuleOperation


class Scaled(nn.Module):
    """A module with a weight, a buffer, and a view of its input for the asking."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(1, 2, 8))
        self.register_buffer("offset", torch.ones(8))

    def forward(self, x: torch.Tensor, *, as_view: bool = False) -> torch.Tensor:
        return x[:1] if as_view else x * self.weight + self.offset


def place(module: nn.Module, fused: Any, gate: Gate | None = None, **site: Any) -> ModuleOperation:
    return ModuleOperation(UserSite("mine", fused, modules="*", **site), "scaled", module, gate or Gate("mine"))


def called(operation: ModuleOperation, *args: Any, **kwargs: Any) -> Any:
    return operation.run(operation.module.forward, args, kwargs)


def reasons(gate: Gate | None) -> list[str]:
    assert gate is not None
    return [*(rejection.reason for rejection in gate.rejections.values()), *gate.declined]


def eager(module, x, **kwargs):
    return type(module).forward(module, x, **kwargs)


def raising(module, x):
    raise ValueError("no\nluck \x1b[31m")


class Counting:
    """Right at first, then what ``later`` does."""

    def __init__(self, right: int, later: Any) -> None:
        self.right, self.later = right, later

    def __call__(self, module, x):
        self.right -= 1
        return eager(module, x) if self.right >= 0 else self.later(module, x)
