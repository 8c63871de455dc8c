"""``fastpaths task``: a folder that works without fuseproof, and a test in it that fails for one wrong rounding."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuseproof.cli import fastpaths_task
from fuseproof.cli.fastpaths_guide import read_guide
from fuseproof.cli.fastpaths_task_profile import measured_lines
from fuseproof.cli.main import main
from fuseproof.errors import FuseproofError
from tests.cli.test_fastpaths_verify import residual_capture
from tests.harness.profiles import samples

WRONG = """\
from reference import reference

def candidate(residual, update, gate, text_gate=None, text_rows=0, out=None):
    if text_gate is not None:
        return reference(residual, update, gate, text_gate, text_rows)
    return (residual.float() + update.float() * gate[:, None].float()).to(residual.dtype)
"""
PROGRAM = """\
import sys
sys.modules["fuseproof"] = None  # a machine without it
import pytest, runpy
from pathlib import Path

def both():
    for name in ("candidate", "reference", "inputs", "values", "checking", "comparing", "timing", "test_candidate"):
        sys.modules.pop(name, None)
    print("test:", int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "test_candidate.py"])))
    try:
        runpy.run_path("bench.py", run_name="__main__")
    except SystemExit as end:
        print("bench:", end.code)

sys.path.insert(0, "")
both()
Path("candidate.py").write_text(Path("wrong.txt").read_text())
both()
"""


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """The guide parses every file of the room."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fastpaths_task, "read_guide", functools.cache(read_guide))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("task")
    capture = residual_capture(place)
    flags = ["--model", "embedded:longcat-image", "--captures", str(capture), "--output", str(place / "work")]
    assert main(["fastpaths", "task", "gated_residual", *flags]) == 0
    return place / "work"


def test_the_task_names_formula_shapes_values_and_the_one_command(folder: Path) -> None:
    text = (folder / "task.md").read_text(encoding="utf-8")
    assert "**Formula.** `R(residual + R(gate * update))`" in text
    assert "| gate | 1x256 bfloat16, strides [9728, 1], block 2, from element 512 |" in text
    assert "### captured 0: residual, update 1x2x8; gate 1x8" in text
    assert "An *output* is memory for the result" in text and "*from element* n" in text
    assert "- every finite bf16 value" in text
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert "python -m pytest -v test_candidate.py && python bench.py" in readme
    assert 'replaces="gated_residual"' in readme
    assert "TRITON_INTERPRET=1 fuseproof fastpaths verify --model embedded:longcat-image --site mine" in readme
    calls = json.loads((folder / "calls.json").read_text(encoding="utf-8"))["calls"]
    assert "captured-0.pt" == calls[0]["captured"]
    assert all(call["traffic_bytes"] > 0 for call in calls)


@pytest.mark.slow_process
def test_the_folder_works_with_torch_alone_and_finds_one_wrong_rounding(folder: Path) -> None:
    (folder / "wrong.txt").write_text(WRONG, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    right, wrong = done.stdout.split("bench: 0")
    assert "test: 0" in right, done.stdout + done.stderr
    assert "CPU, torch " in right
    (row,) = (line for line in right.splitlines() if line.startswith("| captured 0: residual, update 1x2x8;"))
    assert " (wall time) |" in row
    assert row.split(" | ")[3] == row.split(" | ")[5].rstrip(" |") == "-"
    assert "they say nothing about a card's, so no ratio is given" in right
    assert "no time" not in right
    assert "test: 1" in wrong
    assert "of the values of the result differ, first at" in wrong
    assert "Call(" not in wrong
    assert "| no time: " in wrong
    assert "bench: 1" in wrong


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("'gelu_tan' is no fast path; ", ["gelu_tan"]),
        ("nearest to it are gelu_tanh, ", ["gelu_tan"]),
        ("site 'packed_blocks' rewrites whole blocks and has no kernel of its own bits; ", ["packed_blocks"]),
        ("the kernels that run inside it are attention_mlp_gelu, gated_residual, ", ["packed_blocks"]),
        ("'timestep_embedding' has no kernel of its own bits to hand over: it runs none; ", ["timestep_embedding"]),
        ("'wan_vae_bf16' has no kernel of its own bits to hand over: it is close, not exact; ", ["wan_vae_bf16"]),
        ("site 'wan_vae_upsampling' runs several kernels: ", ["wan_vae_upsampling"]),
        ("is not an empty folder", ["gelu_tanh", "--output", "full"]),
        ("is not an empty folder", ["gelu_tanh", "--output", "full/file"]),
        ("cannot name a folder: File name too long", ["gelu_tanh", "--output", "x" * 300]),
    ],
)
def test_mistakes_are_one_sentence_and_cost_no_import(
    words: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fastpaths_task, "_calls", None)
    Path("full").mkdir()
    Path("full/file").touch()
    assert main(["fastpaths", "task", *arguments]) == 2
    printed = capsys.readouterr().err
    assert words in printed
    assert len(printed.splitlines()[0]) < 320  # no list of every name
    assert ["full"] == [path.name for path in tmp_path.iterdir()]


def test_what_a_profile_says_of_the_site_stands_in_the_task(tmp_path: Path) -> None:
    path = samples.write(tmp_path, samples.profile(is_fused=True))
    lines = "\n".join(measured_lines(path, "norm_modulation", "layernorm_modulate"))
    assert "meituan-longcat/LongCat-Image, 1024x1024, on" in lines
    assert "Site norm_modulation: fused, 200 calls fused and 0 eager." in lines
    assert "| DenoisingStage | `_layernorm_modulate_kernel` | `1x4096x3072 bfloat16` | 3 | 84.0 | 50,331,648 |" in lines
    with pytest.raises(FuseproofError, match="says nothing of 'gelu_tanh'; its sites are norm_modulation"):
        measured_lines(path, "gelu_tanh", "gelu_tanh")


def test_nothing_that_a_profile_says_is_markup_in_the_task(tmp_path: Path) -> None:
    bad = "\n# <script>|\x1b[1m **x** `y` @somebody"
    values = samples.profile(is_fused=True)
    values["request"]["model"] = values["device"]["name"] = values["sites"][0]["reason"] = bad
    for row in values["rows"]:
        row |= {"kernel": bad, "key": bad}
    values["chains"] = samples.profile()["chains"]
    values["chains"][0] |= {"module": bad, "operations": [bad], "shape": bad, "fast_path_reason": bad}
    found = measured_lines(samples.write(tmp_path, values), "norm_modulation", "layernorm_modulate")
    assert {6} == {line.count("|") - 1 for line in found if line.startswith("|")}
    assert 3 < sum("script" in line for line in found)
    for line in found:
        assert not {*"\n\x1b"} & {*line}
        assert not line.startswith("#")
        assert not any(markup in line for markup in ("<script", "**x", "`y`"))


def test_a_capture_of_another_kernel_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--captures", str(residual_capture(tmp_path)), "--output", str(tmp_path / "work")]
    assert main(["fastpaths", "task", "gelu_tanh", *flags]) == 1
    assert "a capture is of 'gated_residual', and the task is 'gelu_tanh'" in capsys.readouterr().err
    assert not (tmp_path / "work").exists()
