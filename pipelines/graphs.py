"""CUDA graphs of a session's transformer: what is captured, when, and what a perf dump says of it.

The mount says what a graph may capture: the part of the forward that no held result is read in. Where it names nothing,
that is the transformer's own forward, or, of one that remembers a clip, its pass over a chunk. Warm-ups capture, timed
requests only replay.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import Any

import torch
from diffusers.models.attention_dispatch import _AttentionBackendRegistry

from fuseproof.errors import UsageError
from fuseproof.fastpaths import Mount
from fuseproof.fastpaths.graph_counters import STATUSES
from fuseproof.fastpaths.graph_device import CaptureDevice
from fuseproof.fastpaths.graph_segments import CallTally
from fuseproof.fastpaths.graph_state import ModuleState
from fuseproof.fastpaths.graphs import GraphRunner
from fuseproof.fastpaths.installation import GraphTarget
from fuseproof.fastpaths.replacements import Replacement
from fuseproof.pipelines import longlive2_graphs

NOT_ASKED_FOR: dict[str, Any] = {**dict.fromkeys(STATUSES, 0), "reason": "not asked for", "pool_bytes": 0}


def refuse_graphs_without_cuda(device: torch.device) -> None:
    """Asked before any weight is read."""
    if device.type != "cuda":
        raise UsageError(
            f"--enable-breakable-cuda-graph needs a CUDA device, and this session runs on {device}.",
            next_step="Drop it to run without CUDA graphs.",
        )


class TransformerGraphs:
    """Graphs in place of one transformer's calls, until ``close``. ``mounted`` must stay mounted until then."""

    def __init__(self, transformer: Any, mounted: Mount, device: CaptureDevice) -> None:
        self._mounted = mounted
        self._device = device
        target = mounted.graph_target()
        if target is not None:
            self._runner, self._take_off = self._around(target)
        elif hasattr(transformer, longlive2_graphs.METHOD):
            self._runner, self._take_off = self._around_pass(transformer)
        else:
            self._runner, self._take_off = self._around_forward(transformer)

    def capturing(self) -> AbstractContextManager[None]:
        """Within this context (a warm-up), new calls are captured."""
        return self._runner.capturing()

    def bypassed(self, call: Callable[..., Any]) -> AbstractContextManager[None]:
        """Within this context nothing is replayed: ``call`` gets the function and its arguments."""
        return self._runner.bypassed(call)

    def restart_counting(self) -> None:
        """Count calls from here on; what was captured and rejected stays."""
        self._runner.restart_counting()

    def report(self) -> dict[str, Any]:
        """The ``graphs`` of a perf dump."""
        return self._runner.report()

    def close(self) -> None:
        """Take the graphs off and free them. Doing it twice is harmless."""
        self._take_off()
        self._runner.drop_graphs()

    def _around(self, target: GraphTarget) -> tuple[GraphRunner, Callable[[], None]]:
        """The mount's own choice; it checks by itself, at every call, that the weights are where they were."""
        function = getattr(target.owner, target.attribute)
        name = f"{type(target.owner).__name__}.{target.attribute}"
        runner = self._make_runner(function, name, lambda: (target.state(), _attention_backend()), None)
        setattr(target.owner, target.attribute, runner)
        return runner, lambda: setattr(target.owner, target.attribute, function)

    def _around_forward(self, transformer: Any) -> tuple[GraphRunner, Callable[[], None]]:
        weights = ModuleState(transformer)
        name = f"{type(transformer).__name__}.forward"

        def explain(before: Any, after: Any) -> str:
            if before[0] == after[0]:
                return f"the attention backend became {after[1]}"
            return weights.explain(before[0], after[0])

        made: list[GraphRunner] = []

        def make(eager: Callable[..., Any]) -> GraphRunner:
            made.append(self._make_runner(eager, name, lambda: (weights(), _attention_backend()), explain))
            return made[0]

        replacement = Replacement(transformer, make)
        return made[0], replacement.take_off

    def _around_pass(self, transformer: Any) -> tuple[GraphRunner, Callable[[], None]]:
        """The part of a forward over one chunk that needs nothing from the host."""
        weights, chunk_pass = ModuleState(transformer), longlive2_graphs.ChunkPass(transformer)

        def explain(before: Any, after: Any) -> str:
            if before[:2] == after[:2]:
                return "the clip's keys and values lie in other memory"
            if before[0] == after[0]:
                return f"the attention backend became {after[1]}"
            return weights.explain(before[0], after[0])

        name = f"{type(transformer).__name__}.{longlive2_graphs.METHOD}"

        def state() -> Hashable:
            return weights(), _attention_backend(), chunk_pass.memory()

        runner = self._make_runner(chunk_pass.core, name, state, explain)
        chunk_pass.core = runner
        return runner, chunk_pass.take_off

    def _make_runner(
        self,
        function: Callable[..., Any],
        name: str,
        state: Callable[[], Hashable],
        explain: Callable[[Any, Any], str] | None,
    ) -> GraphRunner:
        mounted = self._mounted
        return GraphRunner(
            function,
            name=name,
            device=self._device,
            quality=mounted.quality,
            epoch=lambda: mounted.epoch,
            state=state,
            explain_state=explain,
            tally=CallTally(mounted.fused_calls, mounted.add_fused_calls),
        )


def _attention_backend() -> str:
    """What diffusers' attention falls back to where a processor names no backend of its own."""
    return str(_AttentionBackendRegistry.get_active_backend()[0].value)
