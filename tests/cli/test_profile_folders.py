"""The folder of a profile: one run's alone, whole or as it was, however the run ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuseproof.cli.profile_folders import PROFILE_FILE, WORKING_FOLDER, claimed
from fuseproof.cli.termination import Terminated
from fuseproof.errors import FuseproofError, UsageError

NAMES = ("plain", "a\nb", "\u00e9 \N{PANDA FACE}")


def write(working: Path) -> None:
    for name in ("trace.json.gz", PROFILE_FILE, "profile.md"):
        (working / name).write_text(name)


@pytest.mark.parametrize("name", NAMES)
def test_files_come_into_their_folder_when_all_are_whole(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "new" / name
    with claimed(folder) as working:
        write(working)
        assert [WORKING_FOLDER] == [path.name for path in folder.iterdir()]
    assert ["profile.json", "profile.md", "trace.json.gz"] == sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt, Terminated, FuseproofError, OSError])
@pytest.mark.parametrize("is_old", [False, True])
def test_whatever_ends_a_run_early_leaves_the_folder_as_it_was(
    error: type[BaseException], is_old: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "new" / "folder"
    if is_old:
        folder.mkdir(parents=True)
        (folder / "notes.txt").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(error), claimed(folder) as working:
        write(working)
        raise error("the end")
    assert before == sorted(tmp_path.rglob("*"))


def test_a_folder_is_one_run_s_at_a_time(tmp_path: Path) -> None:
    with claimed(tmp_path / "a") as working:
        write(working)
        with pytest.raises(UsageError, match="is being written to by another run"), claimed(tmp_path / "a"):
            pytest.fail("two runs have one folder")
    with pytest.raises(UsageError, match=r"holds profile\.json already"), claimed(tmp_path / "a"):
        pytest.fail("a profile is replaced")
    assert "profile.json" == (tmp_path / "a" / PROFILE_FILE).read_text()
    assert not (tmp_path / "a" / WORKING_FOLDER).exists()


def test_files_that_cannot_all_be_moved_stay_away(tmp_path: Path) -> None:
    (tmp_path / "a" / "profile.md").mkdir(parents=True)
    with pytest.raises(FuseproofError, match="cannot be written: Is a directory"), claimed(tmp_path / "a") as working:
        write(working)
    assert ["profile.md"] == [path.name for path in (tmp_path / "a").iterdir()]
