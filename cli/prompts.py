"""The prompts of one run: from ``--prompt``, or from a file with one prompt per line."""

from __future__ import annotations

from pathlib import Path

from fuseproof.errors import FuseproofError
from fuseproof.pipelines.regular_files import open_regular

LARGEST_FILE_BYTES = 16 * 1024 * 1024


def read_prompts(prompts: tuple[str, ...], prompt_path: str | None) -> tuple[str, ...]:
    """``prompts`` as given, or the lines of the file."""
    return prompts if prompt_path is None else read_prompt_file(Path(prompt_path))


def read_prompt_file(path: Path) -> tuple[str, ...]:
    """One prompt per line of a UTF-8 file, without the white space around it; blank lines are skipped.

    A byte-order mark and Windows line ends are accepted. Raises :class:`FuseproofError` naming the file when it cannot
    be read, is not UTF-8, or holds no prompt.
    """
    try:
        with open_regular(path.expanduser()) as stream:
            content = stream.read(LARGEST_FILE_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FuseproofError(
            f"--prompt-path {path} cannot be read: {reason}.", next_step="Give a text file with one prompt per line."
        ) from error
    if len(content) > LARGEST_FILE_BYTES:
        raise FuseproofError(
            f"--prompt-path {path} is larger than {LARGEST_FILE_BYTES // 2**20} MiB.", next_step="Split the file."
        )
    prompts = tuple(line.strip() for line in _decode(path, content).split("\n") if line.strip())
    if not prompts:
        raise FuseproofError(f"--prompt-path {path} holds no prompt.", next_step="Write one prompt per line.")
    return prompts


def _decode(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise FuseproofError(
            f"--prompt-path {path} is not UTF-8: line {line} holds byte 0x{content[error.start]:02x}.",
            next_step="Save the file as UTF-8.",
        ) from error
