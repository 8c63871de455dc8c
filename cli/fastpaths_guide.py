"""What the fast paths' own docstrings say, read from their source files: no torch, no triton, no import of any.

A contract is a module docstring of labelled paragraphs (``Formula:``, ``Rounds:`` ...). A kernel's contract bears the
name of its file; one that describes sites without a kernel names them in ``Site:``.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fuseproof
from fuseproof.errors import UsageError

LABELS = (
    "Site", "Formula", "Shapes", "Rounds", "Replaces", "Exact", "Close", "Declines", "Bytes", "Check first", "Source",
)  # fmt: skip
REQUIRED = ("Formula", "Shapes", "Rounds", "Replaces", "Declines", "Bytes", "Check first", "Source")
_LABEL = re.compile(rf"^({'|'.join(LABELS)}):\s*(.*)$")
_QUALITY = re.compile(r"quality ``(extra-high|high)``")
NAMES_SHOWN = 4
ROOM = Path(fuseproof.__file__).parent / "fastpaths"
FAMILY_CONSTANTS = (
    "CLASS_NAME",
    "COMPONENT",
    "KERNELS_OF_SITE",
    "APPROXIMATE_SITES",
    "LOOP_OPERATIONS",
    "HELPER_KERNELS",
    "SAME_CODERS",
)


@dataclass(frozen=True)
class Contract:
    """One docstring: what comes before its labels, and the text of each label, in order."""

    name: str
    file: str
    introduction: str
    paragraphs: Mapping[str, str]
    parameters: tuple[str, ...] = ()
    """Of a kernel's ``reference``, and so of ``fused``: what a call passes by position."""
    buffers: tuple[str, ...] = ()
    """What ``fused`` takes besides, by keyword: memory that it may write its results into."""

    @property
    def title(self) -> str:
        """The docstring's first line."""
        return self.introduction.splitlines()[0] if self.introduction else self.name

    @property
    def folder(self) -> str:
        """The name of the folder that the file lies in."""
        return Path(self.file).parent.name

    @property
    def is_kernel(self) -> bool:
        """Whether it is a Triton kernel's: neither a rewrite of modules nor a product of the library's."""
        return self.folder == "kernels"

    @property
    def has_bits_of_its_own(self) -> bool:
        """Whether it is a kernel that must have its reference's bits; one that is close has none to be held to."""
        return self.is_kernel and "Close" not in self.paragraphs

    @property
    def quality(self) -> str:
        """What a request must permit for it to run."""
        found = _QUALITY.search(self.paragraphs.get("Close", "") + self.paragraphs.get("Exact", ""))
        return found[1] if found else "lossless"


@dataclass(frozen=True)
class FamilySites:
    """What a family's own file says in plain constants: the class it knows, and the kernels of its sites."""

    class_name: str
    component: str
    kernels: Mapping[str, tuple[str, ...]]
    approximate: Mapping[str, str]
    folder: str
    helpers: Mapping[str, tuple[str, ...]]
    same_coders: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """Every class that it knows."""
        return (self.class_name, *self.same_coders)


@dataclass(frozen=True)
class Guide:
    """Every contract by name, the names of sites with the contracts that explain them, and the families."""

    contracts: Mapping[str, Contract]
    sites: Mapping[str, tuple[str, ...]]
    families: tuple[FamilySites, ...]

    def explaining(self, name: str) -> tuple[Contract, ...]:
        """The contracts of a site or kernel; :class:`UsageError` names the nearest that exist."""
        if name in self.sites:
            return tuple(self.contracts[one] for one in dict.fromkeys((*self.sites[name], *self.kernels_of(name))))
        if name in self.contracts:
            return (self.contracts[name],)
        names = sorted({*self.sites, *self.contracts})
        likest = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
        close = list(dict.fromkeys([*likest, *(one for one in names if name and name in one)]))[:NAMES_SHOWN]
        raise UsageError(
            f"there is no fast path {name!r}; close to it {'is' if len(close) == 1 else 'are'} {', '.join(close)}.",
            next_step=f"fuseproof fastpaths explain {close[0]} (`fuseproof fastpaths list` shows all sites)",
        )

    def kernels_of(self, site: str) -> tuple[str, ...]:
        """The Triton kernels (``fastpaths/kernels/<name>.py``) that ``site`` runs."""
        names = dict.fromkeys(
            (*self.sites.get(site, ()), *(name for f in self.families for name in f.helpers.get(site, ())))
        )
        return tuple(name for name in names if name in self.contracts and self.contracts[name].is_kernel)

    def names_with_kernels(self) -> tuple[str, ...]:
        """What ``verify --site`` and ``bench --site`` take: kernels, and sites that run any."""
        kernels = [name for name, contract in self.contracts.items() if contract.has_bits_of_its_own]
        sites = [site for site in self.sites if not set(kernels).isdisjoint(self.kernels_of(site))]
        return tuple(dict.fromkeys([*sites, *kernels]))

    def checked_by(self, site: str) -> str:
        """The command that checks a site which has no kernel of its own."""
        site = site if site in self.sites else self.site_of(site)
        quality = self.quality_of(site)
        if quality == "lossless":
            return f"fuseproof generate --fastpaths {site} --verify-every-step --prompt …"
        return f"fuseproof generate --fastpaths {site} --quality {quality} --prompt …"

    def site_of(self, contract: str) -> str:
        """The site that runs a kernel; the contract's own name where it is no family's kernel."""
        of_helpers = {
            name: site for family in self.families for site, names in family.helpers.items() for name in names
        }
        found = (site for site, names in self.sites.items() if contract in names)
        return next(found, of_helpers.get(contract, contract))

    def quality_of(self, site: str) -> str:
        """What a request must permit for the site to run."""
        if site not in self.sites:
            return self.contracts[site].quality
        said = [family.approximate[site] for family in self.families if site in family.approximate]
        return said[0] if said else self.contracts[self.sites[site][0]].quality

    def classes_of(self, site: str) -> tuple[str, ...]:
        """The model classes with this site."""
        return tuple(
            name
            for family in self.families
            if site in family.kernels or site in family.approximate or self._is_described_beside(site, family)
            for name in family.classes
        )

    def _is_described_beside(self, site: str, family: FamilySites) -> bool:
        """Whether a site without a kernel is explained in the folder of the family's own file."""
        contracts = [self.contracts[name] for name in self.sites.get(site, ())]
        return any("Site" in contract.paragraphs and contract.folder == family.folder for contract in contracts)


