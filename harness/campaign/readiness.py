"""Is this machine quiet enough to start, and is nothing left over from an earlier session?"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field

import psutil

from fuseproof.errors import InvalidMeasurementError
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.machine.activity import sample_activity
from fuseproof.harness.machine.gpu_check import IDLE_MEMORY_MIB, IDLE_UTILIZATION_PERCENT
from fuseproof.harness.machine.gpus import GpuSurvey, visible_gpus
from fuseproof.harness.machine.usage import busy_threshold

_ALLOW = "or pass --allow-busy: disturbed slots, and slots too short to tell, cap the verdict."
_ALLOW_GPU = "or pass --allow-busy: what is seen of others on the GPUs between slots caps the verdict."


@dataclass(frozen=True)
class Readiness:
    """Looks at the machine once, just before the first slot."""

    gpus: GpuSurvey = field(default_factory=GpuSurvey)
    cuda_visible_devices: str | None = field(default_factory=lambda: os.environ.get("CUDA_VISIBLE_DEVICES"))

    def refuse_busy_machine(self) -> None:
        """Raise :class:`InvalidMeasurementError` when others use the processor or a visible GPU."""
        self.refuse_busy_gpus()
        activity = sample_activity()
        share = activity.other_cpu_cores / activity.cores
        if share <= busy_threshold(activity.cores):
            return
        named = ", ".join(str(process) for process in activity.worst)
        raise InvalidMeasurementError(
            f"Other processes use {activity.other_cpu_cores:.1f} of {activity.cores_text}"
            f"{f': {named}' if named else ''}.",
            next_step=f"Wait until they are done or end them, then start again, {_ALLOW}",
        )

    def refuse_busy_gpus(self) -> None:
        """Raise :class:`InvalidMeasurementError` when others use a visible GPU."""
        visible, _ = visible_gpus(self.gpus.gpus, self.cuda_visible_devices)
        for gpu in visible:
            holders = [process for process in self.gpus.processes if process.gpu_uuid in (gpu.uuid, *gpu.mig_devices)]
            if holders:
                named = ", ".join(f"{process.name or '?'} (pid {process.process_id})" for process in holders)
                raise InvalidMeasurementError(
                    f"GPU {gpu.index} is in use by {named}.", next_step=f"Wait, use another card, {_ALLOW_GPU}"
                )
            if gpu.memory_used_mib is not None and gpu.memory_used_mib > IDLE_MEMORY_MIB:
                raise InvalidMeasurementError(
                    f"GPU {gpu.index} has {gpu.memory_used_mib:.0f} MiB in use by a process that is not visible here.",
                    next_step=f"Wait, use another card, {_ALLOW_GPU}",
                )
            if gpu.utilization_percent is not None and gpu.utilization_percent > IDLE_UTILIZATION_PERCENT:
                raise InvalidMeasurementError(
                    f"GPU {gpu.index} is {gpu.utilization_percent:.0f} % busy before anything of ours runs "
                    f"(idle: up to {IDLE_UTILIZATION_PERCENT} %).",
                    next_step=f"Wait, use another card, {_ALLOW_GPU}",
                )


def unwatched_gpus_remark(gpus: GpuSurvey, program: str = "nvidia-smi") -> str | None:
    """That there may be GPUs which nobody looks at; None where all were seen, or there is no driver at all."""
    if gpus.reason is None or shutil.which(program) is None:
        return None
    return f"{gpus.reason}: a busy GPU would not be noticed, and GPUs that were not seen are neither locked nor sampled"


def refuse_leftovers(campaign: Campaign) -> None:
    """Raise :class:`InvalidMeasurementError` when a slot of a crashed session still runs.

    A process id is only believed when its process is the leader of its own group and began when the slot did. A group
    whose processes have all ended is over, even where nobody collects them, as in a container without an init.
    """
    for slot in campaign.slots():
        if slot.state != "running" or slot.pid is None or not _is_the_slot(slot.pid, slot.started_unix_s):
            continue
        if _has_living_process(slot.pid):
            raise InvalidMeasurementError(
                f"Slot {slot.id} of the earlier session still runs as process {slot.pid}.",
                next_step=f"End it with: kill -- -{slot.pid}",
            )


def _is_the_slot(pid: int, started_unix_s: float | None) -> bool:
    try:
        is_leader = os.getpgid(pid) == pid
        began = psutil.Process(pid).create_time()
    except (ProcessLookupError, psutil.Error):
        return False
    return is_leader and started_unix_s is not None and abs(began - started_unix_s) < 5.0


def _has_living_process(group: int) -> bool:
    for process in psutil.process_iter(["status"]):
        try:
            if process.info["status"] != psutil.STATUS_ZOMBIE and os.getpgid(process.pid) == group:
                return True
        except ProcessLookupError:
            continue
    return False
