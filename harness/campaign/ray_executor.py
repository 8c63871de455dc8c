"""Blocks as Ray tasks: Ray places them, one GPU (or one CPU) each, and tells of nodes that are gone.

Ray (https://docs.ray.io) is an optional extra, loaded when ``--executor ray`` asks for it. A task runs its whole block
on the node that Ray chose; Ray itself never repeats one, because the folder decides what has to run again.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psutil

from fuseproof.errors import FuseproofError, InvalidMeasurementError, UsageError
from fuseproof.harness.campaign.block_tasks import BlockResult, BlockTask, run_block_task
from fuseproof.harness.campaign.gpu_choice import device_environment, present_visibility, slot_device
from fuseproof.harness.campaign.gpu_records import SlotDevice
from fuseproof.harness.campaign.gpu_rest import GpuWatch
from fuseproof.harness.campaign.interrupts import Interrupts
from fuseproof.harness.campaign.locking import device_locks
from fuseproof.harness.campaign.own_use import OwnUse
from fuseproof.harness.campaign.readiness import Readiness
from fuseproof.harness.campaign.remote_blocks import LostBlockError
from fuseproof.harness.campaign.slots import Placement, ProcessExecutor
from fuseproof.harness.campaign.telemetry import ProcessSampler
from fuseproof.harness.machine.gpus import Gpu, survey_gpus, visible_gpus

TASK_NAME = "fuseproof-block"
SMALLEST_VERSION = "2.60.0"
NODE_DIGITS = 12
ADDRESS_VARIABLE = "RAY_ADDRESS"


def load_ray() -> Any:
    """The ray module; :class:`UsageError` where it is not installed."""
    try:
        import ray  # type: ignore[import-not-found,import-untyped,unused-ignore]
        import ray.exceptions  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise UsageError(
            f"--executor ray needs Ray {SMALLEST_VERSION} or later, which cannot be imported here ({error}).",
            next_step="pip install 'fuseproof[ray]'",
        ) from error
    return ray


@dataclass
class RayPool:
    """A Ray cluster that runs blocks. ``gpus_per_block`` is 1, or 0 for blocks that ask for one CPU instead."""

    ray: Any
    gpus_per_block: int = 1
    allow_busy: bool = False
    _run: Any = field(init=False)

    def __post_init__(self) -> None:
        needs = {"num_gpus": 1, "num_cpus": 0} if self.gpus_per_block else {"num_cpus": 1}
        self._run = self.ray.remote(max_retries=0, **needs)(run_on_node)

    def capacity(self) -> int:
        return int(self.ray.cluster_resources().get("GPU" if self.gpus_per_block else "CPU", 0.0))

    def submit(self, task: BlockTask) -> object:
        run = self._run.options(name=f"{TASK_NAME} {task.name}")
        handle: object = run.remote(task, self.gpus_per_block, self.allow_busy)
        return handle

    def wait(self, handles: Sequence[object], timeout_s: float) -> Sequence[object]:
        ended: Sequence[object] = self.ray.wait(list(handles), num_returns=1, timeout=timeout_s)[0] if handles else ()
        return ended

    def result(self, handle: object) -> BlockResult:
        exceptions = self.ray.exceptions
        try:
            result: BlockResult = self.ray.get(handle)
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, FuseproofError):
                raise error.cause from error
            raise
        except exceptions.RayError as error:
            raise LostBlockError(type(error).__name__) from error
        return result

    def interrupt(self, handles: Sequence[object], at_once: bool) -> None:
        for handle in handles:
            with contextlib.suppress(self.ray.exceptions.RayError, ValueError):
                self.ray.cancel(handle, force=at_once)


@contextlib.contextmanager
def ray_pool(gpus_per_block: int, allow_busy: bool) -> Iterator[tuple[RayPool, str]]:
    """A pool on the running cluster, or on a local one that is started for it, and a sentence that says which.

    Raises :class:`UsageError` without Ray, and :class:`InvalidMeasurementError` where no node has what a block needs.
    """
    ray = load_ray()
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        where = joined_cluster(ray, os.environ.get(ADDRESS_VARIABLE), quiet)
        pool = RayPool(ray, gpus_per_block, allow_busy)
        lanes, what = pool.capacity(), "GPU" if gpus_per_block else "CPU"
        if not lanes:
            raise InvalidMeasurementError(
                f"No node of {where} has a {what}, and every block asks for one.",
                next_step="Start nodes with GPUs, or pass --gpus-per-block 0 for blocks that need none.",
            )
        nodes = sum(bool(node.get("Alive")) for node in ray.nodes())
        told = f"blocks run on {where}: up to {lanes} at once on {nodes} node{'s' if nodes > 1 else ''}"
        yield pool, f"{told}, one {what} each; every node must see the campaign folder at this path"
    finally:
        ray.shutdown()


def joined_cluster(ray: Any, address: str | None, quiet: dict[str, Any]) -> str:
    """Join the cluster at ``address``, or the one of this machine, or start one here; which one, in words.

    Raises :class:`FuseproofError` where an address was given and nothing answers: it is never replaced by another.
    """
    try:
        ray.init(address="auto", **quiet)
    except (ConnectionError, RuntimeError) as error:
        if address is not None:
            raise FuseproofError(
                f"The Ray cluster of {ADDRESS_VARIABLE} cannot be joined: {str(error).splitlines()[0]}.",
                next_step="Look with `ray status`, or unset it to use the cluster of this machine.",
            ) from error
        ray.init(address="local", include_dashboard=False, **quiet)
        return "a Ray cluster of this machine alone, started for this campaign because none was running"
    return "the running Ray cluster"


def cluster_facts(pool: RayPool) -> dict[str, Any]:
    """What the campaign keeps of the cluster: no addresses."""
    resources = pool.ray.cluster_resources()
    return {
        "version": pool.ray.__version__,
        "nodes": sum(bool(node.get("Alive")) for node in pool.ray.nodes()),
        "gpus": int(resources.get("GPU", 0.0)),
        "cpus": int(resources.get("CPU", 0.0)),
        "gpus_per_block": pool.gpus_per_block,
    }


def run_on_node(task: BlockTask, gpus_per_block: int, allow_busy: bool) -> BlockResult:
    """What a Ray worker does with a task: find its GPU, lock it, run the block, give the slots back."""
    node = load_ray().get_runtime_context().get_node_id()[:NODE_DIGITS]
    gpu = own_gpu() if gpus_per_block else None
    environment = {**(device_environment(gpu) if gpu else {}), **task.environment}
    device = slot_device(gpu, node) if gpu else SlotDevice(node=node)
    executor = ProcessExecutor(
        make_sampler=sampler_beside_other_tasks,
        gpus=GpuWatch((gpu.uuid,) if gpu and gpu.uuid else ()),
        placement=Placement(environment, device),
    )
    hear_cancellation()
    with device_locks([device.card] if device.card else [], str(task.directory)), Interrupts() as interrupts:
        if gpu is not None and not allow_busy:
            Readiness(survey_gpus(), device_environment(gpu)["CUDA_VISIBLE_DEVICES"]).refuse_busy_gpus()
        return run_block_task(task, executor, interrupts)


def hear_cancellation() -> None:
    """Ray cancels a task with SIGINT's handler, and its workers begin with SIGINT ignored, which is kept elsewhere."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def own_gpu() -> Gpu:
    """The one card that Ray shows to this task."""
    survey = survey_gpus()
    visible, _ = visible_gpus(survey.gpus, present_visibility())
    if len(visible) != 1:
        raise FuseproofError(
            f"Ray gave a block CUDA_VISIBLE_DEVICES={present_visibility()!r}, and nvidia-smi shows {len(visible)} such "
            f"GPUs on that node{f' ({survey.reason})' if survey.reason else ''}; a block needs exactly one.",
            next_step="Look at the node with `fuseproof doctor`.",
        )
    return visible[0]


def sampler_beside_other_tasks() -> ProcessSampler:
    """A sampler to which the campaign's other tasks on this node are no strangers."""
    use = OwnUse(roots=task_processes, candidates=ray_workers)
    return ProcessSampler(use.seconds, use.pids)


def ray_workers() -> tuple[int, ...]:
    """Every worker process of this node: the children of the process that started this one."""
    try:
        parent = psutil.Process(os.getppid())
        return tuple({os.getpid(), *(child.pid for child in parent.children())})
    except psutil.Error:
        return (os.getpid(),)


def task_processes(is_task: Any = None) -> tuple[int, ...]:
    """The workers that run a block now, by the title that Ray gives them."""
    told = is_task or partial(_has_title, f"ray::{TASK_NAME}")
    return tuple(pid for pid in ray_workers() if pid == os.getpid() or told(pid))


def _has_title(title: str, pid: int) -> bool:
    try:
        return " ".join(psutil.Process(pid).cmdline()).startswith(title)
    except psutil.Error:
        return False
