"""What ``fastpaths verify`` and ``fastpaths bench`` share: the device, the calls of models, captured calls."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseproof.errors import FuseproofError, UsageError

if TYPE_CHECKING:
    import torch

    from fuseproof.fastpaths.captures import CapturedCall
    from fuseproof.fastpaths.tracing import SiteCall
    from fuseproof.fastpaths.user_sites import UserSite, UserSites
    from fuseproof.fastpaths.verification import Case

INTERPRET_VARIABLE = "TRITON_INTERPRET"
FRAMES_DIMENSIONS = 5
MADE_OF_CALLS = {"bench": "measured", "verify": "compared"}
WITHOUT_CARD = {
    "bench": "Run it on a machine with a card. Without one, `fuseproof fastpaths task NAME` writes a folder whose test "
    "of bits runs here; `fuseproof doctor` says what this machine lacks.",
    "verify": f"Run it on a machine with a card. Without one, {INTERPRET_VARIABLE}=1 runs small cases here, `fuseproof "
    "fastpaths task NAME` writes a folder whose test of bits does; `fuseproof doctor` says what this machine lacks.",
}
INTERPRETED = (
    "Triton's CPU interpreter, small cases: this finds faults, and is no certificate; only a card shows its bits"
)


@dataclass(frozen=True)
class Replay:
    """A captured call that can be run again: its layout at a site, its values, and for a site on modules the module."""

    call: SiteCall
    captured: CapturedCall
    module: torch.nn.Module | None


def asks_for_interpreter() -> bool:
    """Whether the user wants kernels interpreted on the CPU."""
    return os.environ.get(INTERPRET_VARIABLE) == "1"


def card(command: str) -> torch.device:
    """The first CUDA device; a :class:`UsageError` where there is none, for nothing was found out about any bits.

    A machine without NVIDIA's driver has none, and is told so before torch is imported.
    """
    from fuseproof.harness.machine.cuda_driver import LIBRARY, has_cuda_driver

    if not has_cuda_driver():
        raise _without_card(command, f"NVIDIA's driver ({LIBRARY}) is not here")
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    raise _without_card(command, f"torch {torch.__version__} sees none here")


def _without_card(command: str, why: str) -> UsageError:
    return UsageError(
        f"fastpaths {command} needs a CUDA device, and {why}: nothing was {MADE_OF_CALLS[command]}.",
        next_step=WITHOUT_CARD[command],
    )


def load_own(path: str | None) -> UserSites | None:
    """The sites of ``--fastpaths-from``."""
    if path is None:
        return None
    from fuseproof.fastpaths.user_sites import load_user_sites

    return load_user_sites(path)


def cases_of_models(
    models: Sequence[str], own: UserSites | None, wanted: Sequence[str], device: torch.device, *, is_interpreted: bool
) -> list[Case]:
    """The cases of every model, each distinct call once; only those of ``wanted`` sites or kernels, where any are."""
    from fuseproof.fastpaths.verification import labelled
    from fuseproof.pipelines.fastpath_workloads import meta_model, planned_cases, small_cases

    plan = small_cases if is_interpreted else planned_cases
    cases: dict[Any, Case] = {}
    for name in models:
        for case in plan(meta_model(name), _sites(own), device):
            cases.setdefault((case.call.site, case.call.layout, case.values), case)
    check_names(wanted, {name for case in cases.values() for name in names_of(case.call)})
    return labelled(case for case in cases.values() if not wanted or set(wanted) & set(names_of(case.call)))


def calls_at(shape: tuple[int, ...], model: str, own: UserSites | None) -> list[SiteCall]:
    """The calls of a model as wide as ``shape`` [B, S, D] says, at that many samples and rows.

    Of five numbers, [1, C, T, H, W]: the calls of Wan's VAE on such frames, whatever the model.
    """
    if len(shape) == FRAMES_DIMENSIONS:
        from fuseproof.fastpaths.tracing import with_stand_ins
        from fuseproof.pipelines.fastpath_wan_vae_workloads import wan_vae_calls_at

        channels, frames, height, width = shape[1:]
        calls = wan_vae_calls_at(channels, frames, height, width)
        return calls + with_stand_ins(calls, _sites(own))
    from fuseproof.pipelines.fastpath_workloads import (
        EMBEDDED_TEXT_ROWS,
        Workload,
        meta_model,
        site_calls,
        widened,
    )

    batch, rows, width = shape[:3]
    skeleton = meta_model(model)
    text_rows = max(1, min(skeleton.family.text_tokens or EMBEDDED_TEXT_ROWS, rows // 2))
    workload = Workload(f"{batch}x{rows}x{width}", text_rows, rows - text_rows, batch)
    return site_calls(widened(skeleton.transformer, width), workload, skeleton.family, _sites(own))


def calls_of_models(models: Sequence[str], own: UserSites | None, device: torch.device) -> list[tuple[str, SiteCall]]:
    """The calls of each model's real requests, with the workload's name."""
    from fuseproof.pipelines.fastpath_workloads import meta_model, real_calls

    found: dict[Any, tuple[str, SiteCall]] = {}
    for name in models:
        for workload, call in real_calls(meta_model(name), _sites(own), device):
            found.setdefault((call.site, call.layout), (workload, call))
    return list(found.values())


def replay_of(path: str, own: UserSites | None, model: str | None) -> Replay:
    """A captured call read from ``path``, tied to the kernel or the site of one's own that it was captured at."""
    from fuseproof.fastpaths.captures import read_capture
    from fuseproof.fastpaths.tracing import SiteCall

    captured = read_capture(Path(path).expanduser())
    site = next((one for one in own.sites if one.name == captured.site), None) if own is not None else None
    if captured.source.get("is_own") and site is None:
        raise UsageError(
            f"{path} was captured at {captured.site!r}, a site of somebody's own.",
            next_step="Name the file that defines it with --fastpaths-from.",
        )
    if captured.source.get("kind") == "module" and site is not None:
        return _module_replay(captured, site, model or str(captured.source.get("model")))
    if not _is_kernel(captured.layout.operation):
        raise FuseproofError(
            f"{path} was captured at {captured.layout.operation!r}, which is no kernel here.",
            next_step="`fuseproof fastpaths list` shows the kernels.",
        )
    return Replay(SiteCall(captured.site, captured.layout, site), captured, None)


