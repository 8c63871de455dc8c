"""Prompt files: one prompt per line, UTF-8, blank lines skipped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fuseproof.cli.prompts import read_prompt_file, read_prompts
from fuseproof.errors import FuseproofError


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a red panda\n", ("a red panda",)),
        (b"a red panda", ("a red panda",)),
        (b"\xef\xbb\xbfa\n\n  \nb\n", ("a", "b")),
        (b"a\r\nb\r\n", ("a", "b")),
        ("\N{PANDA FACE} caf\u00e9\u2028x\n".encode(), ("\N{PANDA FACE} caf\u00e9\u2028x",)),
        (b"--width 3\n", ("--width 3",)),
    ],
    ids=["one", "no-line-end", "bom-and-blanks", "crlf", "unicode-separators-stay", "dashes"],
)
def test_lines(tmp_path: Path, content: bytes, expected: tuple[str, ...]) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(content)
    assert expected == read_prompt_file(path)
    assert expected == read_prompts((), str(path))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "holds no prompt"),
        (b"\n  \n", "holds no prompt"),
        (b"\xef\xbb\xbf", "holds no prompt"),
        (b"ok\nbad \xff\n", "line 2 holds byte 0xff"),
        ("x".encode("utf-16"), "is not UTF-8"),
    ],
    ids=["empty", "blank", "only-bom", "latin-1", "utf-16"],
)
def test_bad_content_names_the_file(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(content)
    with pytest.raises(FuseproofError) as caught:
        read_prompt_file(path)
    assert said in caught.value.message
    assert str(path) in caught.value.message


def test_missing_and_folder(tmp_path: Path) -> None:
    with pytest.raises(FuseproofError, match="No such file"):
        read_prompt_file(tmp_path / "none.txt")
    with pytest.raises(FuseproofError, match="Is a directory"):
        read_prompt_file(tmp_path)


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FuseproofError, match="is a pipe or a device"):
        read_prompt_file(tmp_path / "pipe")


def test_given_prompts_pass_through_untouched() -> None:
    assert (" a ", "b") == read_prompts((" a ", "b"), None)
