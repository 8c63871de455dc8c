"""``fastpaths capture``: which call is kept, and what is refused before a model is loaded."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fuseproof.cli import generation
from fuseproof.cli.main import main
from fuseproof.fastpaths.captures import read_capture
from fuseproof.harness import atomic_files
from tests.cli.desk import SMALL, Desk

REQUEST = ("--prompt", "a red panda", *SMALL)
OWN = "from fuseproof.fastpaths import UserSite\nSITES = [UserSite('mine', fused=print, modules='norm_out')]\n"


class Request:
    """A session that makes two calls in each of ``steps`` steps, told to whoever listens; the values say which."""

    def __init__(self, observer: Any, call_observers: Any, steps: int = 2, site: str = "qk_norm_rope") -> None:
        self.observer, self.call_observers, self.steps, self.site = observer, call_observers, steps, site

    def run(self, request: Any) -> None:
        self.observer.stage_started("TextEncodingStage", None)
        self._call(-1.0)
        self.observer.stage_finished("TextEncodingStage", 1.0)
        self.observer.stage_started("DenoisingStage", self.steps)
        for step in range(self.steps):
            self._call(10.0 * step + 1)
            self._call(10.0 * step + 2)
            self.observer.step_finished(step)
        self.observer.stage_finished("DenoisingStage", 1.0)

    def _call(self, value: float) -> None:
        for site, note in self.call_observers.items():
            if site == self.site:
                note(SimpleNamespace(name=site), (torch.full((2, 3), value), 1e-6), {})

    def fastpaths_report(self) -> dict[str, Any]:
        return {"sites": {"gelu_tanh": {"state": "unreached", "reason": "no call reached this site"}}}

    def close(self) -> None:
        pass


@pytest.fixture
def requests(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The sessions that were opened."""
    opened: list[Any] = []

    def open_session(job: Any, observer: Any, certificate: Any, call_observers: Any) -> Request:
        opened.append(Request(observer, call_observers))
        return opened[-1]

    monkeypatch.setattr(generation, "open_session", open_session)
    return opened


def capture(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["fastpaths", "capture", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(("value", "step"), [(1.0, 0), (11.0, 1)])
def test_the_first_call_of_the_step_is_kept(
    requests: list[Any], capsys: pytest.CaptureFixture[str], value: float, step: int
) -> None:
    arguments = ("qk_norm_rope", "--step", str(step), "--output", "call.safetensors", *REQUEST, "--json")
    code, out, err = capture(capsys, *arguments)
    assert (0, "") == (code, err)
    call = read_capture(Path("call.safetensors"))
    assert torch.equal(torch.full((2, 3), value), call.values[0])
    assert ("qk_norm_rope", step, "kernel") == (call.site, call.source["step"], call.source["kind"])
    assert "2x3" == json.loads(out)["shapes"]
    assert 1 == len(requests)


@pytest.mark.parametrize(
    ("code", "words", "arguments"),
    [
        (2, "--step is 2, and this request has the steps 0 to 1", ("qk_norm_rope", "--step", "2")),
        (2, "'-1' is not a whole number", ("qk_norm_rope", "--step", "-1")),
        (2, "'nothing' is no site of this model; layernorm_modulate", ("nothing", "--step", "0")),
        (2, "'packed_blocks' has no kernel whose tensors could be saved", ("packed_blocks", "--step", "0")),
        (2, "--perf-dump-path has no place here", ("gelu_tanh", "--step", "0", "--perf-dump-path", "p.json")),
        (2, "capture needs the calls themselves", ("gelu_tanh", "--step", "0", "--enable-torch-compile")),
        (2, "fast paths are off", ("gelu_tanh", "--step", "0", "--fastpaths", "off")),
        (2, "2 prompts were given", ("gelu_tanh", "--step", "0", "--prompt", "another")),
        (1, "no call reached site 'gelu_tanh' in step 0: unreached", ("gelu_tanh", "--step", "0")),
    ],
)
def test_mistakes_are_one_sentence(
    requests: list[Any], capsys: pytest.CaptureFixture[str], code: int, words: str, arguments: tuple[str, ...]
) -> None:
    found, out, err = capture(capsys, *arguments, "--output", "call.safetensors", *REQUEST)
    assert (code, "") == (found, out)
    assert words in err
    assert 2 >= len(err.splitlines())
    assert not Path("call.safetensors").exists()
    assert bool(requests) is (code == 1), "everything else is found before a model is loaded"


@pytest.mark.parametrize("output", [".", "/dev/null"])
def test_an_output_that_is_no_file(requests: list[Any], capsys: pytest.CaptureFixture[str], output: str) -> None:
    code, _, err = capture(capsys, "qk_norm_rope", "--step", "0", "--output", output, *REQUEST)
    assert 2 == code
    assert "--output" in err
    assert [] == requests


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("is the same file as --prompt-path", ("--prompt-path", "here.json")),
        ("is the same file as --config", ("--config", "here.json")),
        ("is the same file as --fastpaths-from", ("--prompt", "panda", "--fastpaths-from", "here.json")),
        ("is the same file as --image-path", ("--prompt", "panda", "--image-path", "here.json")),
        ("exists and is no captured call", ("--prompt", "panda")),
    ],
)
def test_what_the_request_reads_and_what_is_no_capture_is_kept(
    requests: list[Any], capsys: pytest.CaptureFixture[str], words: str, flags: tuple[str, ...]
) -> None:
    text = '{"prompt": "a red panda"}' if "--config" in flags else "a red panda"
    Path("here.json").write_text(text, encoding="utf-8")
    Path("link.json").symlink_to("here.json")
    arguments = ("--step", "0", "--output", "./link.json", *flags, *SMALL)
    code, _, err = capture(capsys, "qk_norm_rope", *arguments)
    assert (2, text) == (code, Path("here.json").read_text(encoding="utf-8"))
    assert words in err
    assert [] == requests


