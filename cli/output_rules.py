"""The rules that tie ``generate``'s flags about image files together: names that can be written, and that are."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from fuseproof.cli.option_fields import flag_name
from fuseproof.errors import UsageError

if TYPE_CHECKING:
    from fuseproof.cli.generate_options import GenerateOptions

OTHER_FORMATS = frozenset({".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".webm", ".mov"})


def check(options: GenerateOptions) -> None:
    """Raise :class:`UsageError` for the first rule that the flags break."""
    if options.save_output is not None and options.save_output == options.no_save_output:
        raise UsageError("--save-output and --no-save-output contradict each other.", next_step="Give one of them.")
    if options.output_file_path is not None and (options.output_path or options.output_file_name):
        raise UsageError(
            "--output-file-path already says folder and name, so --output-path and --output-file-name cannot be added.",
            next_step="Give either --output-file-path, or the other two.",
        )
    named = "output_file_name" if options.output_file_name is not None else "output_file_path"
    if getattr(options, named) is not None and not options.saves_output:
        raise UsageError(
            f"{flag_name(named)} names an image, and none is written.",
            next_step=f"Leave out {flag_name(named)}, or what switches saving off.",
        )
    name = options.output_file_name
    if name is not None and (name in ("", ".", "..") or re.search(r"[/\\\x00-\x1f\x7f]", name)):
        raise UsageError(
            f"--output-file-name is {name!r}; it must be a plain file name without a folder.",
            next_step="Use --output-path for the folder, or --output-file-path for both.",
        )
    path = options.output_file_path
    if path is not None and (not path.strip() or path.endswith(("/", "\\")) or PurePath(path).name in ("", "..")):
        raise UsageError(
            f"--output-file-path is {path!r}; it must end in a file name.",
            next_step="Use a path such as outputs/panda.png, or --output-path for the folder alone.",
        )
    fixed = options.fixed_file_name
    if fixed is not None and (fixed in (".png", "..png") or len(fixed.encode("utf-8", "surrogateescape")) > 250):
        raise UsageError(
            f"the output file name {fixed[:40]!r} is empty or longer than 250 bytes.",
            next_step="Use a shorter name, or drop it: one is made from the prompt.",
        )
    if fixed is not None and PurePath(fixed.removesuffix(".png")).suffix.lower() in OTHER_FORMATS:
        raise UsageError(
            f"the output file name {fixed.removesuffix('.png')!r} does not end in .png or .mp4, and nothing else is "
            "written.",
            next_step="Use a name that ends in .png, of a video in .mp4, or in neither.",
        )
