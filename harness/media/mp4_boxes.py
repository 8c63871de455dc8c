"""Whether an MP4 file is whole: its outermost boxes must end where the file ends. Decoders play what is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fuseproof.harness.media.refusals import unreadable

SUFFIXES = frozenset({".mp4", ".m4v", ".mov"})
_MOST_BOXES = 100_000
_HEADER_BYTES = 8
_LARGE_HEADER_BYTES = 16


def check_boxes(path: Path) -> None:
    """Raise :class:`FuseproofError` for an MP4 or MOV file that ends inside a box, or lacks its index."""
    if path.suffix.lower() not in SUFFIXES:
        return
    size, end, names = path.stat().st_size, 0, set()
    for name, end in _boxes(path, size):
        names.add(name)
        if end > size:
            raise unreadable(path, "it is truncated: it ends inside a box of its container")
    if b"moov" not in names or end != size:
        raise unreadable(path, "it is truncated, damaged or no video: its index is missing")


def _boxes(path: Path, size: int) -> Iterator[tuple[bytes, int]]:
    """The name of each outermost box and where it ends; the last one may have no length and takes the rest."""
    position = 0
    with path.open("rb") as stream:
        for _ in range(_MOST_BOXES):
            stream.seek(position)
            header = stream.read(_LARGE_HEADER_BYTES)
            length = int.from_bytes(header[:4], "big")
            if length == 1:
                length = int.from_bytes(header[_HEADER_BYTES:], "big")
            elif length == 0:
                length = size - position
            if len(header) < _HEADER_BYTES or length < _HEADER_BYTES:
                return
            position += length
            yield header[4:_HEADER_BYTES], position
            if position >= size:
                return
