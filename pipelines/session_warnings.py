"""The sentences in which a session warns about its own numbers and bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from fuseproof.fastpaths.gates import Gate, GateMode
from fuseproof.fastpaths.nesting import inside_text
from fuseproof.fastpaths.reports import rejections_text
from fuseproof.fastpaths.tiers import LOSSLESS
from fuseproof.fastpaths.wording import difference_text
from fuseproof.pipelines.requests import GenerationRequest, quality_named

VERIFIES_EVERY_STEP = "every call of a fast path ran fused and eager, side by side: these times are no measurement"
COMPILED = "torch.compile rounds differently from eager: these bits are not diffusers' eager bits, at any quality"
COMPILED_INSIDE = "torch.compile compiled inside a timed request: its time includes compilation"
PEAKS_ACCUMULATE = "the kernel does not let this process reset its high-water mark: host peaks accumulate"
PROFILED = "a request ran under a profiler: its times are no measurement"
NOT_COMPARED = "--gate off: nothing was compared with eager, so nothing says that these bits are eager's"


def first_sights(count: int, milliseconds: float) -> str:
    """A first sight runs both forms and may compile: inside a timed request it makes the time wrong."""
    return (
        f"{count} first sight(s) of fast paths fell inside a timed request, at most {milliseconds:.1f} ms of it; "
        "a warm-up (--warmup) or a certificate keeps them out"
    )


def approximation(request: GenerationRequest, sites: Sequence[str], skipped: Sequence[int]) -> list[str]:
    """What made this request's bits other than those of lossless, or that nothing did; empty at lossless.

    ``sites`` are the approximate ones that ran, ``skipped`` the steps that ran one guidance branch only.
    """
    if quality_named(request.quality) == LOSSLESS:
        return []
    found = []
    if sites:
        found.append(f"approximate sites ran: {', '.join(sites)}: these bits are not those of lossless")
    if skipped:
        found.append(
            f"guidance was skipped in {len(skipped)} of {request.num_inference_steps} steps, a rule of quality "
            f"{request.quality}: these bits are not those of lossless"
        )
    return found or [f"quality {request.quality}: no approximate site ran, so these bits are those of lossless"]


def untrusted(
    gates: Mapping[str, Gate], mode: GateMode, inside: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> list[str]:
    """What a gate that does not enforce lets through: differences that were only observed, or nothing compared.

    ``inside`` names, for a site, those whose other bits may be why its own differ: such a site is said after them.
    """
    if mode is GateMode.OFF and any(gate.calls_fused for gate in gates.values()):
        return [NOT_COMPARED]
    return [
        f"site {name} returned bits that differ from eager's ({text}): this output is not lossless"
        for name in sorted(gates, key=lambda name: len(inside.get(name, ())))
        if (text := observed_difference(gates[name], inside.get(name, ()))) is not None
    ]


def mismatches(gates: Mapping[str, Gate]) -> dict[str, str]:
    """By site, what a comparison with eager found wrong: keys that were rejected, or differences observed."""
    found = {}
    for name, gate in gates.items():
        observed = observed_difference(gate)
        if gate.rejections or observed is not None:
            found[name] = rejections_text(gate) if gate.rejections else f"not bit-exact: {observed}"
    return found


def observed_difference(gate: Gate, inside: Sequence[str] = ()) -> str | None:
    """The worst difference that ``--gate observe`` let through, in words; None where there was none."""
    if gate.observed is None:
        return None
    return "; ".join(text for text in (difference_text(gate.observed), inside_text(inside)) if text)
