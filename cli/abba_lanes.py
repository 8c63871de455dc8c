"""Where the blocks of ``fuseproof abba`` run: one at a time, side by side on several GPUs, or over a Ray cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fuseproof.cli.abba_options import AbbaOptions
from fuseproof.errors import UsageError

if TYPE_CHECKING:
    from fuseproof.harness.campaign.folder import Campaign
    from fuseproof.harness.campaign.interrupts import Interrupts
    from fuseproof.harness.campaign.runner import CampaignObserver
    from fuseproof.harness.campaign.session import Runner
    from fuseproof.harness.campaign.slots import ProcessExecutor
    from fuseproof.harness.machine.gpus import Gpu, GpuSurvey
    from fuseproof.schedules.plan import Plan

    MakeRunner = Callable[[Campaign, CampaignObserver, Interrupts], Runner]


@dataclass(frozen=True)
class Lanes:
    """What a session needs to know of where its blocks run. ``make_runner`` is None for one block at a time."""

    environment: dict[str, Any]
    make_runner: MakeRunner | None = None
    devices: Sequence[str] | None = None
    cuda_visible_devices: str | None = None
    """The GPUs that must be free before the first slot, as CUDA names them."""
    remarks: tuple[str, ...] = ()


@contextlib.contextmanager
def lanes_of(
    options: AbbaOptions, survey: GpuSurvey, environment: dict[str, Any], plan: Plan | None
) -> Iterator[Lanes]:
    """The lanes that the flags ask for, checked; a Ray cluster is held while the context lasts.

    ``plan`` is None where a campaign is resumed without saying its plan again. Raises :class:`UsageError`.
    """
    if options.executor == "ray":
        with _ray_lanes(options, environment, plan) as lanes:
            yield lanes
    elif options.gpus is not None:
        yield _gpu_lanes(options.gpus, survey, environment, plan)
    else:
        yield Lanes(environment, cuda_visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"))


def check_gpus(options: AbbaOptions, plan: Plan, survey: GpuSurvey) -> list[str]:
    """For a dry run: what ``--gpus`` and ``--executor ray`` would need and this machine has not; starts nothing.

    A machine without any GPU, or without Ray, may plan for another one. Raises :class:`UsageError` for what would be
    refused anywhere, and for cards that are not among those that are here.
    """
    from fuseproof.harness.campaign.gpu_choice import chosen_gpus, refuse_arms_with_devices, refuse_impossible_names

    if options.executor == "ray":
        from fuseproof.harness.campaign.ray_executor import load_ray

        if options.gpus_per_block != 0:
            refuse_arms_with_devices(plan, "--executor ray")
        try:
            load_ray()
        except UsageError as error:
            return [f"{error.message} The plan is shown; it cannot run here"]
    if options.gpus is not None:
        refuse_arms_with_devices(plan)
        refuse_impossible_names(options.gpus)
        if not survey.gpus:
            why = f" ({survey.reason})" if survey.reason else ""
            return [f"there is no GPU here{why}, so --gpus {options.gpus} is not checked; the plan cannot run here"]
        chosen_gpus(options.gpus, survey, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return []


def lane_words(options: AbbaOptions) -> list[str]:
    """The flags that say where blocks run, to go on with them."""
    words = [] if options.gpus is None else ["--gpus", options.gpus]
    words += ["--executor", "ray"] if options.executor == "ray" else []
    return words + ([] if options.gpus_per_block is None else ["--gpus-per-block", str(options.gpus_per_block)])


def _gpu_lanes(text: str, survey: GpuSurvey, environment: Mapping[str, Any], plan: Plan | None) -> Lanes:
    from fuseproof.harness.campaign.gpu_choice import (
        chosen_gpus,
        environment_of,
        refuse_arms_with_devices,
        thread_share,
        threads_of,
    )
    from fuseproof.harness.campaign.parallel_blocks import ParallelRunner

    chosen = chosen_gpus(text, survey, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if plan is not None:
        refuse_arms_with_devices(plan)

    def make_runner(campaign: Campaign, observer: CampaignObserver, interrupts: Interrupts) -> Runner:
        refuse_arms_with_devices(campaign.plan)
        threads = threads_of(campaign, thread_share(len(chosen)))
        return ParallelRunner(campaign, [gpu_executor(gpu, threads) for gpu in chosen], observer, interrupts)

    names = ", ".join(f"GPU {gpu.index} ({gpu.name or 'no name'})" for gpu in chosen)
    told = f"blocks run side by side on {names}; each stays on its GPU from its first slot to its last"
    return Lanes(
        environment=environment_of(environment, chosen, text),
        make_runner=make_runner,
        devices=[gpu.uuid or f"gpu-{gpu.index}" for gpu in chosen],
        cuda_visible_devices=",".join(gpu.uuid or str(gpu.index) for gpu in chosen),
        remarks=(told,) if len(chosen) > 1 else (),
    )


def gpu_executor(gpu: Gpu, environment: Mapping[str, str]) -> ProcessExecutor:
    """An executor that shows its slots one card, watches that card alone, and knows the other lanes as its own."""
    from fuseproof.harness.campaign.gpu_choice import device_environment, slot_device
    from fuseproof.harness.campaign.gpu_rest import GpuWatch
    from fuseproof.harness.campaign.own_use import OwnUse
    from fuseproof.harness.campaign.slots import Placement, ProcessExecutor
    from fuseproof.harness.campaign.telemetry import ProcessSampler

    def make_sampler() -> ProcessSampler:
        use = OwnUse()
        return ProcessSampler(use.seconds, use.pids)

    return ProcessExecutor(
        make_sampler=make_sampler,
        gpus=GpuWatch((gpu.uuid,) if gpu.uuid else ()),
        placement=Placement({**environment, **device_environment(gpu)}, slot_device(gpu)),
    )


@contextlib.contextmanager
def _ray_lanes(options: AbbaOptions, environment: Mapping[str, Any], plan: Plan | None) -> Iterator[Lanes]:
    from fuseproof.harness.campaign.gpu_choice import refuse_arms_with_devices, threads_of
    from fuseproof.harness.campaign.ray_executor import cluster_facts, ray_pool
    from fuseproof.harness.campaign.remote_blocks import RemoteRunner

    gpus_per_block = 1 if options.gpus_per_block is None else options.gpus_per_block
    if plan is not None and gpus_per_block:
        refuse_arms_with_devices(plan, "--executor ray")
    with ray_pool(gpus_per_block, options.allow_busy) as (pool, told):
        facts = cluster_facts(pool)
        share = max(1, facts["cpus"] // max(1, pool.capacity()))

        def make_runner(campaign: Campaign, observer: CampaignObserver, interrupts: Interrupts) -> Runner:
            if gpus_per_block:
                refuse_arms_with_devices(campaign.plan, "--executor ray")
            return RemoteRunner(campaign, pool, threads_of(campaign, share), observer, interrupts)

        yield Lanes({**environment, "ray": facts}, make_runner, devices=(), cuda_visible_devices="", remarks=(told,))
