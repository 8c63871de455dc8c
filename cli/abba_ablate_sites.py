"""Which fast paths a plan's cells can run, and which need another one: asked of source files, no torch is loaded."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fuseproof.cli.abba_arms import parsed_flags, refusal
from fuseproof.cli.fastpath_sites import sites_of
from fuseproof.cli.fastpaths_guide import ROOM, Guide, read_guide
from fuseproof.errors import FuseproofError, UsageError

if TYPE_CHECKING:
    from fuseproof.cli.generate_options import GenerateOptions
    from fuseproof.pipelines.family import Family
    from fuseproof.schedules.plan import Arm, Cell

QUALITIES = ("lossless", "extra-high", "high")
"""Each permits what those before it permit."""
REQUIRES = "REQUIRES"


@dataclass(frozen=True)
class Ablatable:
    """The fast paths of a model that a quality permits, in order of name, and the one that each cannot work without."""

    sites: tuple[str, ...]
    needed: Mapping[str, str]


def sites_of_cells(cells: tuple[Cell, ...], arm: Arm) -> Ablatable:
    """The fast paths that every cell permits; ``arm`` has the flags that are not the cells'.

    Raises :class:`UsageError` where cells differ in them, or where nobody can tell before a model is fetched.
    """
    found = {cell.name: _sites(cell, arm) for cell in cells}
    first, *others = found
    for name in others:
        if found[name] != found[first]:
            odd = sorted(set(found[name].sites) ^ set(found[first].sites))
            raise UsageError(
                f"--ablate takes one list of fast paths apart, and the cells {first} and {name} have other ones "
                f"({', '.join(odd)}).",
                next_step=f"Ablate them one by one: --cells {first}.",
            )
    if len(found[first].sites) < 2:
        raise UsageError(
            f"--ablate takes two fast paths or more apart, and {first} has {', '.join(found[first].sites) or 'none'}.",
            next_step="`fuseproof fastpaths list` shows the fast paths of every model.",
        )
    return found[first]


def needs_a_card(site: str) -> bool:
    """Whether the fast path declines without a CUDA device: it runs Triton kernels, or is another form than eager's."""
    guide = _guide()
    return bool(guide.kernels_of(site)) or guide.quality_of(site) != QUALITIES[0]


def needed_sites(family: Family, room: Path = ROOM) -> dict[str, str]:
    """Each site of the family that needs another one, and that one: what ``REQUIRES`` of its components says."""
    classes = {name for component in family.components.values() for name in component.classes}
    found: dict[str, str] = {}
    for known in _guide().families:
        if classes.isdisjoint(known.classes):
            continue
        path = room / "sites" / known.folder / "__init__.py"
        found.update(required_sites(ast.parse(path.read_text(encoding="utf-8")), path))
    return found


@functools.cache
def _guide() -> Guide:
    """Read once: it parses every file of the room."""
    return read_guide()


def _sites(cell: Cell, arm: Arm) -> Ablatable:
    from fuseproof.harness.campaign.arms import generate_words

    options = parsed_flags(generate_words(arm, cell, Path("perf.json"), Path("outputs")))
    if isinstance(options, FuseproofError):
        raise refusal(f"Cell {cell.name}", options)
    if options.fastpaths_from is not None:
        raise UsageError(
            f"Cell {cell.name}: --ablate knows the fast paths of fuseproof, and --fastpaths-from adds others.",
            next_step="Leave it out, or compare it by itself: --baseline and --candidate.",
        )
    guide = _guide()
    permitted = QUALITIES[: 1 + QUALITIES.index({"exact": "lossless"}.get(options.quality, options.quality))]
    family = _family(cell, options)
    sites = tuple(site for site in sites_of(family) if guide.quality_of(site) in permitted)
    return Ablatable(sites, needed_sites(family))


def _family(cell: Cell, options: GenerateOptions) -> Family:
    from fuseproof.cli.request_checks import model_at_hand

    try:
        family, _ = model_at_hand(options, {})
    except FuseproofError as error:
        raise refusal(f"Cell {cell.name}", error) from error
    if family is None:
        raise UsageError(
            f"Cell {cell.name}: nobody knows which fast paths {options.model_path} has before it is fetched.",
            next_step="Say which published model it is with --model-id, or name a folder that is here.",
        )
    return family


def required_sites(tree: ast.Module, path: Path) -> Iterator[tuple[str, str]]:
    """``dict.fromkeys((*A, *B), "needed")``, or ``{site: "needed" for site in SITES if site != "needed"}``."""
    constants = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    value = constants.get(REQUIRES)
    if value is None:
        return
    if isinstance(value, ast.Call) and len(value.args) == 2:
        keys, needed = value.args
    elif isinstance(value, ast.DictComp):
        keys, needed = value.generators[0].iter, value.value
    else:
        raise AssertionError(f"{path}: {REQUIRES} is written in a way that is not read here")
    for site in _names(needed, constants):
        yield from ((name, site) for name in _names(keys, constants) if name != site)


def _names(node: ast.expr, constants: Mapping[str, ast.expr]) -> Iterator[str]:
    """The texts of a tuple, or the keys of a mapping, with the constants of the file in place of their names."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Name) and node.id in constants:
        yield from _names(constants[node.id], constants)
    elif isinstance(node, ast.Starred):
        yield from _names(node.value, constants)
    elif isinstance(node, ast.Tuple):
        for entry in node.elts:
            yield from _names(entry, constants)
    elif isinstance(node, ast.Dict):
        for key in node.keys:
            if key is not None:
                yield from _names(key, constants)
    elif isinstance(node, ast.Call) and node.args:  # tuple(A)
        yield from _names(node.args[0], constants)
    else:
        raise AssertionError(f"line {node.lineno} holds no names that could be read")
