"""A kernel behind its gate: fused where the gate has seen equal bits, the reference elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import torch

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.user_operations import UserOperation

NO_OUTPUTS: Mapping[str, torch.Tensor] = MappingProxyType({})


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
        self._own: UserOperation | None = None
        if gate is not None and name in gate.stand_ins:
            form, gate = gate.stand_ins[name]
            self._own = UserOperation(form, gate)
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
        if self._own is not None:
            return self.run(key, lambda: self._reference(*arguments), arguments, outputs)
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

    def run(
        self,
        key: Hashable,
        reference: Callable[[], Any],
        arguments: tuple[Any, ...],
        outputs: Mapping[str, torch.Tensor] = NO_OUTPUTS,
    ) -> Any:
        """As a call, behind the gate (there is one) under a ``key`` of the caller's, against its own ``reference``."""
        assert self.gate is not None
        if self._own is not None:
            is_traced = torch.compiler.is_compiling()
            return reference() if is_traced else self._own.run(key, reference, arguments, outputs=outputs)
        reason = self._reason(key, arguments, outputs)
        if reason is not None:
            return self.gate.decline(reason, reference)
        return self.gate.run(
            key, lambda: self.fused_form(*arguments, **outputs), reference, writes=tuple(outputs.values())
        )

    def _reason(self, key: Hashable, arguments: tuple[Any, ...], outputs: Mapping[str, torch.Tensor]) -> str | None:
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
