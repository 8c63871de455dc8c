"""What on the GPUs would spoil a measurement: foreign processes, used memory, hidden or shared cards, limits."""

from __future__ import annotations

from collections.abc import Iterator

from fuseproof.harness.machine.facts import Finding, Level, MachineFacts
from fuseproof.harness.machine.gpus import Gpu, visible_gpus

# An idle card holds a few MiB for its driver. Inside a container the processes of others are invisible, their memory
# is not.
IDLE_MEMORY_MIB = 32
IDLE_UTILIZATION_PERCENT = 5


def check_gpus(facts: MachineFacts) -> Iterator[Finding]:
    """Findings on topic ``GPU``; a machine without one is told what still works."""
    survey = facts.gpus
    if not survey.gpus:
        yield Finding(
            "warn",
            "GPU",
            f"no NVIDIA GPU: {survey.reason}",
            "CPU runs, parity, compare-perf, compare-media and report work without one; kernels need one",
        )
        return
    if survey.reason:
        yield Finding("warn", "GPU", survey.reason, "run nvidia-smi by hand; without its answer a busy GPU is not seen")
    visible, hidden_reason = visible_gpus(survey.gpus, facts.variables.get("CUDA_VISIBLE_DEVICES"))
    if hidden_reason:
        level: Level = "ok" if visible else "warn"
        yield Finding(level, "GPU", hidden_reason, None if visible else "unset CUDA_VISIBLE_DEVICES to use a GPU")
    yield from _check_torch_build(facts)
    yield from _check_order(facts, visible)
    for gpu in visible:
        yield from _check_gpu(facts, gpu)


def _check_torch_build(facts: MachineFacts) -> Iterator[Finding]:
    if facts.torch is not None and facts.torch.cuda is None:
        yield Finding(
            "problem",
            "GPU",
            f"torch {facts.torch.version} is a build without CUDA, so no GPU can be used",
            "install the CUDA build of the same torch version",
        )


def _check_order(facts: MachineFacts, visible: tuple[Gpu, ...]) -> Iterator[Finding]:
    """CUDA counts the fastest card first, nvidia-smi by bus: with unlike cards an index names two different ones."""
    is_ordered_by_bus = facts.variables.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    is_named = facts.variables.get("CUDA_VISIBLE_DEVICES", "").startswith(("GPU-", "MIG-"))
    models = {gpu.name for gpu in facts.gpus.gpus}
    if visible and len(models) > 1 and not is_ordered_by_bus and not is_named:
        yield Finding(
            "warn",
            "GPU",
            "there are different GPUs here, and CUDA numbers them otherwise than nvidia-smi",
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or choose the card by its UUID",
        )


def _check_gpu(facts: MachineFacts, gpu: Gpu) -> Iterator[Finding]:
    label = f"GPU {gpu.index} ({gpu.name or 'unknown name'})"
    troubles = [*_check_use(facts, gpu, label), *_check_settings(gpu, label)]
    yield from troubles
    if not troubles:
        yield Finding("ok", "GPU", f"{label} is idle, driver {gpu.driver_version or 'unknown'}")


def _check_use(facts: MachineFacts, gpu: Gpu, label: str) -> Iterator[Finding]:
    foreign = [
        process
        for process in facts.gpus.processes
        if process.gpu_uuid in (gpu.uuid, *gpu.mig_devices) and process.process_id not in facts.own_process_ids
    ]
    used_mib = gpu.memory_used_mib
    if foreign:
        names = ", ".join(f"{process.name or '?'} ({process.process_id})" for process in foreign[:3])
        seen = f"{label} is used by {len(foreign)} other process(es): {names}"
        yield Finding("problem", "GPU", seen, "wait until they end, or choose another GPU with CUDA_VISIBLE_DEVICES")
    elif used_mib is not None and used_mib > IDLE_MEMORY_MIB:
        yield Finding(
            "problem",
            "GPU",
            f"{label} has {used_mib:,.0f} MiB in use though no process is visible (idle: up to {IDLE_MEMORY_MIB} MiB): "
            "somebody outside this container, or a process left behind",
            "look with nvidia-smi on the host, or choose another GPU with CUDA_VISIBLE_DEVICES",
        )
    if gpu.utilization_percent is not None and gpu.utilization_percent > IDLE_UTILIZATION_PERCENT:
        seen = f"{label} is {gpu.utilization_percent:.0f} % busy before anything of ours runs"
        yield Finding("problem", "GPU", seen, "wait until it is idle, or choose another GPU with CUDA_VISIBLE_DEVICES")


def _check_settings(gpu: Gpu, label: str) -> Iterator[Finding]:
    if gpu.mig_mode == "Enabled":
        yield Finding(
            "warn",
            "GPU",
            f"{label} is divided by MIG: its instances share power and clocks, and numbers are not those of the card",
            "name the instance by its MIG- UUID in CUDA_VISIBLE_DEVICES, and say MIG beside every number",
        )
    limit_w, default_w = gpu.power_limit_w, gpu.power_default_limit_w
    if limit_w is not None and default_w is not None and limit_w < default_w:
        seen = f"{label} is limited to {limit_w:g} W of {default_w:g} W"
        yield Finding("warn", "GPU", seen, "compare only with numbers from the same limit; fuseproof never changes it")
    if gpu.persistence_mode == "Disabled":
        seen = f"{label} has persistence mode off: the driver reloads between processes, which slows their start"
        yield Finding("warn", "GPU", seen, "sudo nvidia-smi -pm 1 (the request's own time is hardly touched)")
    if gpu.compute_mode == "Prohibited":
        seen = f"{label} is in compute mode Prohibited: no process may use it"
        yield Finding("problem", "GPU", seen, "choose another GPU, or ask the machine's owner")
