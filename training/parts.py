"""The three models as they are packaged: one whole checkpoint, and two folders with what differs from it.

The layout is read by :mod:`fuseproof.pipelines.packaged_parts`: the editing checkpoint has the same weights as
LongCat-Image, the Turbo's transformer has a low-rank difference.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fuseproof.pipelines.checkpoint_marker import MARKER, TRAINED, Marker
from fuseproof.pipelines.content_hash import folder_sha256
from fuseproof.pipelines.packaged_parts import PARTS, Parts, assemble, is_in_parts, put_together

BASE, EDIT, TURBO = "longcat-image", "longcat-image-edit", "longcat-image-edit-turbo"
NAMES = (BASE, EDIT, TURBO)
EDIT_PIPELINE = "LongCatImageEditPipeline"
TRANSFORMER_WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
DIFFERENCE = "transformer_difference.safetensors"
TRAINING = "training.json"


def mark_trained(folder: Path) -> None:
    """Let the whole checkpoint in ``folder`` say that its weights are trained."""
    (folder / MARKER).write_text(Marker(weights=TRAINED).to_json(), encoding="utf-8")


def write_part(models: Path, name: str, side: int, tokenizer: Any, progress: dict[str, Any]) -> Path:
    """Write the part EDIT or TURBO beside the whole checkpoint BASE in ``models``; return its folder.

    The Turbo's difference lies in that folder already (:data:`DIFFERENCE`). The canvas is ``side`` x ``side``.
    """
    from fuseproof.pipelines.vision_processor import released_text_processor

    folder = models / name
    folder.mkdir(parents=True, exist_ok=True)
    index = json.loads((models / BASE / "model_index.json").read_text(encoding="utf-8"))
    index.update(_class_name=EDIT_PIPELINE, text_processor=["transformers", "Qwen2VLProcessor"])
    (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    released_text_processor(tokenizer).image_processor.save_pretrained(folder / "text_processor")
    (folder / MARKER).write_text(Marker(name, side * side, TRAINED).to_json(), encoding="utf-8")
    (folder / TRAINING).write_text(json.dumps(progress) + "\n", encoding="utf-8")
    seal_part(folder)
    return folder


def seal_part(folder: Path) -> None:
    """Write the ``parts.json`` of a part: what it shares, and the hash of what comes out."""
    differences = {TRANSFORMER_WEIGHTS: DIFFERENCE} if (folder / DIFFERENCE).is_file() else {}
    with tempfile.TemporaryDirectory() as temporary:
        put_together(folder, folder.parent / BASE, differences, Path(temporary))
        content = folder_sha256(Path(temporary))
    (folder / PARTS).write_text(Parts(BASE, differences, content).to_json(), encoding="utf-8")


@contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """The checkpoint of ``folder``: itself, or, of a part, what is put together for as long as the context lasts."""
    if not is_in_parts(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory() as temporary:
        destination = Path(temporary) / folder.name
        assemble(folder, destination)
        yield destination


def weight_bytes(models: Path, names: tuple[str, ...]) -> int:
    """Of all safetensors that are stored for these."""
    return sum(path.stat().st_size for name in names for path in (models / name).rglob("*.safetensors"))
