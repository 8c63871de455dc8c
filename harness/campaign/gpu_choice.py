"""The GPUs of ``--gpus``: which cards are meant, refused where they are not there, hidden, split or named twice."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from fuseproof.errors import UsageError
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.gpu_records import SlotDevice
from fuseproof.harness.machine.gpus import Gpu, GpuSurvey, visible_gpus
from fuseproof.harness.machine.usage import usable_cores
from fuseproof.schedules.plan import Plan

DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER_VARIABLE = "CUDA_DEVICE_ORDER"
THREADS_VARIABLE = "OMP_NUM_THREADS"


def chosen_gpus(text: str, survey: GpuSurvey, cuda_visible_devices: str | None = None) -> tuple[Gpu, ...]:
    """The cards that ``text`` names, in its order: indices as nvidia-smi counts them, or UUIDs (or their beginnings).

    Raises :class:`UsageError` with the value seen and the GPUs present for a card that is not there, is hidden by
    ``cuda_visible_devices``, is named twice, or is split into MIG instances.
    """
    visible, hidden_reason = visible_gpus(survey.gpus, cuda_visible_devices)
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in text.split(",")):
        gpu = _named(entry, survey.gpus)
        if gpu is None or gpu not in visible:
            why = f", and {hidden_reason}" if gpu is not None else ""
            raise UsageError(
                f"--gpus names {entry!r}, which is no GPU of this campaign{why}; {_present(visible, survey)}.",
                next_step="Name GPUs by index or UUID, with commas between them, as `nvidia-smi -L` lists them.",
            )
        if gpu in chosen:
            raise UsageError(
                f"--gpus names GPU {gpu.index} twice ({text!r}): two blocks on one card would measure each other.",
                next_step="Name every GPU once.",
            )
        if gpu.mig_mode == "Enabled":
            raise UsageError(
                f"--gpus names GPU {gpu.index}, which is split into MIG instances: a block needs a whole card.",
                next_step="Name cards without MIG, or run one campaign on one instance: CUDA_VISIBLE_DEVICES=MIG-....",
            )
        chosen.append(gpu)
    return tuple(chosen)


def refuse_impossible_names(text: str) -> None:
    """Raise :class:`UsageError` for a list of cards that no machine could have: an empty name, or one given twice."""
    entries = [part.strip() for part in text.split(",")]
    for entry in entries:
        if not (entry.isascii() and entry.isdigit()) and not entry.startswith("GPU-"):
            raise UsageError(
                f"--gpus names {entry!r}, which is neither an index nor a UUID ({text!r}).",
                next_step="Name GPUs by index or UUID, with commas between them, as `nvidia-smi -L` lists them.",
            )
        if entries.count(entry) > 1:
            raise UsageError(
                f"--gpus names GPU {entry} twice ({text!r}): two blocks on one card would measure each other.",
                next_step="Name every GPU once.",
            )


def _named(entry: str, gpus: Sequence[Gpu]) -> Gpu | None:
    if entry.isascii() and entry.isdigit():
        return next((gpu for gpu in gpus if gpu.index == int(entry)), None)
    matches = [gpu for gpu in gpus if entry.startswith("GPU-") and (gpu.uuid or "").startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _present(visible: Sequence[Gpu], survey: GpuSurvey) -> str:
    if not visible:
        return f"there is none ({survey.reason})" if survey.reason else "there is none"
    return "there are " + ", ".join(f"{gpu.index} ({gpu.uuid or 'no UUID'})" for gpu in visible)


def refuse_arms_with_devices(plan: Plan, flag: str = "--gpus") -> None:
    """Raise :class:`UsageError` where an arm chooses its GPUs itself: every slot is given one, by its block."""
    for arm in plan.arms.all:
        if DEVICES_VARIABLE in arm.env:
            raise UsageError(
                f"The environment of arm {arm.name!r} sets {DEVICES_VARIABLE}={arm.env[DEVICES_VARIABLE]}, and "
                f"{flag} gives every block a GPU of its own.",
                next_step=f"Leave {DEVICES_VARIABLE} out of the plan, or leave {flag} out.",
            )


def slot_device(gpu: Gpu, node: str | None = None) -> SlotDevice:
    """What a slot's record says of the card that it was given."""
    return SlotDevice(gpu.uuid, gpu.index, gpu.name, node)


def device_environment(gpu: Gpu) -> dict[str, str]:
    """The variables that show one card to CUDA; by UUID where there is one, else by nvidia-smi's own counting."""
    if gpu.uuid is not None:
        return {DEVICES_VARIABLE: gpu.uuid}
    return {DEVICES_VARIABLE: str(gpu.index), ORDER_VARIABLE: "PCI_BUS_ID"}


def thread_share(lanes: int) -> int:
    """How many threads a slot gets where ``lanes`` slots run at once; one core is left to the rest of the machine."""
    return max(1, (len(usable_cores()) - 1) // max(1, lanes))


def threads_of(campaign: Campaign, share: int) -> dict[str, str]:
    """``OMP_NUM_THREADS`` for every slot: what its earlier slots had, so that resuming changes nothing, else ``share``.

    Arms that set it themselves keep theirs.
    """
    earlier = (
        slot.environment_overrides[THREADS_VARIABLE]
        for slot in campaign.slots()
        if THREADS_VARIABLE in slot.environment_overrides and THREADS_VARIABLE not in campaign.plan.arm(slot.arm).env
    )
    return {THREADS_VARIABLE: next(earlier, str(share))}


def environment_of(environment: Mapping[str, Any], gpus: Sequence[Gpu], text: str) -> dict[str, Any]:
    """A session's description with the chosen cards as those it may use; they are what is locked and looked at."""
    total = len(environment.get("gpus") or ())
    hidden = total - len(gpus)
    reason = f"--gpus {text} leaves out {hidden} of {total} GPUs" if hidden else None
    uuids = [gpu.uuid for gpu in gpus]
    return {**environment, "visible_gpu_uuids": uuids, "visible_gpus_reason": reason}


def present_visibility() -> str | None:
    """``CUDA_VISIBLE_DEVICES`` of this program."""
    return os.environ.get(DEVICES_VARIABLE)
