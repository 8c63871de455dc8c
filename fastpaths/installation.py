"""What a family's sites put into a model, so that the mount can take it out again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.replacements import Replacement


@dataclass(frozen=True)
class GraphTarget:
    """The callable that a CUDA graph may capture: ``getattr(owner, attribute)``.

    ``state`` names what a graph bakes in besides its inputs: the addresses of weights.
    """

    owner: Any
    attribute: str
    state: Callable[[], Hashable]


class Choose(Protocol):
    """Puts the approximate sites named in ``gates`` in force and takes all others out, as long as no other call does.

    For the calling thread, or for every thread that was told nothing. None: this thread is told nothing any more.
    """

    def __call__(self, gates: Mapping[str, Gate] | None, *, in_all_threads: bool) -> None: ...


class Held(Protocol):
    """Results that live as long as a request."""

    def clear(self) -> None: ...


@dataclass(frozen=True)
class Installation:
    """Forwards replaced, results held, and what to capture as a graph (None: the component's own forward).

    ``choose`` is there where the family has approximate sites, none of which is in force to begin with;
    ``announce_steps`` where it can work ahead of a loop that knows its steps. ``undo`` puts the model's weights back as
    they were, once the replacements are off.
    """

    replacements: list[Replacement] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    graph_target: GraphTarget | None = None
    choose: Choose | None = None
    announce_steps: Callable[[Sequence[torch.Tensor]], None] | None = None
    undo: Callable[[], None] | None = None

    def take_off(self) -> None:
        """Put every original back, then the weights; what fails on the way does not keep the rest from it."""
        with ExitStack() as stack:  # called last in, first out
            if self.undo is not None:
                stack.callback(self.undo)
            for replacement in self.replacements:
                stack.callback(replacement.take_off)


@contextmanager
def taken_off_if_it_fails(installation: Installation) -> Iterator[None]:
    """Within this, an exception leaves nothing installed; ``installation`` is filled as the work goes on."""
    try:
        yield
    except BaseException:
        installation.take_off()
        raise
