"""A profile as a document: what stage, class, site and line took the time, and what fusing more would save."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fuseproof.harness.number_format import count, number, percent, shortened
from fuseproof.harness.profiles.chain_tables import chain_parts
from fuseproof.harness.profiles.costs import Cost, by_line, by_place, largest
from fuseproof.harness.profiles.profile import Profile, Request, Stage
from fuseproof.harness.profiles.scatter import scatter
from fuseproof.harness.profiles.site_tables import site_parts
from fuseproof.harness.profiles.tables import (
    DISTURBED,
    LONGEST_NAME,
    bandwidth,
    class_table,
    class_title,
    launches,
    line_table,
    milliseconds,
    place_table,
    profiled,
    share,
    stages_table,
)
from fuseproof.harness.profiles.usual import disturbance_warnings
from fuseproof.harness.report.document import Bullets, Code, Document, Paragraph, Part, Section, Span, Strong, Text

LARGEST_COSTS = 3
LOOSE_KERNELS = 5
LEAST_DISTANCE = 0.95
"""Times the floor; what is below is written as less than 1.0."""


@dataclass(frozen=True)
class Length:
    """How many rows of a table are shown before the rest is summed up, and whether keys and every stage are."""

    rows: int
    rows_of_others: int
    """Of stages other than the main one, where they are shown at all."""
    has_all: bool


TERMINAL = Length(10, 3, has_all=False)
MARKDOWN = Length(25, 25, has_all=True)
EVERYTHING = Length(100_000, 100_000, has_all=True)


def build_document(profile: Profile, length: Length) -> Document:
    """The profile's sections, the most important first."""
    main = profile.main_stage
    sections = []
    warnings = (*profile.warnings, *disturbance_warnings(profile))
    if warnings:
        sections.append(Section("Warnings", (Bullets(tuple(shortened(text, 500) for text in warnings)),)))
    sections.append(Section("Where the time went", tuple(_overview(profile, main))))
    sections.append(Section("Largest costs", (Bullets(tuple(cost_lines(profile, main))),)))
    for stage in (main, *(stage for stage in profile.stages if stage is not main)):
        sections += _of_stage(profile, stage, length)
    chains = chain_parts(profile, length.rows, length.rows_of_others, has_tensor=length.has_all)
    sections.append(Section("Fusable chains", tuple(chains)))
    sections.append(Section("Sites", tuple(site_parts(profile, length.rows, has_keys=length.has_all))))
    sections.append(Section("How it was attributed", tuple(_attribution(profile))))
    return Document(f"Profile of {shortened(profile.request.model, LONGEST_NAME)}", tuple(sections))


def _of_stage(profile: Profile, stage: Stage, length: Length) -> Iterator[Section]:
    """Of a stage other than the main one a terminal shows the classes only; of one that launched nothing no table."""
    if not stage.kernels:
        if length.has_all:
            yield Section(stage.name, (Paragraph(f"It launched no {profile.kernels_word}."),))
        return
    is_main = stage is profile.main_stage
    yield Section(f"{stage.name}: by class", (class_table(profile, stage),))
    if is_main or length.has_all:
        floor = [_floor(profile)] if is_main else []
        places = place_table(profile, stage, by_place(profile, stage), length.rows)
        yield Section(f"{stage.name}: by site and module", (places, *floor))
        lines = line_table(profile, stage, by_line(profile, stage), length.rows)
        yield Section(f"{stage.name}: by line", (lines,))


def request_text(request: Request) -> str:
    """What was drawn, and how, in one line."""
    size = f"{request.width}x{request.height}" + (f"x{request.frames}" if request.frames else "")
    parts = [
        size,
        count(request.steps, "step"),
        f"guidance {request.guidance:g}",
        f"backend {request.backend}",
        f"{request.weights} weights",
        *([request.dtype] if request.dtype else []),
        f"quality {request.quality}",
        f"fast paths {request.fastpaths}",
    ]
    parts += [word for word, is_on in (("CUDA graphs", request.cuda_graph), ("compiled", request.compile)) if is_on]
    return ", ".join(parts)


def _overview(profile: Profile, main: Stage) -> Iterator[Part]:
    versions = profile.environment.get("versions")
    known = versions if isinstance(versions, dict) else {}
    libraries = ", ".join(f"{name} {known[name]}" for name in ("torch", "triton", "diffusers") if name in known)
    on = f"{profile.device.name}" + (f"; {libraries}" if libraries else "")
    yield Paragraph(f"{request_text(profile.request)}. On {shortened(on, 200)}.")
    yield Paragraph(
        (
            f"{main.name}, {profiled(main)}{_chunks(profile, main)}: ",
            Strong(f"{launches(main.kernels / main.steps)} {profile.kernels_word} a step"),
            ", device time ",
            Strong(f"{milliseconds(main.device_us / main.steps)} ms a step"),
            f"{_by_step(profile, main)} ({profile.note}).",
        )
    )
    yield stages_table(profile)


