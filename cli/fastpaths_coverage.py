"""What would mount on a model here, asked without its weights: for ``fastpaths list`` and ``doctor --model``."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fuseproof.cli.fastpaths_guide import Guide, plain_text, read_guide

if TYPE_CHECKING:
    from fuseproof.fastpaths.user_sites import UserSite

TEXT_WIDTH = 96
TABLE = ("components", "device", "dtype", "sites")
"""What makes two models' tables the same."""


def coverage(model: str, quality: str = "high", fastpaths_from: str | None = None) -> dict[str, Any]:
    """Every site of ``model`` on this machine: what it replaces, whether it would mount, and why not."""
    from fuseproof.fastpaths.prediction import make_skeleton, predict
    from fuseproof.fastpaths.user_sites import load_user_sites
    from fuseproof.pipelines.devices import choose_device, choose_dtype
    from fuseproof.pipelines.skeletons import skeleton_of

    own = load_user_sites(fastpaths_from) if fastpaths_from is not None else None
    skeleton = skeleton_of(model)
    device = choose_device(None)
    dtype = choose_dtype(None, device)
    pipe = SimpleNamespace(
        transformer=make_skeleton(skeleton.transformer, device, dtype), vae=make_skeleton(skeleton.vae, device, dtype)
    )
    guide = read_guide()
    sites = {one.name: one for one in own.sites} if own is not None else {}
    found = predict(pipe, quality, own.sites if own is not None else ())
    return {
        "model": model,
        "family": skeleton.family.name,
        "title": skeleton.family.title,
        "device": str(device),
        "dtype": str(dtype).removeprefix("torch."),
        "components": {name: type(component).__name__ for name, component in vars(pipe).items()},
        "fastpaths_from": None if own is None else {"file": own.path.name, "sha256": own.sha256},
        "sites": [asdict(one) | {"replaces": _replaces(one.site, one.kernels, guide, sites)} for one in found],
    }


def coverage_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The coverage of one model for people."""
    yield from shared_coverage_lines([found])


def shared_coverage_lines(models: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The coverage of several models with one table, under their names."""
    found = models[0]
    sites = found["sites"]
    mounted = sum(site["state"] == "would mount" for site in sites)
    components = ", ".join(
        f"{name} {kind}" for name, kind in found["components"].items() if any(s["component"] == name for s in sites)
    )
    for model in models:
        yield f"{model['model']}  {model['title']}"
    yield (
        f"{mounted} of {len(sites)} sites would mount on {found['device']} in {found['dtype']} "
        f"({components or 'no site knows its components'})"
    )
    if not sites:
        return
    width = max(len("site"), *(len(site["site"]) for site in sites))
    yield f"  {'site':<{width}}  {'quality':<10}  {'here':<8}  what it replaces, or why it declines"
    for site in sites:
        state = "mounts" if site["state"] == "would mount" else "declines"
        first, *rest = textwrap.wrap(site["reason"] or site["replaces"], TEXT_WIDTH) or [""]
        yield f"  {site['site']:<{width}}  {site['quality']:<10}  {state:<8}  {first}"
        for line in rest:
            yield f"{'':<{width + 26}}{line}"


def grouped(models: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Models whose tables are the same, together, in order of appearance."""
    groups: list[list[Mapping[str, Any]]] = []
    for model in models:
        same = next((group for group in groups if all(group[0][key] == model[key] for key in TABLE)), None)
        if same is None:
            groups.append([model])
        else:
            same.append(model)
    return groups


def _replaces(site: str, kernels: tuple[str, ...], guide: Guide, own: Mapping[str, UserSite]) -> str:
    if site in own:
        modules, kernel = own[site].modules, own[site].replaces
        return f"the forward of {modules}" if modules is not None else f"the built-in kernel {kernel}"
    names = kernels or guide.sites.get(site, ())
    texts = [guide.contracts[name].paragraphs.get("Replaces", "") for name in names if name in guide.contracts]
    return replaced_by(site, texts[0]) if texts else ""


def replaced_by(site: str, paragraph: str) -> str:
    """What a ``Replaces:`` paragraph says of ``site``: its item of a list, or what stands before the first colon."""
    for line in paragraph.splitlines():
        item = re.match(rf"- ``{re.escape(site)}``: (.*)", line)
        if item is not None:
            return plain_text(item[1]).rstrip(";.")
    return re.split(r"[:;] ", plain_text(paragraph).splitlines()[0])[0].rstrip(":;.")
