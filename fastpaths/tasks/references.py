"""A kernel's ``reference`` as a file of its own: the function and everything that it uses, from whichever kernel files.

Beside it stands ``settle``, which makes the values of a made-up call what a model would compute, where it matters.

What remains needs torch alone. Names of other files get the file's name in front, so that none stands for two things.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from fuseproof.errors import FuseproofError

ROOM = Path(__file__).parent.parent / "kernels"
PACKAGE = "fuseproof.fastpaths.kernels"
FUNCTION, SETTLE = "reference", "settle"
NOTHING_TO_SETTLE = """def settle(arguments):
    \"\"\"Any values are a model's.\"\"\"
"""
Item = tuple[str, str]
"""A kernel file's stem and a name at its top level."""


def reference_source(kernel: str) -> str:
    """The whole file; a :class:`FuseproofError` where the reference uses what cannot be taken along."""
    collected = _Collected(kernel)
    collected.take((kernel, FUNCTION))
    if any(SETTLE in _defined(node) for node in _file(kernel).body):
        collected.take((kernel, SETTLE))
    else:
        collected.texts.append(NOTHING_TO_SETTLE.rstrip())
    head = [
        f'"""The definition of correct for {kernel}: plain torch, taken from fuseproof\'s kernel file of that name."""',
        "",
        "from __future__ import annotations",
        "",
        *sorted(collected.imports),
    ]
    return "\n".join(head) + "\n\n\n" + "\n\n\n".join(collected.texts) + "\n"


def _file(stem: str) -> ast.Module:
    return ast.parse((ROOM / f"{stem}.py").read_text(encoding="utf-8"))


class _Collected:
    """Definitions in an order in which each comes after those that it uses, and the imports of all."""

    def __init__(self, kernel: str) -> None:
        self.imports: set[str] = set()
        self.texts: list[str] = []
        self._kernel = kernel
        self._taken: set[Item] = set()
        self._files: dict[str, ast.Module] = {}

    def name_of(self, item: Item) -> str:
        stem, name = item
        return name if stem == self._kernel else f"{stem}_{name.lstrip('_')}"

    def take(self, item: Item) -> None:
        """Add a definition, those that it uses first."""
        if item in self._taken:
            return
        self._taken.add(item)
        stem, name = item
        tree = self._files.setdefault(stem, _file(stem))
        found = next((node for node in tree.body if name in _defined(node)), None)
        if found is None or (isinstance(found, ast.FunctionDef) and found.decorator_list):
            raise FuseproofError(f"the reference of {self._kernel} uses {stem}.{name}, which is no plain torch.")
        rewritten = _Renaming(self, stem, tree, name).visit(found)
        self.texts.append(ast.unparse(ast.fix_missing_locations(rewritten)))


class _Renaming(ast.NodeTransformer):
    """Takes what a definition uses, and calls it by the name that it has in the file of its own."""

    def __init__(self, collected: _Collected, stem: str, tree: ast.Module, own_name: str) -> None:
        self._collected = collected
        self._stem = stem
        self._own_name = own_name
        self._local = {name for node in tree.body for name in _defined(node)}
        self._modules: dict[str, str] = {}
        self._members: dict[str, Item] = {}
        self._libraries: dict[str, str] = {}
        for node in tree.body:
            self._note(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        if node.name == self._own_name:
            node.name = self._collected.name_of((self._stem, node.name))
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id in self._modules:
            return self._used((self._modules[node.value.id], node.attr), node.ctx)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self._members:
            return self._used(self._members[node.id], node.ctx)
        if node.id in self._local:
            return self._used((self._stem, node.id), node.ctx)
        if node.id in self._libraries:
            self._collected.imports.add(self._libraries[node.id])
        return node

    def _used(self, item: Item, context: ast.expr_context) -> ast.Name:
        self._collected.take(item)
        return ast.Name(self._collected.name_of(item), context)

    def _note(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                renamed = f" as {alias.asname}" if alias.asname else ""
                self._libraries[alias.asname or alias.name.split(".")[0]] = f"import {alias.name}{renamed}"
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                name = alias.asname or alias.name
                if node.module == PACKAGE:
                    self._modules[name] = alias.name
                elif node.module.startswith(f"{PACKAGE}."):
                    self._members[name] = (node.module.removeprefix(f"{PACKAGE}."), alias.name)
                else:
                    renamed = f" as {alias.asname}" if alias.asname else ""
                    self._libraries[name] = f"from {node.module} import {alias.name}{renamed}"


def _defined(node: ast.stmt) -> Iterator[str]:
    """The names that a statement at a file's top level defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    for target in targets:
        for part in target.elts if isinstance(target, ast.Tuple) else [target]:
            if isinstance(part, ast.Name):
                yield part.id