def read_guide(room: Path = ROOM) -> Guide:
    """Read every contract and every family of the room ``fastpaths``."""
    contracts: dict[str, Contract] = {}
    sites: dict[str, tuple[str, ...]] = {}
    families = []
    for path in sorted(room.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        file = f"fastpaths/{path.relative_to(room).as_posix()}"
        contract = _contract(path.stem, file, tree)
        if contract is not None:
            contracts[contract.name] = contract
            for site in _names(contract.paragraphs.get("Site", "")):
                sites[site] = (contract.name,)
        family = _family(tree, Path(file).parent.name)
        if family is not None:
            families.append(family)
    of_kernels: dict[str, tuple[str, ...]] = {}
    for family in families:
        for site, kernels in {**family.kernels, **{name: (name,) for name in family.approximate}}.items():
            known = tuple(kernel for kernel in kernels if kernel in contracts)
            if known:  # families may share a site's name, and bring kernels of their own to it
                of_kernels[site] = tuple(dict.fromkeys((*of_kernels.get(site, ()), *known)))
    sites |= of_kernels
    return Guide(contracts, sites, tuple(families))


def plain_text(paragraph: str) -> str:
    """Without the docstring's double backquotes, roles, and asterisks around a stressed word."""
    text = re.sub(r":\w+:`([^`]*)`", r"\1", paragraph).replace("``", "")
    return re.sub(r"(?<![\w*])\*(\w+)\*(?![\w*])", r"\1", text)


def markdown(paragraph: str) -> str:
    """Docstring markup as Markdown: single backquotes for code."""
    return re.sub(r":\w+:`([^`]*)`", r"`\1`", paragraph).replace("``", "`")


def _contract(stem: str, file: str, tree: ast.Module) -> Contract | None:
    docstring = ast.get_docstring(tree) or ""
    introduction: list[str] = []
    paragraphs: dict[str, list[str]] = {}
    current = introduction
    for line in docstring.splitlines():
        label = _LABEL.match(line)
        if label is not None:
            current = paragraphs.setdefault(label[1], [])
            current.append(label[2])
        else:
            current.append(line)
    if "Formula" not in paragraphs:
        return None
    joined = {label: _joined(lines) for label, lines in paragraphs.items()}
    name = stem if "Site" not in joined or len(_names(joined["Site"])) > 1 else joined["Site"]
    given, taken = (_parameters(tree, function) for function in ("reference", "fused"))
    buffers = tuple(one for one in taken if one not in given) if given else ()
    return Contract(name, file, "\n".join(introduction).strip(), joined, given, buffers)


def _parameters(tree: ast.Module, function: str) -> tuple[str, ...]:
    """Name, type and default of each parameter of a function of the file; none where it has no such function."""
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
    if not found:
        return ()
    arguments = found[0].args
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + [*arguments.defaults]
    return tuple(
        ast.unparse(argument).replace("torch.", "") + (f" = {ast.unparse(default)}" if default is not None else "")
        for argument, default in zip(arguments.args, defaults, strict=True)
    )


def _joined(lines: list[str]) -> str:
    """Wrapped lines as one; a list keeps its items."""
    text = ""
    for line in (line.strip() for line in lines):
        separator = "\n" if line.startswith("- ") or (not line and text) else " "
        text += (separator if text and line else "") + line
    return text.strip()


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _family(tree: ast.Module, folder: str) -> FamilySites | None:
    constants = dict(_constants(tree))
    if "CLASS_NAME" not in constants:
        return None
    kernels = {site: tuple(names) for site, names in constants.get("KERNELS_OF_SITE", {}).items()}
    kernels |= {name: (name,) for name in constants.get("LOOP_OPERATIONS", ())}
    return FamilySites(
        constants["CLASS_NAME"],
        constants.get("COMPONENT", "transformer"),
        kernels,
        constants.get("APPROXIMATE_SITES", {}),
        folder,
        {site: tuple(names) for site, names in constants.get("HELPER_KERNELS", {}).items()},
        tuple(constants.get("SAME_CODERS", ())),
    )


def _constants(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """The family's constants that are written out as plain values."""
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if isinstance(node, ast.AnnAssign):
            target = node.target
        value = getattr(node, "value", None)
        if not isinstance(target, ast.Name) or target.id not in FAMILY_CONSTANTS or value is None:
            continue
        try:
            yield target.id, ast.literal_eval(value)
        except ValueError:
            continue
