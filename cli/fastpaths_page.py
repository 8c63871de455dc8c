"""Writes ``docs/fast-paths.md`` from the fast paths' own docstrings: the guide for whoever reads a trace."""

from __future__ import annotations

from collections.abc import Iterator

from fuseproof.cli.fastpaths_explain import microbenchmark, on_decline, sentence, validation
from fuseproof.cli.fastpaths_guide import Contract, Guide, markdown, plain_text, read_guide

NOTICE = "<!-- Written by `make docs` from the docstrings in fastpaths/; a test fails when it differs. -->"
INTRODUCTION = """\
Use this guide when a trace of a diffusion model shows a hot spot: it maps the spot to a fast path that exists \
already, says what keeps that path from running, and how to see its bits and its time for yourself. Reuse and \
configuration come first; a new kernel is for what no path here covers \
([CONTRIBUTING](../CONTRIBUTING.md#add-a-kernel) has the checklist).

| question | command |
|---|---|
| what would run on this machine, and why not the rest? | `fuseproof fastpaths list --model MODEL`, `fuseproof doctor \
--model MODEL` |
| what does one path do, exactly? | `fuseproof fastpaths explain NAME` |
| are its bits those of eager, on this card? | `fuseproof fastpaths verify --model MODEL` |
| in this very request, at every call? | `fuseproof generate --verify-every-step …` |
| how long does it take, against eager and against the memory it moves? | `fuseproof fastpaths bench --site NAME` |
| on the tensors of a real request? | `fuseproof fastpaths capture NAME --step N --output FILE …`, then `verify \
--from FILE`, `bench --from FILE` |
| did it run, and what is it worth from prompt to picture? | `fuseproof abba --baseline "--fastpaths off" --candidate \
"--fastpaths auto" …` |"""
LIFE = """\
A **site** is a place in a model where an eager chain can be replaced; a **mount** switches the sites of a model on \
and off. Every site sits behind a **gate**. At the first sight of a key (shapes, strides, dtypes, device, alignment, \
eps, flags) the gate runs the fused and the eager form and compares integer bits: equal, and the fused form runs from \
then on; different, and that key is rejected with its reason and the eager result is returned. Under gradients, \
`torch.compile`, or an unverified capture the eager form runs and nothing is decided. An exception at first sight \
rejects the key; one after verification, and every CUDA error, fails the request.

`fastpaths verify` does all of this ahead of time and writes a certificate. Where versions, card and the source of \
every kernel are the same, a certified key needs no first sight.

| state in the report | meaning |
|---|---|
| `fused`, `certified` | runs; its bits were compared here, or by a certificate that holds here |
| `approximate` | runs; not exact, permitted by `--quality`, with its deviation |
| `declined` | cannot take this model or these arguments; the reason names what was seen and what is needed |
| `rejected` | disagreed with eager, or raised: the eager result was returned |
| `observed` | disagreed, and ran all the same under `--gate observe` |
| `eager` | ran eager because no call could be decided |
| `unreached` | no call came by |
| `replaced` | a site of your own stands in for it |
| `off` | not asked for |"""
WORKFLOW = """\
1. Read the report of the run that was traced (`fastpaths` in the perf dump, or the last line of `generate`). A site \
that is `declined`, `rejected` or `unreached` explains its chain in the trace; its reason says what to change.
2. A site that is `fused` with eager calls beside it names the arguments that it declined, and how often.
3. First sights and compilation inside a timed request make a time wrong, and the dump warns of them: use `--warmup`, \
or a certificate.
4. Only when every site of the model is `fused` is what remains a new opportunity. Look for the chain in the table \
below first: the same chain may have a path in another family."""
GRAPHS = """\
- A graph bakes in the branches that ran while it was captured. Its key holds the mount's epoch and the quality, so a \
graph that was captured before another mount is never replayed.
- Gates decide in the eager run before a capture; a key first seen inside a capture stays eager in that graph.
- `--verify-every-step` and `--gate observe` need real calls, so they exclude CUDA graphs.
- A cell that asked for graphs and missed one is invalid (exit code 6), not slow."""
CONSTRAINTS = """\
- Kernels need Linux, Triton and a CUDA device; the sites without a kernel run anywhere. Elsewhere every kernel site \
declines with its reason, and nothing else changes.
- All kernels are launched from static tables, with `enable_fp_fusion=False`: nothing is tuned while a request runs.
- A path that is exact today may be rejected tomorrow, by another torch or another card. The gate finds out, not the \
user.
- Adapters, quantised layers, hooks and offloading make the rewritten blocks decline: code that reads `module.weight` \
itself would pass them by."""
OWN = """\
`--fastpaths-from my_kernels.py` (for `generate`, and for `fastpaths list`, `verify`, `bench` and `capture`) mounts \
sites of your own beside the built-in ones. Gate, report, certificate, microbenchmark and campaign treat them alike.

```python
from fuseproof.fastpaths import UserSite


def fused(module, x):
    return my_kernel(x, module.weight, module.bias)


def reject_reason(module, x):
    return None if x.is_cuda else f"x is on {x.device}; my kernel needs CUDA"


SITES = [UserSite("my_norm", fused=fused, reject_reason=reject_reason, modules="transformer_blocks.*.norm2")]
```

`modules` is a glob over the names of the transformer's modules (`*` stops at a dot, `**` does not). \
`replaces="layernorm_modulate"` stands in for a built-in kernel instead, with that kernel's parameters. What counts \
as correct is always the module's own forward, or the replaced kernel's reference: a kernel with wrong bits is \
rejected, and the picture stays exact. A site on a module inside the rewritten blocks makes `packed_blocks` decline, \
and says so."""


def page() -> str:
    """The whole text."""
    guide = read_guide()
    sections = [
        "# Fast paths",
        NOTICE,
        INTRODUCTION,
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
        OWN,
        "## New models and new kernels",
        "Checklists: [a new model](../CONTRIBUTING.md#add-a-model), [a new kernel](../CONTRIBUTING.md#add-a-kernel).",
    ]
    return "\n\n".join(sections) + "\n"


def _overview(guide: Guide) -> str:
    rows = ["| site | quality | models | kernels | if the trace shows … |", "|---|---|---|---|---|"]
    for site, names in _ordered_sites(guide):
        contracts = [guide.contracts[name] for name in names]
        kernels = ", ".join(f"`{one.name}`" for one in contracts if "Site" not in one.paragraphs) or "none"
        rule = " ".join(dict.fromkeys(_cell(sentence(one.paragraphs.get("Check first", ""))) for one in contracts))
        quality = guide.quality_of(site)
        models = ", ".join(f"`{name}`" for name in guide.classes_of(site)) or "none yet"
        rows.append(f"| [`{site}`](#{_anchor(names[0])}) | {quality} | {models} | {kernels} | {rule} |")
    return "\n".join(rows)


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
    lines.append(f"- **Site:** {sites} ({contract.quality}){f', in {classes}' if classes else ', in no family yet'}")
    lines.append(f"- **Location:** {contract.file}")
    for label, text in contract.paragraphs.items():
        if label not in ("Site", "Check first", "Source"):
            lines.append(_bullet(label, markdown(text)))
    lines.append(_bullet("On decline", on_decline(contract)))
    lines.append(_bullet("Validation", validation(contract, site)))
    lines.append(_bullet("Microbenchmark", microbenchmark(contract, site)))
    lines.append(_bullet("Workflow rule", sentence(markdown(contract.paragraphs.get("Check first", "")))))
    lines.append(_bullet("Source", markdown(contract.paragraphs.get("Source", ""))))
    return "\n".join(lines)


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
