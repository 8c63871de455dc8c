"""Writes ``docs/fast-paths.md`` from the fast paths' own docstrings: the guide for whoever reads a trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fuseproof.cli.fastpaths_explain import microbenchmark, on_decline, parameters_text, sentence, validation
from fuseproof.cli.fastpaths_guide import Contract, Guide, markdown, plain_text, read_guide
from fuseproof.cli.fastpaths_page_texts import CONSTRAINTS, GLOSSARY, GRAPHS, INTRODUCTION, LIFE, OWN, WORKFLOW

NOTICE = "<!-- Written by `make docs` from the docstrings in fastpaths/; a test fails when it differs. -->"


def page() -> str:
    """The whole text."""
    guide = read_guide()
    sections = [
        "# Fast paths",
        NOTICE,
        INTRODUCTION,
        "## Words",
        GLOSSARY,
        "## How a path comes to run",
        LIFE,
        "## From a trace to a path",
        WORKFLOW,
        _overview(guide),
        "## Paths",
        *_sections(guide),
        "## CUDA graphs",
        GRAPHS,
        "## Constraints and fallbacks",
        CONSTRAINTS,
        "## Paths of your own",
        OWN.replace("{kernels}", _replaceable(guide)),
        "## New models and new kernels",
        "Checklists: [a new model](../CONTRIBUTING.md#add-a-model), [a new kernel](../CONTRIBUTING.md#add-a-kernel).",
    ]
    return "\n\n".join(sections) + "\n"


def _overview(guide: Guide) -> str:
    rows = ["| site | quality | models | kernels | if the trace shows … |", "|---|---|---|---|---|"]
    for site, names in _ordered_sites(guide):
        contracts = [guide.contracts[name] for name in names]
        kernels = ", ".join(f"`{name}`" for name in guide.kernels_of(site)) or "none"
        rule = " ".join(dict.fromkeys(_cell(sentence(one.paragraphs.get("Check first", ""))) for one in contracts))
        quality = guide.quality_of(site)
        models = ", ".join(f"`{name}`" for name in guide.classes_of(site)) or "none yet"
        rows.append(f"| [`{site}`](#{_anchor(names[0])}) | {quality} | {models} | {kernels} | {rule} |")
    return "\n".join(rows)


def _replaceable(guide: Guide) -> str:
    """A table of the kernels that a site of one's own may replace, with their parameters."""
    rows = ["| kernel | models | positional parameters | buffers |", "|---|---|---|---|"]
    classes: dict[str, dict[str, None]] = {}
    for family in guide.families:
        for name in (name for names in family.kernels.values() for name in names):
            classes.setdefault(name, {}).update(dict.fromkeys(family.classes))
    for name, models in classes.items():
        given, buffers = guide.contracts[name].parameters, guide.contracts[name].buffers
        cells = [_code_list(found) for found in (models, given, buffers)]
        rows.append(f"| [`{name}`](#{_anchor(name)}) | {' | '.join(cells)} |")
    return "\n".join(rows)


def _code_list(found: Iterable[str]) -> str:
    return ", ".join(f"`{one}`" for one in found).replace("|", "\\|") or "none"


def _sections(guide: Guide) -> Iterator[str]:
    shown: set[str] = set()
    for site, names in _ordered_sites(guide):
        for name in names:
            if name not in shown:
                shown.add(name)
                yield _section(guide.contracts[name], site, guide)
    for name in guide.contracts:
        if name not in shown:
            yield _section(guide.contracts[name], guide.site_of(name), guide)


def _section(contract: Contract, site: str, guide: Guide) -> str:
    classes = ", ".join(f"`{name}`" for name in guide.classes_of(site))
    sites = markdown(contract.paragraphs.get("Site", site))
    lines = [f"### {contract.name}", "", markdown(contract.introduction), ""]
    where = f"in {classes}" if classes else "in no family yet"
    lines.append(f"- **Site:** {sites} ({_quality(contract, site, guide)}), {where}")
    lines.append(f"- **Location:** {contract.file}")
    if contract.is_kernel:
        lines.append(_bullet("Parameters", f"`{parameters_text(contract)}`"))
    for label, text in contract.paragraphs.items():
        if label not in ("Site", "Check first", "Source"):
            lines.append(_bullet(label, markdown(text)))
    lines.append(_bullet("On decline", on_decline(contract)))
    lines.append(_bullet("Validation", validation(contract, site)))
    lines.append(_bullet("Microbenchmark", microbenchmark(contract, site)))
    lines.append(_bullet("Check first", sentence(markdown(contract.paragraphs.get("Check first", "")))))
    lines.append(_bullet("Source", markdown(contract.paragraphs.get("Source", ""))))
    return "\n".join(lines)


def _quality(contract: Contract, site: str, guide: Guide) -> str:
    return guide.quality_of(site) if site in guide.sites else contract.quality


def _bullet(label: str, text: str) -> str:
    first, *rest = text.split("\n")
    return "\n".join([f"- **{label}:** {first}", *(f"  {line}" for line in rest)])


def _ordered_sites(guide: Guide) -> list[tuple[str, tuple[str, ...]]]:
    """Exact ones first, and those without a kernel before those with."""
    order = ("lossless", "extra-high", "high")
    return sorted(guide.sites.items(), key=lambda item: (order.index(guide.quality_of(item[0])), item[0]))


def _cell(text: str) -> str:
    return plain_text(text).replace("|", "\\|").replace("\n", " ").replace("*", "\\*")


def _anchor(name: str) -> str:
    return name.lower()
