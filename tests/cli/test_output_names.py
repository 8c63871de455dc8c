"""Names made from prompts, and folders asked before anything is loaded."""

from __future__ import annotations

import os
import re
import shutil
from collections import namedtuple
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fuseproof.cli import output_names
from fuseproof.cli.output_names import (
    check_distinct,
    check_dump_path,
    check_writable,
    create_folder,
    default_file_name,
    free_path,
    made_folder,
)
from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.atomic_files import write_text_atomically

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("a red panda", "a_red_panda"),
        ("../../x", "x"),
        ("/etc/passwd", "etc_passwd"),
        ("..", "image"),
        ("--x", "x"),
        ("\N{PANDA FACE}", "image"),
        ("caf\u00e9 \u2460", "cafe_1"),
        ("a|b`c<script>\n\x00d", "a_b_c_script_d"),
        ("CON.", "CON"),
        ("x" * 2000, "x" * 100),
        ("\u01c4" * 100, ("DZ" * 100)[:100]),
    ],
)
def test_default_name_is_safe_ascii_and_short(prompt: str, words: str) -> None:
    name = default_file_name(prompt, "0", MOMENT)
    assert re.fullmatch(re.escape(words) + r"_20260102-030405_[0-9a-f]{8}\.png", name)
    assert len(name) <= output_names.LONGEST_NAME


def test_the_hash_tells_requests_apart_and_repeats() -> None:
    names = {default_file_name("a", identity, MOMENT) for identity in ("0", "1")}
    assert 2 == len(names)
    assert default_file_name("a", "0", MOMENT) in names


def test_free_path_steps_aside_for_what_exists(tmp_path: Path) -> None:
    assert tmp_path / "a.png" == free_path(tmp_path, "a.png")
    (tmp_path / "a.png").touch()
    (tmp_path / "a-2.png").symlink_to("nowhere")
    assert tmp_path / "a-3.png" == free_path(tmp_path, "a.png")


@pytest.mark.parametrize("name", [".", "new", "deep/er/new", "with space", "\u00fcml\u00e4ut", "-dash"])
def test_writable_folders_pass_and_are_not_created(tmp_path: Path, name: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    check_writable(tmp_path / name, 1, "--output-path")
    check_dump_path(tmp_path / name / "p.json", 1)
    assert before == sorted(tmp_path.rglob("*"))


def test_a_file_in_the_way_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(UsageError, match="is a file"):
            check_writable(folder, 1, "--output-path")


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"], ids=["too-long", "nul"])
def test_impossible_names_are_a_sentence(tmp_path: Path, name: str) -> None:
    with pytest.raises(FuseproofError, match="cannot be written"):
        check_writable(tmp_path / name, 1, "--output-path")
        create_folder(tmp_path / name, "--output-path")


def test_a_folder_that_was_made_for_nothing_goes_again(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(KeyboardInterrupt), made_folder(tmp_path / "mine" / "deep" / "er", "--output-path"):
        assert (tmp_path / "mine" / "deep" / "er").is_dir()
        raise KeyboardInterrupt
    assert [tmp_path / "mine"] == sorted(tmp_path.rglob("*"))
    with pytest.raises(FuseproofError), made_folder(tmp_path / "mine", "--output-path"):
        raise FuseproofError("failed")
    with pytest.raises(FuseproofError), made_folder(tmp_path / "new" / "one", "--output-path"):
        (tmp_path / "new" / "one" / "a.png").touch()
        raise FuseproofError("failed after the first picture")
    assert ["a.png", "mine", "new", "one"] == sorted(path.name for path in tmp_path.rglob("*"))


def test_unwritable_folder_is_a_sentence() -> None:
    with pytest.raises(FuseproofError, match="cannot be written"):
        check_writable(Path("/proc/self/x"), 1, "--output-path")


def test_a_full_disk_is_found_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9, 1024))
    check_writable(tmp_path, 1024, "--output-path")
    with pytest.raises(FuseproofError, match=r"0\.0 MiB free, this run needs about 3\.0 MiB"):
        check_writable(tmp_path, 3 * 2**20, "--output-path")


def test_perf_dump_path_must_be_a_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        check_dump_path(tmp_path, 1)
    with pytest.raises(UsageError, match="is a folder"):
        check_dump_path(Path(), 1)


@pytest.mark.parametrize(
    "name", ["x" * 300, "x" * 250, "a\0b", "\ud800"], ids=["too-long", "no-room", "nul", "surrogate"]
)
def test_a_dump_name_that_cannot_be_is_a_usage_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a file") as caught:
        check_dump_path(tmp_path / name, 1)
    assert caught.value.next_step
    assert [] == list(tmp_path.iterdir())


def test_a_dump_path_that_is_a_pipe_or_a_device_is_a_usage_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to(os.devnull)
    for path, kind in (
        (tmp_path / "pipe", "a named pipe"),
        (Path(os.devnull), "a device"),
        (tmp_path / "null", "a dev"),
    ):
        with pytest.raises(UsageError, match=f"is {kind}"):
            check_dump_path(path, 1)


@pytest.mark.parametrize("descriptor", [0, 1, 2])
@pytest.mark.parametrize("spelling", ["log.txt", "link", "/dev/fd"])
def test_a_file_that_a_standard_stream_goes_to_is_not_replaced(tmp_path: Path, descriptor: int, spelling: str) -> None:
    """``--perf-dump-path /dev/stdout > out.txt``: the rename would take what was printed away."""
    (tmp_path / "link").symlink_to("log.txt")
    path = Path(f"/dev/fd/{descriptor}") if spelling == "/dev/fd" else tmp_path / spelling
    earlier = os.dup(descriptor)
    try:
        with (tmp_path / "log.txt").open("w+b") as log:
            os.dup2(log.fileno(), descriptor)
        with pytest.raises(UsageError, match=r"is this program's standard (input|output|error); it must be a regular"):
            check_dump_path(path, 1)
        with pytest.raises(UsageError, match="it is this program's standard"):
            write_text_atomically(path, "{}")
    finally:
        os.dup2(earlier, descriptor)
        os.close(earlier)
    assert "" == (tmp_path / "log.txt").read_text()
    check_dump_path(tmp_path / "log.txt", 1)


@pytest.mark.parametrize("spelling", ["a.json", "sub/../a.json", "link.json", "hard.json"])
def test_one_file_under_two_names_is_refused(tmp_path: Path, spelling: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.json").touch()
    (tmp_path / "link.json").symlink_to("a.json")
    (tmp_path / "hard.json").hardlink_to(tmp_path / "a.json")
    given = tmp_path / spelling
    with pytest.raises(UsageError, match=r"--perf-dump-path .* is the same file as --config"):
        check_distinct(given, "--perf-dump-path", {"--config": [None, tmp_path / "a.json"]})
    check_distinct(tmp_path / "b.json", "--perf-dump-path", {"--config": [tmp_path / "a.json", None]})
    check_distinct(None, "--perf-dump-path", {"--config": [tmp_path / "a.json"]})


def test_two_names_of_a_file_that_does_not_exist_yet_are_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="same file"):
        check_distinct(tmp_path / "x" / ".." / "new", "--perf-dump-path", {"the output file": [tmp_path / "new"]})
