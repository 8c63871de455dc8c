"""What a report of an imported campaign says differently: arms, machine and protocol as others recorded them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuseproof.harness.analysis.campaign import CampaignAnalysis, CellAnalysis
from fuseproof.harness.campaign.origin import Origin
from fuseproof.harness.number_format import count, shortened
from fuseproof.harness.perf.dump import PerfDump
from fuseproof.harness.report.document import Code, Strong, Text

REQUEST_FACTS = ("width", "height", "num_frames", "num_inference_steps", "guidance_scale", "seed", "dtype", "device")


def origin_rows(origin: Origin | None) -> list[tuple[Text, ...]]:
    """Rows of the table of arms: who measured them, and the tool's own quality words."""
    if origin is None:
        return []
    arms = (origin.baseline, origin.candidate)
    rows: list[tuple[Text, ...]] = [("Measured by", *(arm.tool_text for arm in arms))]
    if any(arm.quality for arm in arms):
        rows.append(("Quality, in that tool's words", *(arm.quality_text for arm in arms)))
    if any(arm.commit for arm in arms):
        rows.append(("Commit, as the manifest says", *(arm.commit or "not recorded" for arm in arms)))
    return rows


def imported_workload(cell: CellAnalysis, origin: Origin, limit: int) -> Text:
    """What the dumps and the manifest say was asked for; a quality word stands with its tool, in the table of arms."""
    first = cell.runs.runs[0].dump if cell.runs.runs else None
    stated = origin.workloads.get(cell.name)
    known: list[Code | Strong | str] = [Strong(cell.name)]
    if stated:
        known += [": ", shortened(stated, 2 * limit)]
    if first is not None and first.model is not None:
        known += [": " if not stated else ", ", Code(shortened(first.model, limit))]
    if first is not None and first.prompts:
        known += [", ", Code(shortened(first.prompts[0], limit))]
        known += [f" and {count(len(first.prompts) - 1, 'more prompt')}"] if len(first.prompts) > 1 else []
    facts = _request_facts(first) if first is not None else []
    return (*known, f"; {', '.join(facts)}" if facts else "", f"; contract {cell.outputs.contract}.")


def imported_machine(environment: Mapping[str, Any]) -> str:
    """The machine as the manifest names it."""
    gpus = environment.get("gpus")
    names = [str(gpu.get("name")) for gpu in gpus if isinstance(gpu, Mapping)] if isinstance(gpus, list | tuple) else []
    processor, libraries = environment.get("processor"), environment.get("libraries")
    if isinstance(processor, Mapping) and processor.get("model"):
        names.append(str(processor["model"]))
    if isinstance(libraries, Mapping):
        names += [f"{name} {version}" for name, version in libraries.items()]
    return f"Machine, as the manifest says: {', '.join(names)}." if names else "Machine: not recorded."


def _request_facts(dump: PerfDump) -> list[str]:
    steps = len(dump.denoise_steps_ms)
    facts = [f"{key.replace('_', ' ')} {dump.config[key]}" for key in REQUEST_FACTS if dump.config.get(key) is not None]
    if steps and dump.config.get("num_inference_steps") is None:
        facts.append(count(steps, "denoise step"))
    return [shortened(fact, 60) for fact in facts]


def imported_protocol(analysis: CampaignAnalysis, origin: Origin) -> str:
    """What is known of how it was measured, which is little."""
    plan = analysis.plan
    return (
        f"Protocol: {_order_text(origin)}; processes, warm-up, isolation and clocks were not observed; primary timer "
        f"{plan.primary}, minimum effect {100 * plan.min_effect:g} %; imported by {origin.imported_by}."
    )


def _order_text(origin: Origin) -> str:
    blocks = count(len(origin.blocks), "imported block")
    by_time = sum(block.order == "dump times" for block in origin.blocks)
    if by_time == len(origin.blocks):
        return f"{blocks}, their order by the times in the dumps"
    if not by_time:
        return f"{blocks}, their order by the files' labels alone"
    return f"{blocks}, the order of {by_time} by the times in the dumps, of the others by the files' labels alone"
