"""``fuseproof abba`` judges every arm's request by generate's rules before slot 1: one sentence, and no folder left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fuseproof.cli.main import main
from tests.cli.without_torch import without_torch


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


REFUSED = "Cell shapes, candidate: generate would refuse these flags: "


@pytest.mark.parametrize(
    ("named", "flags"),
    [
        pytest.param(f"{REFUSED}LongCat-Image cannot make width 100", "--width=100", id="size"),
        pytest.param(f"{REFUSED}There is no embedded", "--model-path=embedded:longcat-imag", id="embedded-name"),
        pytest.param("Try embedded:longcat-image (tiny", "--model-path=longcat-image", id="bare-name"),
        pytest.param("model_index.json", "--model-path=.", id="folder"),
        pytest.param("not renormalise", "--model-path=baidu/ERNIE-Image --enable-cfg-renorm", id="published"),
        pytest.param("is no family", "--load-format=dummy --model-path=longcat", id="dummy"),
        pytest.param("LongCat-Image has no prompt enhancer", "--use-pe", id="family"),
        pytest.param("--negative-prompt has no effect", "--guidance-scale=1 --negative-prompt=ugly", id="unguided"),
        pytest.param("--enable-cfg-renorm has no effect", "--guidance-scale=1 --enable-cfg-renorm", id="renorm"),
        pytest.param("2 --fixed-prompt were given for 1", "--fixed-prompt=a --fixed-prompt=b", id="texts"),
        pytest.param("edits one image, but --image-path", "--model-path=embedded:longcat-image-edit", id="image"),
        pytest.param("--gate observe and --fastpaths off cannot be", "--gate=observe --fastpaths=off", id="gate"),
    ],
)
def test_what_generate_would_refuse_is_refused_before_slot_1(
    here: Path, capsys: pytest.CaptureFixture[str], named: str, flags: str
) -> None:
    for words in ([], ["--dry-run"]):
        assert 2 == main(["abba", f"--candidate={flags}", *words])
        captured = capsys.readouterr()
        assert "" == captured.out
        assert named in captured.err
    assert [] == list(here.iterdir())


def test_a_dry_run_checks_its_requests_without_torch(tmp_path: Path) -> None:
    ablation = "main(['abba', '--ablate', 'fastpaths', '--dry-run'])"
    program = without_torch(f"main(['abba', 'ernie-image', '--dry-run']) or {ablation}")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stderr)