def test_an_earlier_capture_is_replaced(requests: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    for step, value in (("0", 1.0), ("1", 11.0)):
        arguments = ("qk_norm_rope", "--step", step, "--output", "call.safetensors", *REQUEST)
        assert (0, "") == capture(capsys, *arguments)[::2]
        assert torch.equal(torch.full((2, 3), value), read_capture(Path("call.safetensors")).values[0])


def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    requests: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic_files, "replace_whole", fail)
    code, _, err = capture(capsys, "qk_norm_rope", "--step", "0", "--output", "call.safetensors", *REQUEST)
    assert 1 == code
    assert "cannot be written" in err
    assert "No space left on device" in err
    assert not Path("call.safetensors").exists()


def test_a_site_of_ones_own_can_be_captured(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.py").write_text(OWN, encoding="utf-8")
    monkeypatch.setattr(
        generation, "open_session", lambda job, observer, _, heard: Request(observer, heard, site="mine")
    )
    arguments = ("mine", "--step", "1", "--output", "call.safetensors", "--fastpaths-from", "mine.py")
    code, _, err = capture(capsys, *arguments, *REQUEST)
    assert (0, "") == (code, err)
    assert read_capture(Path("call.safetensors")).source["is_own"] is True


@pytest.mark.slow_process
def test_a_real_request_is_captured_and_replayed(tmp_path: Path) -> None:
    """In fresh processes, as a user runs them: the embedded model, then the kernel in Triton's interpreter."""
    if torch.cuda.is_available():
        pytest.skip("the interpreter is for machines without a card")
    file = tmp_path / "call.safetensors"
    model = "--model-path=embedded:ernie-image"  # its prompts are not padded: few rows, and the interpreter is slow
    request = [model, "--prompt=a red panda", *SMALL[:2], "--num-inference-steps=1", "--dtype=bfloat16"]
    command = [sys.executable, "-m", "fuseproof", "fastpaths"]
    made = run([*command, "capture", "rmsnorm_modulate", "--step", "0", "--output", str(file), *request], {})
    assert (0, "") == (made.returncode, made.stderr)
    call = read_capture(file)
    text, picture = len("a red panda") + 1, (64 // 16) * (48 // 16)
    assert (2, text + picture, 256) == next(iter(call.layout.places()))[1].shape
    checked = run([*command, "verify", "--from", str(file), "--json"], {"TRITON_INTERPRET": "1"})
    assert 0 == checked.returncode, checked.stderr
    (case,) = json.loads(checked.stdout)["cases"]
    assert "rmsnorm_modulate" == case["kernel"]
    assert case["state"] in ("equal", "undecided")


def run(command: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    import os

    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
