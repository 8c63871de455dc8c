"""An output as a reader sees it, or the sentence that says why it cannot be shown: a broken file breaks no report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fuseproof.errors import FuseproofError
from fuseproof.harness.media.decoding import IMAGE_SUFFIXES, Picture, load_image
from fuseproof.harness.media.diff import shown_pixels
from fuseproof.harness.report.canvas import Pixels

BROWSER_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif"})


@dataclass(frozen=True)
class ShownOutput:
    """One output file, by its path relative to the campaign folder. Either ``picture`` or ``problem`` is None."""

    path: str
    picture: Picture | None
    problem: str | None

    @property
    def pixels(self) -> Pixels | None:
        """uint8 H x W x 3 at full size."""
        return None if self.picture is None else shown_pixels(self.picture)


class OutputReader:
    """Reads a campaign's outputs, each file once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._known: dict[str, ShownOutput] = {}

    def read(self, path: str) -> ShownOutput:
        """The output at ``path``, relative to the campaign folder."""
        if path not in self._known:
            self._known[path] = self._read(path)
        return self._known[path]

    def forget(self) -> None:
        """Free the memory of what was read."""
        self._known.clear()

    def _read(self, path: str) -> ShownOutput:
        suffix = PurePosixPath(path).suffix.lower()
        if suffix not in IMAGE_SUFFIXES:
            return ShownOutput(path, None, f"{path} is no picture that can be drawn ({suffix or 'no suffix'})")
        try:
            return ShownOutput(path, load_image(self.directory / path), None)
        except FuseproofError as error:
            return ShownOutput(path, None, error.message.replace(f"{self.directory}/", "").rstrip("."))
