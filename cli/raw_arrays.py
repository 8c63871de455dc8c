"""``--keep-raw``: the decoded arrays themselves, so that others can hash again what the perf dump holds the hash of."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from fuseproof.cli.output_names import check_writable, create_folder
from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.atomic_files import regular_target, replace_whole
from fuseproof.harness.verification.raw import RAW_FOLDER, raw_name

if TYPE_CHECKING:
    from fuseproof.cli.generate_options import GenerateOptions
    from fuseproof.harness.media.files import Array

FLAG = "--keep-raw"
BYTES_PER_PIXEL_BYTE = 4
"""A float32 array against the uint8 image that is made of it."""


def check_rules(options: GenerateOptions) -> None:
    """Raise :class:`UsageError` where there is no dump to hold the hashes, or no image to name the arrays after."""
    if options.keep_raw and options.perf_dump_path is None:
        raise UsageError(
            f"{FLAG} keeps the arrays beside a perf dump, which holds their hashes, and there is none.",
            next_step="Add --perf-dump-path FILE.",
        )
    if options.keep_raw and not options.saves_output:
        raise UsageError(
            f"{FLAG} names its arrays after the images, and none are written.", next_step="Leave --no-save-output out."
        )


def check_destination(options: GenerateOptions, image_bytes: int) -> None:
    """Whether the arrays of images of ``image_bytes`` in all can be written, without creating anything."""
    if options.keep_raw:
        check_writable(raw_folder(options), BYTES_PER_PIXEL_BYTE * image_bytes, FLAG)


def raw_folder(options: GenerateOptions) -> Path:
    """The folder ``raw`` beside the perf dump."""
    return Path(options.perf_dump_path or "").parent / RAW_FOLDER


def keep_raw(options: GenerateOptions, image: Path, array: Array) -> None:
    """Write ``array`` [H, W, C] as ``.npy`` under the name of ``image``; an array of that name is replaced."""
    import numpy as np

    folder = raw_folder(options)
    create_folder(folder, FLAG)
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    target = regular_target(folder / raw_name(image.name))
    try:
        replace_whole(target, buffer.getvalue())
    except OSError as error:
        raise FuseproofError(
            f"{target} could not be written: {error.strerror or error}.", next_step=f"Free some space, or drop {FLAG}."
        ) from error
