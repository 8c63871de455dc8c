"""A rewritten forward beside the library's own, once for every kind of call.

Gates inside a rewrite compare its blocks and kernels. What stands around them (positions, mask, joining of rows, the
last reshaping) follows a forward that another release of the library may have changed. So the first call of a kind also
runs the library's whole forward, and the results are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager

import torch

from fuseproof.fastpaths.gates import Gate, GateMode

Sample = Callable[[], torch.Tensor]
DIFFERS = "the whole forward differs from eager's"


def run_whole(site: str, gates: Mapping[str, Gate], key: Hashable, rewritten: Sample, eager: Sample) -> torch.Tensor:
    """The result of ``rewritten``; eager's from the first call on whose result under ``key`` differed from it.

    ``site`` is that of the rewritten blocks, whose rejections show in the report. What the comparison runs is counted
    by none of the component's ``gates``. Only a gate that enforces decides: one that observes compares block by block.
    """
    gate, key = gates[site], ("whole forward", key)
    if key in gate.rejections:
        return gate.decline(DIFFERS, eager)
    output = rewritten()
    if gate.mode is GateMode.ENFORCE and not gate.is_decided(key):
        with _uncounted(gates):
            gate.decide(key, output, eager)
        if key in gate.rejections:
            return gate.decline(DIFFERS, eager)
    return output


@contextmanager
def _uncounted(gates: Mapping[str, Gate]) -> Iterator[None]:
    before = [(gate, gate.calls_fused, gate.calls_eager) for gate in gates.values()]
    try:
        yield
    finally:
        for gate, fused, eager in before:
            gate.calls_fused, gate.calls_eager = fused, eager
