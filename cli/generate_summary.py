"""What ``fuseproof generate`` prints of a run that is done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fuseproof.harness.escape import visible
from fuseproof.harness.number_format import shortened

WRITING_STAGES = {"PromptEnhancementStage": "enhanced", "LongCatPromptRewriteStage": "rewritten"}
"""Stages that write another text, and what the prompt is then."""
LONGEST_TEXT = 100


def summary(dump: dict[str, Any]) -> str:
    """Times, texts drawn in the prompts' place and raw hashes (one line an image), and fast paths (one line for each
    state and reason).
    """
    timers = dump["timers"]
    denoise = "n/a" if timers["denoise_ms"] is None else f"{timers['denoise_ms'] / 1e3:.3f} s"
    apart = ", ".join(
        f"{name} {timers[key] / 1e3:.3f} s"
        for name, key in (("load", "load_ms"), ("warm-up", "warmup_ms"), ("compile", "compile_ms"))
        if timers[key]
    )
    worker, client = timers["worker_ms"] / 1e3, timers["client_ms"] / 1e3
    lines = [
        f"worker {worker:.3f} s, denoise {denoise}, client {client:.3f} s" + (f" (apart: {apart})" if apart else "")
    ]
    lines += arrival_lines(dump["requests"])
    lines += written_lines(dump["requests"])
    lines += [f"raw sha256 {output['raw_sha256']}" for output in dump["outputs"]]
    lines += fastpaths_lines(dump["fastpaths"])
    return "\n".join([*lines, graphs_line(dump["graphs"])] if dump["graphs"].get("captured") else lines)


def arrival_lines(requests: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """For each clip that came in several parts: after how long each of them was there, and with how many frames."""
    for request in requests:
        arrivals = request.get("frame_arrivals") or ()
        if len(arrivals) > 1:
            parts = ", ".join(f"{part['frames']} after {part['at_ms'] / 1e3:.3f} s" for part in arrivals)
            yield f"frames {parts}"


def written_lines(requests: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """For each request that drew another text than its prompt: that text on one line, and how long writing it took."""
    for request in requests:
        text = request.get("rewritten_prompt")
        if text is None:
            continue
        shown = f'"{visible(shortened(text, LONGEST_TEXT))}"'
        stages = {stage["name"]: stage["duration_ms"] for stage in request["steps"]}
        name = next((name for name in WRITING_STAGES if name in stages), None)
        if name is None:
            yield f"fixed prompt: {shown}"
        else:
            yield f"{WRITING_STAGES[name]} prompt ({name} {stages[name] / 1e3:.3f} s): {shown}"


def fastpaths_lines(fastpaths: dict[str, Any]) -> list[str]:
    """Which sites ran fused, which did not and why: a line for each state and reason, with all sites that share it.

    Sites that nobody asked for are left out.
    """
    told = {name: site for name, site in (fastpaths.get("sites") or {}).items() if site["state"] != "off"}
    heading = f"fast paths {fastpaths['requested']}:"
    if not told:
        reason = None if fastpaths["requested"] == "off" else fastpaths.get("reason")
        return [f"{heading} none mounted{_in_brackets(reason)}"]
    lines = [
        f"  {state}: {', '.join(_with_calls(name, told[name]) for name in names)}{_in_brackets(reason)}"
        for (state, reason), names in sites_by_fate(told).items()
    ]
    return [heading, *lines]


def sites_text(sites: Mapping[str, Mapping[str, Any]]) -> str | None:
    """``a, b declined (reason); c rejected (another)``; None for no sites."""
    fates = sites_by_fate(sites).items()
    return "; ".join(f"{', '.join(names)} {state}{_in_brackets(reason)}" for (state, reason), names in fates) or None


def sites_by_fate(sites: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str | None], list[str]]:
    """The names of sites by what became of them, (state, reason), in the order in which each was first seen."""
    found: dict[tuple[str, str | None], list[str]] = {}
    for name, site in sites.items():
        found.setdefault((str(site.get("state")), site.get("reason")), []).append(name)
    return found


def graphs_line(graphs: dict[str, Any]) -> str:
    """How many CUDA graphs were captured, and how the timed calls were answered."""
    told = ", ".join(f"{graphs[name]} {name}" for name in ("captured", "replayed", "missed", "unsupported"))
    return f"CUDA graphs: {told}"


def _with_calls(name: str, site: Mapping[str, Any]) -> str:
    calls = site.get("calls_fused") or 0
    return f"{name} {calls} {'call' if calls == 1 else 'calls'}" if calls else name


def _in_brackets(reason: str | None) -> str:
    return f" ({reason})" if reason else ""
