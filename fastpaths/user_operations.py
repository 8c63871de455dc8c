"""One place that a site of one's own has taken, a module's forward or a kernel, behind the site's gate."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fuseproof.errors import FuseproofError
from fuseproof.fastpaths.bits import parts_of
from fuseproof.fastpaths.gates import Gate, undecidable_because
from fuseproof.fastpaths.trials import Computation, Trial
from fuseproof.fastpaths.user_code import NEXT_STEP, UserCall, UserCodeError, call_quietly, tensors_in
from fuseproof.fastpaths.user_sites import UserSite, takes_everything
from fuseproof.fastpaths.user_trials import Watched, wary_trial
from fuseproof.fastpaths.wording import plain_text


@dataclass
class _Layout:
    """What is known of calls of one key: why they decline, and the form of eager's result (None: not seen)."""

    reason: str | None
    form: Hashable = None


class UserOperation:
    """Calls ``site`` for one module, or for one kernel (``module`` None); the reference is whatever stood there.

    Inside a function of the site, what it stands in for is what it was: a call of the module runs its own forward.
    """

    def __init__(self, site: UserSite, gate: Gate, module: nn.Module | None = None) -> None:
        self._site = site
        self._gate = gate
        self._module = module
        self._leading = () if module is None else (module,)
        self._layouts: dict[Hashable, _Layout] = {}
        self._inside: set[int] = set()

    def run(
        self,
        key: Hashable,
        reference: Computation,
        arguments: tuple[Any, ...],
        *,
        keywords: Mapping[str, Any] | None = None,
        outputs: Mapping[str, torch.Tensor] | None = None,
    ) -> Any:
        """Fused where the gate has seen eager's bits for ``key``. ``outputs`` are what ``fused`` may write into.

        A failure after that is a :class:`FuseproofError`, since the inputs may be spoilt.
        """
        if threading.get_ident() in self._inside:
            return reference()
        gate, keywords, outputs = self._gate, keywords or {}, outputs or {}
        layout = self._layouts.get(key)
        if layout is None:
            cause = undecidable_because()
            if cause is not None:
                return gate.run_eager(reference, cause)
            layout = self._layouts[key] = _Layout(self._reject_reason(self._call(arguments, keywords, outputs)))
        if layout.reason is not None:
            return gate.decline(layout.reason, reference)

        def trial(_fused: Computation, reference: Computation, writes: Sequence[torch.Tensor], when: str) -> Trial:
            return self._trial(self._call(arguments, keywords, outputs), layout, reference, writes, when)

        return gate.run(
            key,
            lambda: self._fused(layout, *self._leading, *arguments, **keywords, **outputs),
            reference,
            writes=tuple(outputs.values()),
            same_layout=not outputs,
            trial=trial,
        )

    def _call(
        self, arguments: tuple[Any, ...], keywords: Mapping[str, Any], outputs: Mapping[str, torch.Tensor]
    ) -> UserCall:
        return UserCall(self._gate.site, self._module, arguments, keywords, outputs, self._inside)

    def _fused(self, layout: _Layout, /, *arguments: Any, **keywords: Any) -> Any:
        """A call that nothing is compared with, so what it returns must at least be built as it was before.

        Without a first sight (a certificate, or the gate off), that is the first call.
        """
        name = self._gate.site
        result = call_quietly(name, "fused", self._inside, self._site.fused, *arguments, **keywords)
        form = form_of(result)
        if form == layout.form:
            return result
        if layout.form is None and any(True for _ in tensors_in(result)):
            layout.form = form
            return result
        known = "no tensor" if layout.form is None else "and built otherwise than what it returned before"
        raise FuseproofError(f"site {name!r}: fused returned {_described(result)}, {known}.", next_step=NEXT_STEP)

    def _trial(
        self, call: UserCall, layout: _Layout, reference: Computation, writes: Sequence[torch.Tensor], when: str
    ) -> Trial:
        seen = wary_trial(call, self._site.fused, reference, writes, when)
        layout.form = form_of(seen.expected)
        return seen

    def _reject_reason(self, call: UserCall) -> str | None:
        """Asked once for each key, which holds all that a reason can depend on; held to leaving everything alone."""
        ask = self._site.reject_reason
        if ask is takes_everything:
            return None
        watched = Watched(call, tuple(call.outputs.values()))
        watched.begin()
        try:
            reason = _checked(call.of("reject_reason", ask))
        except UserCodeError as error:
            if error.is_fatal:
                raise
            reason = f"reject_reason raised {error.kind}: {error.detail}"
        return watched.settle("reject_reason", ask) or reason


def form_of(result: Any) -> Hashable:
    """How a result is built, down to the shapes and dtypes of its tensors; strides are free."""
    if isinstance(result, torch.Tensor):
        return result.shape, result.dtype
    parts = parts_of(result)
    return (type(result), *(form_of(part) for _, part in parts or ()))


def _checked(answer: Any) -> str | None:
    if answer is None:
        return None
    if isinstance(answer, str) and answer.strip():
        return plain_text(answer)
    return f"reject_reason returned {_described(answer)}; it returns None, or why the call cannot run fused"


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {list(value.shape)}"
    return repr(value) if isinstance(value, bool | int | float | str | type(None)) else f"a {type(value).__name__}"
