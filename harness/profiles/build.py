"""A profile as a document: what stage, class, site and line took the time, and what fusing more would save."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fuseproof.harness.number_format import count, number, percent, shortened
from fuseproof.harness.profiles.costs import Cost, by_line, by_place, largest
from fuseproof.harness.profiles.profile import Profile, Request, Stage
from fuseproof.harness.profiles.tables import (
    LONGEST_NAME,
    chain_path,
    chain_table,
    class_table,
    class_title,
    key_table,
    launches,
    line_table,
    milliseconds,
    place_table,
    profiled,
    ranked,
    share,
    site_table,
    stages_table,
)
from fuseproof.harness.report.document import Bullets, Code, Document, Paragraph, Part, Section, Span, Strong, Text

LARGEST_COSTS = 3
LOOSE_KERNELS = 5


@dataclass(frozen=True)
class Length:
    """How many rows of a table are shown before the rest is summed up, and whether keys and every stage are."""

    rows: int
    has_all: bool


TERMINAL = Length(10, has_all=False)
MARKDOWN = Length(25, has_all=True)
EVERYTHING = Length(100_000, has_all=True)


def build_document(profile: Profile, length: Length) -> Document:
    """The profile's sections, the most important first."""
    main = profile.main_stage
    sections = [
        Section("Where the time went", tuple(_overview(profile, main))),
        Section("Largest costs", (Bullets(tuple(cost_lines(profile, main))),)),
    ]
    others = [stage for stage in profile.stages if stage is not main]
    for stage in (main, *(others if length.has_all else ())):
        sections.append(Section(f"{stage.name}: by class", (class_table(profile, stage),)))
        sections.append(Section(f"{stage.name}: by site and module", tuple(_places(profile, stage, length))))
        lines = line_table(profile, stage, by_line(profile, stage), length.rows)
        sections.append(Section(f"{stage.name}: by line", (lines,)))
    sections.append(Section("Fusable chains", tuple(_chains(profile, length))))
    sections.append(Section("Sites", tuple(_sites(profile, length))))
    sections.append(Section("How it was attributed", tuple(_attribution(profile))))
    if profile.warnings:
        sections.append(Section("Warnings", (Bullets(tuple(shortened(text, 500) for text in profile.warnings)),)))
    return Document(f"Profile of {shortened(profile.request.model, LONGEST_NAME)}", tuple(sections))


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
            f"{main.name}, {profiled(main)}: ",
            Strong(f"{launches(main.kernels / main.steps)} {profile.kernels_word} a step"),
            ", device time ",
            Strong(f"{milliseconds(main.device_us / main.steps)} ms a step"),
            f" ({profile.note}).",
        )
    )
    yield stages_table(profile)


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
    spans.append(f": {class_title(cost.classes[0])}, {took}")
    if cost.distance is not None and not cost.is_arithmetic:
        spans.append(f", {number(cost.distance, 1)}× its traffic floor")
    if cost.line is not None:
        spans += [", ", Code(shortened(cost.line, LONGEST_NAME))]
    return tuple(spans)


def _places(profile: Profile, stage: Stage, length: Length) -> Iterator[Part]:
    yield place_table(profile, stage, by_place(profile, stage), length.rows)
    if profile.device.copy_bandwidth_gb_s is None:
        yield Paragraph("No copy bandwidth was measured on this device, so there is no traffic floor.")
    else:
        yield Paragraph(
            f"Floor: the bytes (each distinct input read once, each output written once) over "
            f"{number(profile.device.copy_bandwidth_gb_s, 0)} GB/s, the copy bandwidth measured beside the profile."
        )


def _chains(profile: Profile, length: Length) -> Iterator[Part]:
    if not profile.chains:
        yield Paragraph("No run of two or more pointwise kernels on one tensor is left.")
        return
    yield chain_table(profile.chains, length.rows, has_tensor=length.has_all)
    hidden = len(profile.chains) - length.rows
    if hidden > 0:
        yield Paragraph(f"{hidden} more, each saving less; profile.json holds them.")
    first = ranked(profile.chains)[0]
    if first.fast_path is not None:
        yield Paragraph(f"For the first there is a fast path: {chain_path(first)}.")


def _sites(profile: Profile, length: Length) -> Iterator[Part]:
    if not profile.sites:
        yield Paragraph("No fast path is mounted.")
        return
    yield site_table(profile)
    keys = key_table(profile, length.rows) if length.has_all else None
    if keys is not None:
        yield keys


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
