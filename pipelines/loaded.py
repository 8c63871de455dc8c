"""One loaded pipeline for sessions that follow each other in one process: each mounts its own fast paths and takes them
off again, and none of them loads.

What loading decides (weights, device, dtype, attention backend) is the same for all of them; what a session's settings
say of it is not looked at again. Compiled code cannot be taken off a transformer, so it is refused.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from typing import Any

import torch

from fuseproof.errors import UsageError
from fuseproof.pipelines import dummy_geometry, memory
from fuseproof.pipelines.checkpoints import Checkpoint
from fuseproof.pipelines.devices import choose_device, choose_dtype, set_attention_backend
from fuseproof.pipelines.dummy import load_dummy_pipeline
from fuseproof.pipelines.family import Family
from fuseproof.pipelines.graphs import refuse_graphs_without_cuda
from fuseproof.pipelines.host_allocator import keep_freed_memory
from fuseproof.pipelines.loading import load_pipeline
from fuseproof.pipelines.progress import SILENT, ProgressObserver
from fuseproof.pipelines.session import Session, SessionSettings


@dataclass(frozen=True)
class LoadedPipeline:
    """A pipeline on its device, as it was loaded. ``warnings`` are what every session must say of its weights."""

    pipe: Any
    device: torch.device
    dtype: torch.dtype
    load_ms: float
    host_allocator: dict[str, int] | None
    warnings: tuple[str, ...] = ()

    @classmethod
    def load(cls, family: Family, checkpoint: Checkpoint | None, settings: SessionSettings) -> LoadedPipeline:
        """Load ``checkpoint``, or make ``family``'s dummy weights where it is None; raises :class:`FuseproofError`."""
        started = time.perf_counter()
        device = choose_device(settings.device)
        dtype = choose_dtype(settings.dtype, device)
        host_allocator = keep_freed_memory() if device.type == "cpu" else None
        if checkpoint is None:
            pipe = load_dummy_pipeline(family, dtype=dtype, device=device)
        else:
            pipe = load_pipeline(
                checkpoint,
                dtype=dtype,
                device=device,
                with_text_processor=settings.enable_prompt_rewrite,
                with_prompt_enhancer=settings.use_pe,
            )
        set_attention_backend(pipe.transformer, settings.attention_backend)
        load_ms = (time.perf_counter() - started) * 1e3
        warnings = () if checkpoint is not None else (dummy_geometry.WARNING,)
        return cls(pipe, device, dtype, load_ms, host_allocator, warnings)

    def session(self, settings: SessionSettings, observer: ProgressObserver = SILENT) -> Session:
        """A fresh session on this pipeline: its own mount, gates, graphs and counters. Close it before the next one.

        Raises :class:`UsageError` for ``torch.compile``, for graphs without CUDA, and while another one is open.
        """
        if settings.enable_torch_compile:
            raise UsageError(
                "--enable-torch-compile changes a transformer for good, so sessions that share one cannot have it.",
                next_step="Compare compiled arms in fresh processes.",
            )
        if settings.enable_breakable_cuda_graph:
            refuse_graphs_without_cuda(self.device)
        session = Session(self.pipe, settings, self.device, self.dtype, observer)
        session.host_allocator, session.load_ms = self.host_allocator, self.load_ms
        session.warnings += self.warnings
        return session

    def settle(self, *, gives_back: bool) -> None:
        """Collect garbage now and not in the middle of a request; wait for the device.

        With ``gives_back`` (between sessions) the allocator returns what nobody uses, so that no session starts from
        the blocks that another one needed.
        """
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        if gives_back:
            memory.give_back_unused(self.device)
