"""A kernel behind its gate: fused where the gate has seen equal bits, the reference elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol

import torch

from fuseproof.fastpaths.gates import Gate


class Operation(Protocol):
    """What a kernel module offers (``fastpaths/kernels/<op>.py``): three functions of the same parameters."""

    reference: Callable[..., Any]
    reject_reason: Callable[..., str | None]
    fused: Callable[..., Any]


class GatedOperation:
    """Calls ``operation``; ``gate`` None means that the site is off, and only the reference runs.

    Keyword arguments are output tensors, for the fused form alone. They may alias inputs: a gate that has not decided
    yet saves them first. Use what is returned: the reference returns fresh tensors.
    """

    def __init__(self, name: str, operation: Any, gate: Gate | None) -> None:
        form = operation  # the reference stays the built-in one, whoever stands in for the fused form
        if gate is not None and name in gate.stand_ins:
            form, gate = gate.stand_ins[name]
        self.name = name
        self.gate = gate
        self._reference: Callable[..., Any] = operation.reference
        self._reject_reason: Callable[..., str | None] = form.reject_reason
        self.fused_form: Callable[..., Any] = form.fused
        self._reasons: dict[Hashable, str | None] = {}

    def __call__(self, *arguments: Any, **outputs: torch.Tensor) -> Any:
        if self.gate is None:
            return self._reference(*arguments)
        if self.gate.call_observer is not None:
            self.gate.call_observer(self, arguments, outputs)
        key = (self.name, *map(signature, arguments), *map(signature, outputs.values()))
        reason = self._reason(key, arguments, outputs)
        if reason is not None:
            return self.gate.decline(reason, lambda: self._reference(*arguments))
        return self.gate.run(
            key,
            lambda: self.fused_form(*arguments, **outputs),
            lambda: self._reference(*arguments),
            writes=tuple(outputs.values()),
            same_layout=not outputs,
        )

    def _reason(self, key: Hashable, arguments: tuple[Any, ...], outputs: dict[str, torch.Tensor]) -> str | None:
        """The key holds all that a reason can depend on, so each is asked for once."""
        try:
            return self._reasons[key]
        except KeyError:
            reason = self._reasons[key] = self._reject_reason(*arguments, **outputs)
            return reason


def signature(argument: Any) -> Hashable:
    """What of an argument can change the arithmetic or the choice of a kernel: layout, dtype, device, alignment."""
    if isinstance(argument, torch.Tensor):
        return (argument.shape, argument.stride(), argument.dtype, argument.device, argument.data_ptr() % 16)
    hashable: Hashable = argument
    return hashable
