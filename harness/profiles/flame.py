"""The flame view: device time of a request's profiled stages by stage, component, block, module or site, and operation.

An icicle read from top to bottom; a frame is as wide as its share of the profiled stages' device time, profiled steps
taken for all steps of the request. Blocks that repeat are one frame (``transformer_blocks.*``) in the folded view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fuseproof.harness.number_format import count, number, percent, shortened
from fuseproof.harness.profiles.costs import OUTSIDE, folded, split_block
from fuseproof.harness.profiles.profile import Profile, Row
from fuseproof.harness.profiles.tables import class_title

LEVELS = ("stage", "component", "block", "module or site", "operation")
SMALLEST_SHARE = 2e-4
"""Of the whole: smaller frames of one parent are drawn as one."""
LONGEST_LABEL = 80
LONGEST_TITLE = 300


@dataclass
class Node:
    """A part of the request and what it consists of."""

    name: str
    device_us: float = 0.0
    kernels: float = 0.0
    kernel_class: str = ""
    detail: str = ""
    children: dict[str, Node] = field(default_factory=dict)

    def add(self, path: Sequence[tuple[str, str]], device_us: float, kernels: float, kernel_class: str) -> None:
        """Put one row below this node; ``path`` is (name, detail) by level, and the last one's class is known."""
        self.device_us += device_us
        self.kernels += kernels
        if not path:
            self.kernel_class = kernel_class
            return
        (name, detail), *rest = path
        child = self.children.setdefault(name, Node(name, detail=detail))
        child.add(rest, device_us, kernels, kernel_class)


@dataclass(frozen=True)
class Frame:
    """One drawn frame: where it begins and how wide it is (0..1), and how deep it lies, from 0."""

    start: float
    width: float
    level: int
    label: str
    title: str
    kernel_class: str
    """Of an operation; empty above."""


@dataclass(frozen=True)
class Flame:
    """A view that is ready to be drawn."""

    frames: tuple[Frame, ...]
    levels: int


def flame(profile: Profile, *, is_folded: bool) -> Flame:
    """The view, with repeated blocks as one or each by itself."""
    root = Node("request")
    for stage in profile.stages:
        scale = stage.passes_of_request / stage.steps
        for row in profile.rows_of(stage):
            path = [(stage.name, _passes(stage.steps, stage.steps_of_request)), *_path(row, is_folded)]
            root.add(path, row.device_us * scale, row.calls * scale, row.kernel_class)
    if not root.device_us:
        return Flame((), len(LEVELS))
    return Flame(tuple(_frames(root, 0.0, 0, root.device_us)), len(LEVELS))


def _passes(steps: int, of_request: int) -> str:
    return f"{steps} of {count(of_request, 'step')} profiled" if of_request > 1 else "one whole pass"


def _path(row: Row, is_folded: bool) -> Iterator[tuple[str, str]]:
    fold: Callable[[str], str] = folded if is_folded else lambda module: module or OUTSIDE
    block, rest = split_block(row.module)
    yield row.component, ""
    yield fold(block), ""
    module = fold(rest) if rest else "(itself)"
    detail = row.module_class or ""
    if row.site is not None:
        yield f"{row.site} · {module}", f"site {row.site}, {row.site_state or 'state not known'}; {detail}".strip("; ")
    else:
        yield module, detail
    yield row.operation, f"{class_title(row.kernel_class)}; {row.kernel}" + (f"; {row.line}" if row.line else "")


def _frames(node: Node, start: float, level: int, total_us: float) -> Iterator[Frame]:
    small = Node("")
    hidden = 0
    for child in sorted(node.children.values(), key=lambda child: (-child.device_us, child.name)):
        width = child.device_us / total_us
        if width < SMALLEST_SHARE:
            hidden += 1
            small.device_us += child.device_us
            small.kernels += child.kernels
            continue
        yield _frame(child, start, width, level, total_us)
        yield from _frames(child, start, level + 1, total_us)
        start += width
    if hidden and small.device_us / total_us >= SMALLEST_SHARE / 4:
        small.name = f"{hidden} smaller"
        yield _frame(small, start, small.device_us / total_us, level, total_us)


def _frame(node: Node, start: float, width: float, level: int, total_us: float) -> Frame:
    part = f"{percent(width)} of the profiled stages"
    told = f"{number(node.device_us / 1e3, 3)} ms, {part}, {number(node.kernels, 0)} launches"
    title = f"{node.name}: {told}" + (f"; {shortened(node.detail, LONGEST_TITLE)}" if node.detail else "")
    kind = node.kernel_class if not node.children else ""
    return Frame(start, width, level, shortened(node.name, LONGEST_LABEL), title, kind)
