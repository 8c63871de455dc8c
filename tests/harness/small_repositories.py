"""Tiny git repositories whose commits hold the fake arm, as a program and as a package called fuseproof."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.harness.fake_commands import FAKE_ARM

IDENTITY = {
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.com",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}
GENERATE = '''"""Stands for `python -m fuseproof generate`: the fake arm, as grey as its commit says."""
import pathlib, sys
import fuseproof, fuseproof.fake_arm
words = sys.argv
dump, outputs = words[words.index("--perf-dump-path") + 1], words[words.index("--output-path") + 1]
sys.argv = ["fake", "--perf-dump", dump, "--outputs", outputs, "--grey", str(fuseproof.GREY)]
sys.exit(fuseproof.fake_arm.main())
'''
COMMAND = "{python} -S -E fuseproof/fake_arm.py --perf-dump {perf_dump} --outputs {output_dir}"


def run_git(folder: Path, *words: str) -> str:
    """Run git in ``folder`` without the user's settings; its output without the line's end."""
    done = subprocess.run(
        ["git", "-C", str(folder), *words], check=True, capture_output=True, text=True, env={**os.environ, **IDENTITY}
    )
    return done.stdout.strip()


def make_repository(folder: Path, greys: tuple[int, ...] = (10, 20)) -> list[str]:
    """A repository on branch main with one commit a grey; the commits' hashes, oldest first."""
    (folder / "kernels").mkdir(parents=True)
    run_git(folder, "init", "--quiet", "--initial-branch=main")
    package = folder / "fuseproof"
    package.mkdir()
    shutil.copyfile(FAKE_ARM, package / "fake_arm.py")
    (package / "__main__.py").write_text(GENERATE)
    (package / "kernels").symlink_to("../kernels")
    return [commit_grey(folder, grey) for grey in greys]


def commit_grey(folder: Path, grey: int) -> str:
    """One more commit, whose package draws this grey; its hash."""
    (folder / "fuseproof" / "__init__.py").write_text(f"GREY = {grey}\n__version__ = '0'\n")
    (folder / "kernels" / "norm.py").write_text(f"# {grey // 20}\n")
    return commit_all(folder, f"grey {grey}")


def commit_all(folder: Path, message: str) -> str:
    """Commit everything; the hash."""
    run_git(folder, "add", "--all")
    run_git(folder, "commit", "--quiet", "--message", message)
    return run_git(folder, "rev-parse", "HEAD")


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks, caches and git settings of the test's own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("FUSEPROOF_CACHE_DIR", str(tmp_path / "cache"))
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)
