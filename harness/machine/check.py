"""From facts about a machine to findings: what would make a measurement here untrustworthy, and what to do about it.

Pure. Each rule takes the facts and yields findings on its own topic; a topic without trouble yields one ``ok`` line, so
that a reader sees that it was looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fuseproof.harness.machine.facts import Finding, MachineFacts
from fuseproof.harness.machine.gpu_check import check_gpus
from fuseproof.harness.machine.usage import busy_threshold

OLDEST_PYTHON = (3, 11)
FEW_CORES = 2
STEAL_SHARE_WARN = 0.02
FREE_DISK_WARN_MIB = 2048
FREE_DISK_PROBLEM_MIB = 256
# An image process of the embedded model needs about 1.3 GiB.
FREE_MEMORY_WARN_MIB = 3072
FREE_MEMORY_PROBLEM_MIB = 1536
SWAP_USED_WARN_MIB = 64
COARSE_TICK_S = 1e-4
_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def check_machine(facts: MachineFacts) -> list[Finding]:
    """Every finding, in a fixed order: software first, then processor, memory, disk, clocks and GPUs."""
    return [finding for rule in RULES for finding in rule(facts)]


def _check_python(facts: MachineFacts) -> Iterator[Finding]:
    seen = ".".join(map(str, facts.python_version))
    needed = ".".join(map(str, OLDEST_PYTHON))
    if facts.python_version < OLDEST_PYTHON:
        yield Finding("problem", "python", f"Python {seen} is older than {needed}", f"install Python {needed} or newer")
    else:
        yield Finding("ok", "python", f"Python {seen}")


def _check_libraries(facts: MachineFacts) -> Iterator[Finding]:
    if not facts.libraries:
        yield Finding(
            "warn",
            "libraries",
            "fuseproof is not installed as a package here, so library versions were not checked",
            "pip install -e . (or make setup) in the checkout",
        )
        return
    for library in facts.libraries:
        wanted = f"{library.name}{library.required}"
        install = f"pip install '{wanted}'"
        if library.version is None:
            yield Finding("problem", "libraries", f"{library.name} is not installed (needed: {wanted})", install)
        elif library.is_accepted is False:
            seen = f"{library.name} {library.version} was never tried with this release (needed: {wanted})"
            yield Finding("warn", "libraries", seen, install)
    if all(library.is_accepted for library in facts.libraries):
        yield Finding("ok", "libraries", f"all {len(facts.libraries)} required libraries are installed")


def _check_cores(facts: MachineFacts) -> Iterator[Finding]:
    processor = facts.host.processor
    usable = processor.usable_cores
    seen = f"{processor.model or 'unknown processor'}, {usable} of {processor.logical_cores} cores usable"
    if usable < FEW_CORES:
        yield Finding(
            "warn",
            "cores",
            f"{seen}: nothing is left for the rest of the system while an arm runs",
            "use a machine with at least 2 cores, or expect INCONCLUSIVE for small effects",
        )
    else:
        yield Finding("ok", "cores", seen)
    if processor.quota_cores is not None and processor.quota_cores < usable:
        yield Finding(
            "warn",
            "cpu quota",
            f"this container may use {processor.quota_cores:g} cores' worth of time on {usable} cores, "
            "so threads are paused in mid-request",
            f"raise the limit, or start with OMP_NUM_THREADS={max(1, int(processor.quota_cores))}",
        )


def _check_activity(facts: MachineFacts) -> Iterator[Finding]:
    activity = facts.activity
    others = activity.other_cpu_cores
    named = [process for process in activity.worst if process.cpu_cores >= 0.1]
    names = ", ".join(f"{process.name} {process.cpu_cores:.1f}" for process in named)
    seen = f"other processes use {others:.1f} of {activity.cores_text}" + (f" ({names})" if names else "")
    advice = "stop them, or measure later; a busy core can slow an all-core run many times over"
    limit_cores = busy_threshold(activity.cores) * activity.cores
    if others > limit_cores:
        yield Finding("problem", "busy CPU", f"{seen}: abba would not start without --allow-busy", advice)
    elif others > limit_cores / 2:
        yield Finding("warn", "busy CPU", seen, advice)
    else:
        yield Finding("ok", "busy CPU", seen)
    if activity.steal_share >= STEAL_SHARE_WARN:
        seen = f"the hypervisor took {activity.steal_share:.0%} of the CPU time for other machines"
        yield Finding("warn", "stolen time", seen, "use a dedicated machine, or run more blocks")


def _check_load(facts: MachineFacts) -> Iterator[Finding]:
    load = facts.host.load_average
    usable = facts.host.processor.usable_cores
    if load is not None and load[0] > usable:
        seen = f"the load average of the last minute is {load[0]:.1f} on {usable} cores"
        yield Finding("warn", "load average", seen, "wait until it falls; something was, or is, at work here")


def _check_processor_settings(facts: MachineFacts) -> Iterator[Finding]:
    processor = facts.host.processor
    if "powersave" in processor.governors:
        yield Finding(
            "warn",
            "CPU governor",
            "the CPU governor is powersave: clocks follow the load, so the first runs are slower",
            "sudo cpupower frequency-set -g performance (and back afterwards); fuseproof never changes it",
        )
    if processor.is_virtual:
        yield Finding(
            "warn",
            "virtual machine",
            "this is a virtual machine: its neighbours' load cannot be seen from here",
            "run more blocks, and take INCONCLUSIVE for small effects as it stands",
        )


def _check_threads(facts: MachineFacts) -> Iterator[Finding]:
    usable = facts.host.processor.usable_cores
    for name in _THREAD_VARIABLES:
        value = facts.variables.get(name)
        if value is None:
            continue
        if not value.isdigit() or int(value) < 1:
            seen = f"{name}={value!r} is no number of threads"
            yield Finding("problem", "threads", seen, f"unset {name}, or set a number from 1 to {usable}")
        elif int(value) > usable:
            seen = f"{name}={value} is more than the {usable} usable cores: threads wait for each other"
            yield Finding("warn", "threads", seen, f"unset {name}, or set a number from 1 to {usable}")
    if facts.variables.get("OMP_WAIT_POLICY", "").upper() == "ACTIVE":
        yield Finding(
            "warn",
            "threads",
            "OMP_WAIT_POLICY=ACTIVE makes waiting threads spin, which multiplies the harm of any other program",
            "unset OMP_WAIT_POLICY, or set it to PASSIVE",
        )


def _check_memory(facts: MachineFacts) -> Iterator[Finding]:
    memory = facts.host.memory
    available = memory.available_mib if memory.limit_mib is None else min(memory.available_mib, memory.limit_mib)
    seen = f"{available:,} MiB of memory free"
    advice = "close other programs, or use a machine with more memory"
    if available < FREE_MEMORY_PROBLEM_MIB:
        yield Finding("problem", "memory", f"{seen}: the smallest image process needs about 1,300 MiB", advice)
    elif available < FREE_MEMORY_WARN_MIB:
        yield Finding("warn", "memory", f"{seen}: little is left beside one image process", advice)
    else:
        yield Finding("ok", "memory", seen)
    if memory.swap_used_mib >= SWAP_USED_WARN_MIB:
        seen = f"{memory.swap_used_mib:,} MiB of swap is in use: pages that come back cost time inside a request"
        yield Finding("warn", "swap", seen, "free memory until swap is empty (sudo swapoff -a && sudo swapon -a)")


def _check_folders(facts: MachineFacts) -> Iterator[Finding]:
    for folder in facts.folders:
        where = f"{folder.role} {folder.path}"
        if not folder.is_writable:
            yield Finding("warn", "disk", f"the {where} cannot be written to", "choose another folder to write to")
            continue
        if folder.free_mib is None:
            yield Finding("warn", "disk", f"the free space of the {where} is unknown", "check it before a campaign")
            continue
        seen = f"{folder.free_mib:,} MiB free in the {where}"
        advice = "free some space; a campaign stops when a slot cannot be written"
        if folder.free_mib < FREE_DISK_PROBLEM_MIB:
            yield Finding("problem", "disk", seen, advice)
        elif folder.free_mib < FREE_DISK_WARN_MIB:
            yield Finding("warn", "disk", seen, advice)
        else:
            yield Finding("ok", "disk", seen)


def _check_clock(facts: MachineFacts) -> Iterator[Finding]:
    tick_s = facts.host.timer_tick_s
    source = facts.host.processor.clock_source
    if tick_s > COARSE_TICK_S:
        seen = f"the timer moves in steps of {tick_s * 1e3:.3g} ms"
        yield Finding("problem", "timer", seen, "measure longer requests, or on another system")
    elif source in _SLOW_CLOCKS:
        seen = f"the clock source is {source}: reading the time is slow and coarse"
        yield Finding("warn", "timer", seen, "see /sys/devices/system/clocksource; tsc is the usual one")
    else:
        yield Finding("ok", "timer", f"steps of {tick_s * 1e9:.0f} ns" + (f", clock source {source}" if source else ""))


RULES: tuple[Callable[[MachineFacts], Iterator[Finding]], ...] = (
    _check_python,
    _check_libraries,
    _check_cores,
    _check_activity,
    _check_load,
    _check_processor_settings,
    _check_threads,
    _check_memory,
    _check_folders,
    _check_clock,
    check_gpus,
)
