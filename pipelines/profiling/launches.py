"""One launch and everything that is known of it: the unit of which every table is made."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from fuseproof.pipelines.profiling.events import TensorUse

PIPELINE, TRANSFORMER, VAE, TEXT_ENCODER = "pipeline", "transformer", "vae", "text_encoder"


@dataclass(frozen=True)
class Launch:
    """A kernel on the device, or on a CPU an operation and its self time.

    ``launched`` is when the host issued it, ``start`` when it ran; nanoseconds. ``call`` tells operations apart: those
    launches that share it belong to one. ``module`` None means that no module's call stands round it.
    """

    kernel: str
    class_: str
    launched: int
    start: int
    nanoseconds: int
    stream: int = 0
    component: str = PIPELINE
    module: str | None = None
    module_class: str | None = None
    site: str | None = None
    site_state: str | None = None
    site_call: int | None = None
    line: str | None = None
    operation: str = ""
    key: str | None = None
    bytes: int | None = None
    inputs: tuple[TensorUse, ...] = ()
    outputs: tuple[TensorUse, ...] = ()
    call: Hashable = None
    graph: int | None = None
    """Which call of the graph runner replayed it: when that began. None for a launch of its own."""
    mark: str | None = None
    """The name of the innermost mark of a graphed function round it, told apart by when that began."""
    is_attributed: bool = True

    @property
    def from_graph(self) -> bool:
        """Whether a graph's replay launched it."""
        return self.graph is not None


@dataclass(frozen=True)
class Names:
    """Which module has which name, and what else tells where a call belongs.

    ``modules`` maps an ``id`` to component and path; ``files`` maps a source file's name to the component whose own
    code it holds, for methods that are called without the module's ``__call__``. ``blocks`` are the paths of the
    denoiser's repeated blocks in the order in which they run; ``denoiser`` is its ``id``.
    """

    modules: dict[int, tuple[str, str]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    blocks: tuple[tuple[str, str], ...] = ()
    """Path and class of each."""
    denoiser: int | None = None
    block_sites: frozenset[str] = frozenset()
    """Sites whose gate runs once for every block."""
    site_components: dict[str, str] = field(default_factory=dict)
    weights: dict[int, tuple[str, str, str]] = field(default_factory=dict)
    """Component, path and class of the one module whose parameter's storage begins at an address."""
