"""Where ``fuseproof generate`` writes: checked before anything is loaded, without creating anything."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from fuseproof.cli import clip_outputs, raw_arrays
from fuseproof.cli.output_names import (
    check_distinct,
    check_dump_path,
    check_file_name,
    check_writable,
    default_file_name,
    free_path,
)

if TYPE_CHECKING:
    from fuseproof.cli.generate_options import GenerateOptions
    from fuseproof.pipelines.requests import GenerationRequest

DUMP_BYTES = 256 * 1024


def check_destinations(options: GenerateOptions, output_bytes: int) -> None:
    """Whether the output folder and the perf dump can be written, without creating either."""
    if options.saves_output:
        flag = "--output-path" if options.output_file_path is None else "--output-file-path in"
        check_writable(options.output_folder, output_bytes, flag)
        if options.fixed_file_name is not None:
            check_file_name(options.output_folder / options.fixed_file_name, "the output file")
        raw_arrays.check_destination(options, output_bytes)
    if options.perf_dump_path is not None:
        check_dump_path(Path(options.perf_dump_path), DUMP_BYTES)
    _check_distinct_files(options)


def _check_distinct_files(options: GenerateOptions) -> None:
    """No output may replace what the run reads, and the dump may not replace the image."""
    inputs: dict[str, list[Path | None]] = {
        "--config": [None if options.config is None else Path(options.config)],
        "--prompt-path": [None if options.prompt_path is None else Path(options.prompt_path)],
        "--fixed-prompt-path": [None if options.fixed_prompt_path is None else Path(options.fixed_prompt_path)],
        "--image-path": [Path(source) for source in options.image_path if "://" not in source],
        "--fastpaths-from": [None if options.fastpaths_from is None else Path(options.fastpaths_from)],
    }
    is_named = options.saves_output and options.fixed_file_name is not None
    image = options.output_folder / str(options.fixed_file_name) if is_named else None
    dump = None if options.perf_dump_path is None else Path(options.perf_dump_path)
    check_distinct(image, "the output file", inputs)
    check_distinct(dump, "--perf-dump-path", {**inputs, "the output file": [image]})


def destination_of(options: GenerateOptions, request: GenerationRequest, index: int) -> Path | None:
    """The file that the image of request ``index`` goes to; None where none is written."""
    if not options.saves_output:
        return None
    if options.fixed_file_name is not None:
        return options.output_folder / options.fixed_file_name
    moment = datetime.now(UTC).astimezone()
    name = default_file_name(request.prompt, f"{index}|{request}", moment, clip_outputs.suffix_of(request))
    return free_path(options.output_folder, name)