def _chunks(profile: Profile, stage: Stage) -> str:
    """Why a stage has another number of steps than the request asks for, which is what a clip made in chunks has."""
    asked, ran = profile.request.steps, stage.steps_of_request
    if ran in (1, asked):
        return ""
    if ran % asked == 0:
        return f" ({asked} in each of {ran // asked} chunks)" if profile.request.frames else f" ({asked} asked for)"
    return f" ({asked} asked for)"


def _by_step(profile: Profile, stage: Stage) -> str:
    found = scatter(profile, stage)
    if not found.is_known:
        return ""
    return f", by step from {milliseconds(found.least_us)} to {milliseconds(found.most_us)}"


def cost_lines(profile: Profile, stage: Stage) -> Iterator[Text]:
    """The largest costs of a stage by name, with module and line: all of them, then those that are no arithmetic."""
    most, rest = largest(by_line(profile, stage), LARGEST_COSTS)
    yield from (_cost_text("", cost, stage) for cost in most)
    if any(cost not in most for cost in rest):
        yield from (_cost_text("besides GEMM, attention and convolution: ", cost, stage) for cost in rest)


def _cost_text(lead: str, cost: Cost, stage: Stage) -> Text:
    total = stage.device_us / stage.steps
    spans: list[Span] = [lead, *(["site "] if cost.is_site else []), Code(shortened(cost.name, LONGEST_NAME))]
    if cost.is_site and cost.modules:
        spans += [" in ", Code(shortened(cost.modules[0], LONGEST_NAME))]
        spans += [f" and {len(cost.modules) - 1} more"] if len(cost.modules) > 1 else []
    took = f"{milliseconds(cost.device_us)} ms a step, {share(cost.device_us, total)}"
    if cost.is_disturbed:
        typical = f"typically {milliseconds(cost.usual_us)} ms a step"
        took = f"{DISTURBED}: {typical}, {took} with the calls that were set back"
    spans.append(f": {class_title(cost.classes[0])}, {took}")
    if cost.distance is not None and not cost.is_arithmetic:
        spans.append(f", {number(cost.distance, 1)}× its traffic floor")
    if cost.line is not None:
        spans += [", ", Code(shortened(cost.line, LONGEST_NAME))]
    return tuple(spans)


def _floor(profile: Profile) -> Paragraph:
    gb_s = profile.device.copy_bandwidth_gb_s
    if gb_s is None:
        return Paragraph("No copy bandwidth was measured on this device, so there is no traffic floor.")
    told = (
        f"Floor: the bytes (each distinct input read once, each output written once) over {bandwidth(gb_s)} GB/s, the "
        "copy bandwidth measured beside the profile."
    )
    shown = (cost for stage in profile.stages for cost in (*by_place(profile, stage), *by_line(profile, stage)))
    if any(cost.distance is not None and cost.distance < LEAST_DISTANCE for cost in shown):
        told += " Below 1×: its data lay in a cache, which is faster than the memory that was copied."
    return Paragraph(told)


def _attribution(profile: Profile) -> Iterator[Part]:
    found = profile.attribution
    yield Paragraph(
        f"{percent(found.to_site_or_module)} of the device time is joined to a module or a site, "
        f"{percent(found.to_module)} to a module, {percent(found.to_line)} to a line of code."
    )
    if found.unattributed:
        lost = sorted(found.unattributed, key=lambda one: (-one[1], one[0]))
        items = [
            ("joined to nothing: ", Code(shortened(name, LONGEST_NAME)), f", {milliseconds(us)} ms")
            for name, us in lost[:LOOSE_KERNELS]
        ]
        more = lost[LOOSE_KERNELS:]
        yield Bullets((*items, *([f"{len(more)} more, {milliseconds(sum(us for _, us in more))} ms"] if more else [])))
    if profile.trace is not None:
        cut = ", cut to its limit" if profile.trace.truncated else ""
        size = f"{number(profile.trace.bytes / 2**20, 1)} MiB{cut}"
        others = "; traces of other stages lie beside it" if len(profile.stages) > 1 else ""
        opens = f" ({size}) opens in ui.perfetto.dev{others}."
        yield Paragraph((Code(shortened(profile.trace.file, LONGEST_NAME)), opens))