def _is_kernel(name: str) -> bool:
    """Whether the guide knows a kernel of that name; a name from a file is never imported before it is known."""
    from fuseproof.cli.fastpaths_guide import read_guide

    contract = read_guide().contracts.get(name)
    return contract is not None and contract.is_kernel


def check_names(wanted: Iterable[str], known: Iterable[str]) -> None:
    """Whether the chosen models call every name of ``--site``; a :class:`UsageError` lists those that they call."""
    names = sorted(set(known))
    for name in wanted:
        if name not in names:
            raise UsageError(
                f"--site {name!r} is called by none of the chosen models; {', '.join(names)} are.",
                next_step="Drop --model or --shape, or choose one of these.",
            )


def _module_replay(captured: CapturedCall, site: UserSite, model: str) -> Replay:
    import torch

    from fuseproof.fastpaths.tracing import SiteCall
    from fuseproof.pipelines.fastpath_workloads import meta_model

    transformer = meta_model(model).transformer
    try:
        meta = transformer.get_submodule(captured.layout.operation)
        real = meta.to_empty(device="cpu")
        real.load_state_dict(dict(captured.parameters), assign=True)
    except (AttributeError, RuntimeError) as error:
        raise FuseproofError(
            f"the captured module {captured.layout.operation!r} does not fit model {model!r}: "
            f"{str(error).splitlines()[0]}.",
            next_step="Name the model that it was captured from with --model.",
        ) from error
    if any(tensor.is_meta for tensor in (*real.parameters(), *real.buffers())):
        raise FuseproofError(f"the captured module {captured.layout.operation!r} lacks some of its weights.")
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    module = real.to(device)
    return Replay(SiteCall(captured.site, captured.layout, site, module), captured, module)


def _sites(own: UserSites | None) -> tuple[UserSite, ...]:
    return own.sites if own is not None else ()


def names_of(call: SiteCall) -> tuple[str, ...]:
    """What ``--site`` may call it: its site, and its kernel."""
    return (call.site,) if call.module is not None else (call.site, call.layout.operation)
