"""Where an arm runs: the tree of its commit, its interpreter, its cache folders; and the environment that follows.

Pure: nothing here looks at the disk except for the interpreter's path.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fuseproof.schedules.plan import Arm

TREE = "{tree}"
PYTHON = "{python}"
CACHE_VARIABLE = "FUSEPROOF_CACHE_DIR"
CACHE_FOLDERS = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    CACHE_VARIABLE: "fuseproof",
    "XDG_CACHE_HOME": "xdg",
}
"""Variable → the name of the arm's own folder for it."""


@dataclass(frozen=True)
class ArmPlace:
    """One arm's place. ``tree`` and ``commit`` are None without a ref, ``python`` None for this Python."""

    tree: Path | None = None
    commit: str | None = None
    python: str | None = None
    caches: Mapping[str, str] = field(default_factory=dict)

    def filled(self, text: str, python: str) -> str:
        """``{tree}`` and ``{python}`` in a text of the plan, replaced."""
        text = text if self.tree is None else text.replace(TREE, str(self.tree))
        return text.replace(PYTHON, self.python or python)


def place_environment(arm: Arm, place: ArmPlace, python: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables set for an arm alone: its caches, its own ``env``, its interpreter's folder first on ``PATH``.

    A flags arm of a ref has its tree first on ``PYTHONPATH``, before what it had there.
    """
    own = {name: place.filled(value, python) for name, value in arm.env.items()}
    found = {**place.caches, **own}
    if place.python is not None:
        found["PATH"] = _before(str(Path(place.python).parent), own.get("PATH") or inherited.get("PATH"))
    if place.tree is not None and arm.command is None:
        found["PYTHONPATH"] = _before(str(place.tree), own.get("PYTHONPATH") or inherited.get("PYTHONPATH"))
    return found


def interpreter(arm: Arm, tree: Path | None, working_directory: Path) -> str | None:
    """The full path of an arm's ``python``; a relative one lies in its tree, or in the folder where slots run."""
    if arm.python is None:
        return None
    text = str(Path(arm.python if tree is None else arm.python.replace(TREE, str(tree))).expanduser())
    if os.sep not in text:
        return shutil.which(text) or text
    return str((tree or working_directory) / text)


def _before(folder: str, rest: str | None) -> str:
    return f"{folder}{os.pathsep}{rest}" if rest else folder
