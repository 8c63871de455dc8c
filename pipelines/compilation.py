"""``torch.compile`` of a transformer's repeated blocks, and a watch for compilations where none may happen."""

from __future__ import annotations

from typing import Any

import torch


def compile_blocks(transformer: Any) -> None:
    """Compile each repeated block (diffusers' regional compilation); the work happens on the first call."""
    transformer.compile_repeated_blocks()


class CompileWatch:
    """Counts graphs that Dynamo has compiled in this process."""

    def compilations(self) -> int:
        """Graphs compiled so far."""
        counters = torch._dynamo.utils.counters
        return int(counters["stats"]["unique_graphs"])
