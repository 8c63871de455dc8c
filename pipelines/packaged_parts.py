"""Checkpoints that are packaged in parts: what they share with another one is stored once. Torch-free.

A folder with a ``parts.json`` holds only what differs from its neighbour of the name ``shared``. The whole checkpoint
is every file of that neighbour, then every own file in its place, and, where ``differences`` names a weight file, that
file with a low-rank difference added: ``W + up @ down`` for each matrix that has one.

The sum is taken element by element in fp64, one rank after the other, and rounded to bf16 once at the end: the same
bytes on every machine, whatever its libraries. So ``content_sha256`` can say what must come out.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseproof.errors import FuseproofError
from fuseproof.pipelines.content_hash import folder_sha256

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PARTS = "parts.json"
SCHEMA = "fuseproof.parts/1"
UP, DOWN = ".up", ".down"
REINSTALL = "Install fuseproof again."


@dataclass(frozen=True)
class Parts:
    """What ``parts.json`` says. ``differences``: the weight file to be changed, and the own file that changes it, both
    relative; ``content_sha256`` of the whole checkpoint.
    """

    shared: str
    differences: Mapping[str, str]
    content_sha256: str

    def to_json(self) -> str:
        """The file's text."""
        values = {
            "schema": SCHEMA,
            "shared": self.shared,
            "differences": dict(self.differences),
            "content_sha256": self.content_sha256,
        }
        return json.dumps(values, indent=2) + "\n"


def is_in_parts(folder: Path) -> bool:
    """Whether ``folder`` is a part that has to be assembled before it can be used."""
    return (folder / PARTS).is_file()


def read_parts(folder: Path) -> Parts:
    """What the ``parts.json`` in ``folder`` says; a FuseproofError where it says nothing that can be used."""
    try:
        values = json.loads((folder / PARTS).read_text(encoding="utf-8"))
        parts = Parts(str(values["shared"]), dict(values["differences"]), str(values["content_sha256"]))
        schema = values["schema"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FuseproofError(
            f"{folder / PARTS} cannot be read: {type(error).__name__}: {error}.", next_step=REINSTALL
        ) from error
    names = [parts.shared, *parts.differences, *parts.differences.values()]
    if schema != SCHEMA or any(Path(name).is_absolute() or ".." in Path(name).parts for name in names):
        raise FuseproofError(
            f"{folder / PARTS} has schema {schema!r} and names {names}; {SCHEMA!r} and names inside were expected.",
            next_step=REINSTALL,
        )
    return parts


def assemble(folder: Path, destination: Path) -> None:
    """Write the whole checkpoint of the part ``folder`` into ``destination``, which is absent or empty.

    A FuseproofError says which part is missing or does not fit, or that other bytes came out than were packaged.
    """
    parts = read_parts(folder)
    put_together(folder, folder.parent / parts.shared, parts.differences, destination)
    found = folder_sha256(destination)
    if found != parts.content_sha256:
        raise FuseproofError(
            f"The parts of {folder.name} give content {found[:12]}; {parts.content_sha256[:12]} was packaged.",
            next_step=REINSTALL,
        )


def put_together(folder: Path, shared: Path, differences: Mapping[str, str], destination: Path) -> None:
    """:func:`assemble` before its result is known; an OSError where ``destination`` cannot be written."""
    try:
        contents = {**_contents(shared), **_contents(folder, {PARTS, *differences.values()})}
        for weights, difference in differences.items():
            if weights not in contents:
                raise FileNotFoundError(f"{weights} is missing")
            contents[weights] = merge_low_rank(contents[weights], (folder / difference).read_bytes())
    except (OSError, ValueError) as error:
        raise FuseproofError(
            f"{folder.name} cannot be put together from its parts: {error}.", next_step=REINSTALL
        ) from error
    for name, content in contents.items():
        (destination / name).parent.mkdir(parents=True, exist_ok=True)
        (destination / name).write_bytes(content)


def _contents(source: Path, left_out: Collection[str] = ()) -> dict[str, bytes]:
    """Every file by its name, without modes: an installed package may be read-only, and copies must not be."""
    if not source.is_dir():
        raise FileNotFoundError(f"{source} is missing")
    files = {path.relative_to(source).as_posix(): path for path in sorted(source.rglob("*")) if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if name not in left_out}


def merge_low_rank(weights: bytes, difference: bytes) -> bytes:
    """The safetensors file ``weights`` with ``up @ down`` added to each matrix that ``difference`` has factors of.

    ``difference`` holds ``<name>.up`` [out, rank] and ``<name>.down`` [rank, in] for tensors ``<name>`` [out, in]; all
    are bf16. A ValueError names a factor that is alone, or that fits no matrix.
    """
    import numpy as np

    header, start = _header(weights)
    factors, factors_start = _header(difference)
    merged = bytearray(weights)
    for name in sorted({name.removesuffix(UP).removesuffix(DOWN) for name in factors}):
        entry, up_entry, down_entry = header.get(name), factors.get(name + UP), factors.get(name + DOWN)
        if entry is None or up_entry is None or down_entry is None:
            raise ValueError(f"{name!r} lacks its matrix, or one of its two factors")
        matrix = _matrix(weights, start, entry).astype(np.float64)
        up, down = _matrix(difference, factors_start, up_entry), _matrix(difference, factors_start, down_entry)
        if matrix.shape != (up.shape[0], down.shape[1]) or up.shape[1] != down.shape[0]:
            raise ValueError(f"{name!r} is {matrix.shape}, its factors {up.shape} and {down.shape}")
        for column, row in zip(up.T.astype(np.float64), down.astype(np.float64), strict=True):
            matrix += column[:, None] * row
        begin, end = entry["data_offsets"]
        merged[start + begin : start + end] = _as_bf16(matrix)
    return bytes(merged)


def _header(content: bytes) -> tuple[dict[str, Any], int]:
    """The tensors of a safetensors file by name, and where their data begin."""
    length = struct.unpack("<Q", content[:8])[0] if len(content) >= 8 else len(content)
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    return header, 8 + length


def _matrix(content: bytes, start: int, entry: Mapping[str, Any]) -> NDArray[np.float32]:
    import numpy as np

    if entry["dtype"] != "BF16" or len(entry["shape"]) != 2:
        raise ValueError(f"a tensor of {entry['dtype']} {entry['shape']} stands where a BF16 matrix was expected")
    begin, end = entry["data_offsets"]
    halves = np.frombuffer(content[start + begin : start + end], dtype="<u2").astype(np.uint32)
    matrix: NDArray[np.float32] = (halves << 16).view(np.float32).reshape(entry["shape"])
    return matrix


def _as_bf16(matrix: NDArray[np.float64]) -> bytes:
    """Rounded to the nearest bf16, ties to even, through fp32 (so a tie that fp32 makes counts as one)."""
    import numpy as np

    bits = matrix.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype("<u2").tobytes()
