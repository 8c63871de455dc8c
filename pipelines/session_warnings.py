"""The sentences in which a session warns about its own numbers and bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fuseproof.fastpaths.gates import Gate, GateMode
from fuseproof.fastpaths.tiers import LOSSLESS
from fuseproof.fastpaths.wording import ulp_text
from fuseproof.pipelines.requests import GenerationRequest, quality_named

VERIFIES_EVERY_STEP = "every call of a fast path ran fused and eager, side by side: these times are no measurement"
COMPILED = "torch.compile rounds differently from eager: these bits are not diffusers' eager bits, at any quality"
COMPILED_INSIDE = "torch.compile compiled inside a timed request: its time includes compilation"
PEAKS_ACCUMULATE = "the kernel does not let this process reset its high-water mark: host peaks accumulate"
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


def untrusted(gates: Mapping[str, Gate], mode: GateMode) -> list[str]:
    """What a gate that does not enforce lets through: differences that were only observed, or nothing compared."""
    if mode is GateMode.OFF and any(gate.calls_fused for gate in gates.values()):
        return [NOT_COMPARED]
    return [
        f"site {name} returned bits that differ from eager's ({text}): this output is not lossless"
        for name, gate in gates.items()
        if (text := observed_difference(gate)) is not None
    ]


def mismatches(gates: Mapping[str, Gate]) -> dict[str, str]:
    """By site, what a comparison with eager found wrong: keys that were rejected, or differences observed."""
    found = {}
    for name, gate in gates.items():
        reasons = sorted({rejection.reason for rejection in gate.rejections.values()})
        observed = observed_difference(gate)
        if reasons or observed is not None:
            found[name] = "; ".join(reasons) or f"not bit-exact: {observed}"
    return found


def observed_difference(gate: Gate) -> str | None:
    """The worst difference that ``--gate observe`` let through, in words; None where there was none."""
    seen = gate.observed
    if seen is None or not (seen.differing_share or seen.largest_ulp):
        return None
    return f"{seen.differing_share:.4%} of the values, by {ulp_text(seen.largest_ulp)}"
