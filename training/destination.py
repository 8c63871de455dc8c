"""Where packaged checkpoints go: what may be replaced by them, and replacing it as a whole, with its list of hashes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fuseproof.errors import FuseproofError
from fuseproof.pipelines.packaged_models import INDEX, index_packaged
from training.options import is_checkpoint

DESTINATION = Path(__file__).resolve().parents[1] / "pipelines" / "embedded_models"


def refuse_destination(models: Path, names: tuple[str, ...], destination: Path, *, drop_others: bool = False) -> None:
    """A FuseproofError where ``destination`` may not be replaced by the checkpoints ``names`` of ``models``."""
    reason, step = None, "Give --destination another folder, or move what lies there away."
    resolved, source = destination.resolve(), models.resolve()
    others = _other_checkpoints(destination, names)
    if destination.is_symlink():
        reason = f"{destination} is a link; a folder, or nothing, may be there"
    elif destination.exists() and not destination.is_dir():
        reason = f"{destination} is no folder; a folder, or nothing, may be there"
    elif resolved == source or resolved in source.parents or source in resolved.parents:
        reason = f"{destination} and the checkpoints in {models} lie in each other"
    elif resolved.parent == DESTINATION.parent and resolved != DESTINATION:
        reason = f"the list of hashes in {DESTINATION.parent} is that of {DESTINATION.name}, not of {destination.name}"
    elif others is None:
        reason = f"{destination} holds something other than packaged checkpoints, and would be replaced"
    elif others and not drop_others:
        reason = f"{destination} is replaced as a whole, and holds {', '.join(others)}, which is not among --names"
        step = "Give --names all that are to be there, or add --drop-others."
    elif beside := _left_beside(destination):
        reason = f"{beside[0]} is in the way: a packaging that was killed left it, or it is something else"
        step = f"Look into it, and at {destination}; then move it away."
    if reason is not None:
        raise FuseproofError(f"Not packaged: {reason}.", next_step=step)


def _other_checkpoints(destination: Path, names: tuple[str, ...]) -> list[str] | None:
    """The checkpoints in ``destination`` that are not among ``names``; None where something else lies there."""
    if not destination.is_dir():
        return []
    found = sorted(destination.iterdir())
    if not all(path.is_dir() and not path.is_symlink() and is_checkpoint(path) for path in found):
        return None
    return [path.name for path in found if path.name not in names]


@contextmanager
def replaced(destination: Path) -> Iterator[Path]:
    """A folder to fill that takes the place of ``destination``, list of hashes and all; both stay where that fails."""
    new, old = _beside(destination, ".new"), _beside(destination, ".old")
    index = destination.with_name(INDEX)
    old_index = index.with_name(f"{INDEX}.old")
    was_there, was_listed = destination.exists(), index.exists()
    try:
        new.mkdir()
        yield new
        if was_listed:
            shutil.copyfile(index, old_index)
        if was_there:
            destination.rename(old)
        new.rename(destination)
        index_packaged(destination)
    except BaseException:
        has_moved = old.exists() or (not was_there and destination.exists())
        shutil.rmtree(new, ignore_errors=True)
        if has_moved:
            shutil.rmtree(destination, ignore_errors=True)
            if was_listed:
                old_index.replace(index)
            else:
                index.unlink(missing_ok=True)
        if old.exists():
            old.rename(destination)
        old_index.unlink(missing_ok=True)
        raise
    old_index.unlink(missing_ok=True)
    shutil.rmtree(old, ignore_errors=True)


def _beside(destination: Path, ending: str) -> Path:
    return destination.with_name(destination.name + ending)


def _left_beside(destination: Path) -> list[Path]:
    """What has one of the names that :func:`replaced` needs."""
    names = (_beside(destination, ".new"), _beside(destination, ".old"), destination.with_name(f"{INDEX}.old"))
    return [path for path in names if path.exists()]
