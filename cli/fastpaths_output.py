"""Whether a file that a ``fastpaths`` command writes may stand where the user wants it: asked before any work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fuseproof.cli.output_names import check_distinct, check_file
from fuseproof.errors import UsageError


def check_output(
    path: Path, inputs: Mapping[str, Sequence[Path | None]], is_ours: Callable[[Path], bool], kind: str
) -> None:
    """Refuse a ``path`` that is one of the command's ``inputs`` (by flag), or an existing file that is no ``kind``.

    ``is_ours`` says whether a regular file is one that the same command wrote, which may be replaced.
    """
    check_file(path, "--output")
    check_distinct(path, "--output", inputs)
    if path.exists() and path.stat().st_size and not is_ours(path):
        raise UsageError(
            f"--output {path} exists and is no {kind}, so it is not replaced.",
            next_step="Choose another file name, or remove that file.",
        )
