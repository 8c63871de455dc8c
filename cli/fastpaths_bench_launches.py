"""What ``fastpaths bench --ncu`` runs under Nsight Compute: each call eager and fused, once, and nothing else.

Started as ``python -m fuseproof.cli.fastpaths_bench_launches ORDER RESULT``, two JSON files: which calls, and what was
launched. Everything is called once before it counts, so that nothing is compiled in the counted ranges, which lie
between cudaProfilerStart and -Stop. Each begins with torch's spin kernel as its mark.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseproof.cli.fastpaths_bench_calls import calls_of, chosen
from fuseproof.cli.fastpaths_checks import load_own, replay_of

if TYPE_CHECKING:
    import torch

    from fuseproof.fastpaths.call_layouts import Fill
    from fuseproof.fastpaths.tracing import SiteCall

FORMS = ("eager", "fused")
"""In the order in which each call's are launched."""


def main(order: str, result: str) -> None:
    """Launch what ``order`` asks for, and write which calls it were."""
    import torch

    device = torch.device("cuda", 0)
    with torch.cuda.device(device):
        launched = launch_all(json.loads(Path(order).read_text(encoding="utf-8")), device)
    Path(result).write_text(json.dumps(launched), encoding="utf-8")


def launch_all(wanted: Mapping[str, Any], device: torch.device) -> list[list[str]]:
    """Launch the wanted calls, each eager and then fused, and return their keys in order."""
    import torch

    launched = []
    with torch.no_grad():
        for key, call, fill, module in _calls(wanted, device):
            _launch(call, fill, module, device)
            launched.append(key)
    return launched


def _calls(
    wanted: Mapping[str, Any], device: torch.device
) -> list[tuple[list[str], SiteCall, Fill, torch.nn.Module | None]]:
    """The calls with the wanted keys, how their memory is filled, and a captured call's module."""
    from fuseproof.fastpaths.check_values import filler
    from fuseproof.fastpaths.verification import Case, labelled

    own = load_own(wanted["fastpaths_from"])
    if wanted["captured"] is not None:
        replay = replay_of(wanted["captured"], own, wanted["model"])
        return [(key, replay.call, replay.captured.filler(), replay.module) for key in wanted["keys"][:1]]
    calls = calls_of(wanted["model"], [tuple(shape) for shape in wanted["shapes"]], own, device)
    keys = [list(key) for key in wanted["keys"]]
    calls = chosen(calls, wanted["sites"])  # as the rows were, for a call's text depends on the others
    found: list[tuple[list[str], SiteCall, Fill, torch.nn.Module | None]] = []
    for case in labelled(Case(call, workload, "random") for workload, call in calls):
        key = [case.call.site, case.call.layout.operation, case.workload, case.text or ""]
        if key in keys:
            found.append((key, case.call, filler("random", wanted["seed"], device), None))
    return found


def _launch(call: SiteCall, fill: Fill, module: torch.nn.Module | None, device: torch.device) -> None:

    from fuseproof.fastpaths.benchmarking import forms, made

    for form in forms(call, [made(call, device, fill)], device, module):
        form(0)
        _counted(form)


def _counted(form: Callable[[int], Any]) -> None:
    import torch

    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    torch.cuda._sleep(1)
    form(0)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
