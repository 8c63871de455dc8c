"""``fuseproof fastpaths explain``: what a site does, when it declines, how it is checked, measured and looked for."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

import click

from fuseproof.cli.fastpaths_guide import REQUIRED, Contract, Guide, plain_text, read_guide
from fuseproof.cli.options import json_option

SCHEMA = "fuseproof.fastpath/1"
ON_DECLINE = (
    "The eager chain runs instead, the call is counted as eager, and its reason stands in the report and the perf "
    "dump. Nothing falls back silently; --require-fastpaths makes it exit code 6."
)
ON_REJECTION = (
    "At the first sight of new shapes both forms run and their bits are compared; where they differ, that key is "
    "rejected with the share of differing values, and the eager result is returned."
)
LABEL_WIDTH = 18
TEXT_WIDTH = 104


@click.command("explain")
@click.argument("name")
@json_option()
def explain(name: str, as_json: bool) -> None:
    """Explain the fast path NAME, a site or a kernel.

    Parameters, formula, shapes, roundings, what it replaces, when it declines, how it is validated and measured, and
    what to check first when a trace does not show it. `fuseproof fastpaths list` shows the names. Loads no torch.
    """
    guide = read_guide()
    contracts = guide.explaining(name)
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA, **as_document(name, guide)}, indent=2, allow_nan=False))
        return
    for index, contract in enumerate(contracts):
        if index:
            click.echo()
        for line in _lines(contract, site_asked_for(contract, name, guide), guide):
            click.echo(line)


def as_document(name: str, guide: Guide) -> dict[str, Any]:
    """The explanation of a site or kernel as JSON values."""
    parts = []
    for contract in guide.explaining(name):
        site = site_asked_for(contract, name, guide)
        labelled = {label.lower().replace(" ", "_"): plain_text(text) for label, text in contract.paragraphs.items()}
        parts.append(
            {
                "name": contract.name,
                "file": contract.file,
                "quality": contract.quality,
                "models": list(guide.classes_of(site)),
                "title": plain_text(contract.title),
                **labelled,
                "parameters": list(contract.parameters),
                "buffers": list(contract.buffers),
                "site": site,
                "on_decline": on_decline(contract),
                "validation": validation(contract, site),
                "microbenchmark": microbenchmark(contract, site),
            }
        )
    return {"name": name, "parts": parts}


def on_decline(contract: Contract) -> str:
    """What happens where it cannot run, or does not agree."""
    return f"{ON_DECLINE} {ON_REJECTION}" if contract.quality == "lossless" else ON_DECLINE


def validation(contract: Contract, site: str) -> str:
    """How its bits are checked."""
    tests = "/".join(("tests", *contract.file.split("/")[:2]))
    if contract.has_bits_of_its_own:
        interpreted = "on a machine without a card, TRITON_INTERPRET=1 runs it on a few elements"
        return f"`fuseproof fastpaths verify --site {contract.name}` ({interpreted}); {tests}"
    if contract.quality == "lossless":
        request = f"`fuseproof generate --model-path … --fastpaths {site} --verify-every-step …`"
        return f"its gate, in every request; {request}; {tests}"
    how = f"`fuseproof generate --model-path … --fastpaths {site} --quality {contract.quality} …`"
    return f"its deviation from eager, measured at first sight and shown in the report; {how}; {tests}"


def microbenchmark(contract: Contract, site: str) -> str:
    """How its time is measured."""
    if contract.has_bits_of_its_own:
        return f"`fuseproof fastpaths bench --site {contract.name}`"
    candidate = f"--fastpaths {site}"
    if contract.quality != "lossless":
        candidate += f" --quality {contract.quality}"
    arms = f'--baseline "--fastpaths off" --candidate "{candidate}" --flags "--model-path … --prompt …"'
    what = "it is measured in its site" if contract.is_kernel else "it has no kernel of its own"
    return f"{what}; `fuseproof abba {arms}`"


def parameters_text(contract: Contract) -> str:
    """A kernel's parameters as a call passes them; the buffers after the star by keyword."""
    buffers = ("*", *contract.buffers) if contract.buffers else ()
    return f"{contract.name}({', '.join((*contract.parameters, *buffers))})"


def site_asked_for(contract: Contract, name: str, guide: Guide) -> str:
    """The site that is meant where ``name`` leads to ``contract``: itself, or the one that runs the kernel."""
    return name if name in guide.sites else guide.site_of(contract.name)


def _lines(contract: Contract, site: str, guide: Guide) -> Iterator[str]:
    classes = ", ".join(guide.classes_of(site))
    yield f"{contract.name}  {plain_text(contract.title)}"
    yield from _paragraph("file", contract.file)
    quality = guide.quality_of(site) if site in guide.sites else contract.quality
    yield from _paragraph("site", f"{site} ({quality}{f'; {classes}' if classes else ''})")
    if contract.is_kernel:
        yield from _paragraph("parameters", parameters_text(contract))
    for label, text in contract.paragraphs.items():
        if label not in ("Site", "Check first", "Source"):
            yield from _paragraph(label.lower(), plain_text(text))
    yield from _paragraph("on decline", on_decline(contract))
    yield from _paragraph("validation", validation(contract, site))
    yield from _paragraph("microbenchmark", microbenchmark(contract, site))
    yield from _paragraph("check first", sentence(plain_text(contract.paragraphs.get("Check first", ""))))
    yield from _paragraph("source", plain_text(contract.paragraphs.get("Source", "")))


def sentence(text: str) -> str:
    """With a capital first letter."""
    return text[:1].upper() + text[1:]


def missing_labels(contract: Contract) -> list[str]:
    """Labels that a contract must have and lacks."""
    missing = [label for label in REQUIRED if not contract.paragraphs.get(label)]
    return missing if {"Exact", "Close"} & set(contract.paragraphs) else [*missing, "Exact or Close"]


def _paragraph(label: str, text: str) -> Iterator[str]:
    first, *rest = [
        wrapped
        for line in text.splitlines() or [""]
        for wrapped in textwrap.wrap(line, TEXT_WIDTH - LABEL_WIDTH, subsequent_indent="  " if line[:2] == "- " else "")
    ] or [""]
    yield f"  {label:<{LABEL_WIDTH - 2}}{first}"
    for line in rest:
        yield f"{'':<{LABEL_WIDTH}}{line}"
