"""Every command and every option is documented, and docs/cli says what --help says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fuseproof.cli.main import COMMANDS, cli
from fuseproof.cli.reference import INDEX, differences, pages, undocumented, write_pages

DOCUMENTED = Path(__file__).resolve().parents[2] / "docs" / "cli"


def test_docs_say_what_help_says() -> None:
    """In a fresh process: click keeps the help option of a command that another test has called without its group."""
    result = check(DOCUMENTED)
    assert (0, "") == (result.returncode, result.stderr), "run `make docs`"


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fuseproof.cli.reference", str(folder), "--check"]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "40"}, check=False)


def test_every_command_and_every_option_has_a_help_text() -> None:
    assert [] == list(undocumented(cli, "fuseproof"))


def test_there_is_one_page_a_command_and_an_index_that_links_them() -> None:
    texts = pages()
    assert {INDEX, *(f"{name}.md" for name in COMMANDS)} == set(texts)
    assert all(f"]({name}.md)" in texts[INDEX] for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_holds_the_usage_line_and_no_escape_codes(name: str) -> None:
    text = pages()[f"{name}.md"]
    assert f"Usage: fuseproof {name} " in text
    assert "\x1b" not in text
    assert str(Path.home()) not in text


def test_differences_name_missing_changed_and_stray_pages(tmp_path: Path) -> None:
    write_pages(tmp_path)
    assert [] == differences(tmp_path)
    (tmp_path / "doctor.md").write_text("other\n", encoding="utf-8")
    (tmp_path / INDEX).unlink()
    (tmp_path / "gone.md").write_text("old\n", encoding="utf-8")
    assert [
        f"{tmp_path / INDEX} is missing",
        f"{tmp_path / 'doctor.md'} differs from --help",
        f"{tmp_path / 'gone.md'} belongs to no command",
    ] == differences(tmp_path)
    assert {INDEX, "doctor.md", "gone.md"} == set(write_pages(tmp_path))
    assert [] == write_pages(tmp_path)


def test_check_fails_with_a_sentence_and_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "cli"
    shutil.copytree(DOCUMENTED, folder)
    (folder / "doctor.md").write_text("other\n", encoding="utf-8")
    result = check(folder)
    assert (1, "") == (result.returncode, result.stdout)
    assert "doctor.md differs from --help" in result.stderr
    assert "next: make docs" in result.stderr
    assert "other\n" == (folder / "doctor.md").read_text(encoding="utf-8")
