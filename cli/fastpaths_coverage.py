"""What would mount on a model here, asked without its weights: for ``fastpaths list`` and ``doctor --model``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from fuseproof.cli.fastpaths_guide import plain_text, read_guide

LONGEST_REASON = 78


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
    found = predict(pipe, quality, own.sites if own is not None else ())
    return {
        "model": model,
        "family": skeleton.family.name,
        "title": skeleton.family.title,
        "device": str(device),
        "dtype": str(dtype).removeprefix("torch."),
        "components": {name: type(component).__name__ for name, component in vars(pipe).items()},
        "fastpaths_from": None if own is None else {"file": own.path.name, "sha256": own.sha256},
        "sites": [asdict(one) | {"replaces": _replaces(one.site, one.kernels, guide)} for one in found],
    }


def coverage_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The coverage of one model for people."""
    sites = found["sites"]
    mounted = sum(site["state"] == "would mount" for site in sites)
    components = ", ".join(
        f"{name} {kind}" for name, kind in found["components"].items() if any(s["component"] == name for s in sites)
    )
    yield (
        f"{found['model']}  {found['title']}: {mounted} of {len(sites)} sites would mount on {found['device']} in "
        f"{found['dtype']} ({components or 'no site knows its components'})"
    )
    if not sites:
        return
    width = max(len(site["site"]) for site in sites)
    for site in sites:
        state = "mounts" if site["state"] == "would mount" else "declines"
        yield f"  {site['site']:<{width}}  {site['quality']:<10}  {state:<8}  {site['reason'] or site['replaces']}"


def _replaces(site: str, kernels: tuple[str, ...], guide: Any) -> str:
    names = kernels or guide.sites.get(site, ())
    texts = [guide.contracts[name].paragraphs.get("Replaces", "") for name in names if name in guide.contracts]
    if site not in guide.sites and kernels:
        return f"the built-in kernel {', '.join(kernels)}"
    if not texts:
        return "the forward of the modules that it names"
    first = plain_text(texts[0])
    return first if len(first) <= LONGEST_REASON else f"{first[:LONGEST_REASON].rstrip(' ,.;')} ..."
