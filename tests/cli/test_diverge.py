"""``fuseproof diverge`` as a user types it, on the embedded model; arms run in the test's process, one in its own."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from fuseproof.cli.diverge_processes import ArmProcesses, _asks_for_graphs
from fuseproof.cli.diverge_search import _refuse_other_work
from fuseproof.cli.main import main
from fuseproof.errors import UsageError
from fuseproof.pipelines.divergence.calls import Call
from fuseproof.pipelines.divergence.comparing import compare_calls, differing
from fuseproof.pipelines.divergence.passes import ArmPasses
from fuseproof.pipelines.divergence.watching import CallWatch
from tests.cli.diverging_arms import ArmsHere
from tests.harness.small_repositories import IDENTITY, commit_all, run_git

ROOT = Path(__file__).resolve().parents[2]
SMALL = "--prompt panda --width 32 --height 32 --num-inference-steps 2"
REQUEST = f"--model-path embedded:longcat-image {SMALL} --guidance-scale 1"
NORM = "transformer.transformer_blocks.1.norm2"
SITE = """
import random, torch, torch.nn.functional as F
from fuseproof.fastpaths import UserSite
from fuseproof.fastpaths.kernels import gelu_tanh
def layer_norm(module, x):
    return F.layer_norm(x, module.normalized_shape, module.weight, module.bias, module.eps).clone()
def up(y):
    return torch.nextafter(y, torch.tensor(9.0))
def rounds_up(module, x):
    y = layer_norm(module, x)
    y[..., 5::8] = up(y[..., 5::8])
    return y
def noisy(module, x):
    return layer_norm(module, x) * (1 + random.SystemRandom().random() / 1000)
def own_gelu(x, out=None):
    return up(gelu_tanh.reference(x))
SITES = [
    UserSite("rounds_up", fused=rounds_up, modules="transformer_blocks.1.norm2"),
    UserSite("noisy", fused=noisy, modules="transformer_blocks.1.norm2"),
    UserSite("own_gelu", fused=own_gelu, replaces="gelu_tanh"),
]
"""


class Result(NamedTuple):
    code: int
    out: str
    err: str
    found: Mapping[str, Any]


Program = Callable[..., Result]


@pytest.fixture(scope="module")
def arms() -> Iterator[ArmsHere]:
    """The arms that nothing was done to, shared by all tests: the baseline is loaded once."""
    here = ArmsHere()
    yield here
    here.close()


@pytest.fixture
def diverge(arms: ArmsHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Program:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "sites.py").write_text(SITE)

    def call(baseline: str, candidate: str, *more: str, here: ArmsHere = arms, flags: str = REQUEST) -> Result:
        monkeypatch.setattr(ArmProcesses, "start", here.start)
        here.log.clear()
        words = ["--baseline", baseline, "--candidate", candidate, "--flags", flags, "--json", "found.json", *more]
        code = main(["diverge", *words])
        captured = capsys.readouterr()
        file = tmp_path / "found.json"
        return Result(code, captured.out, captured.err, json.loads(file.read_text()) if file.exists() else {})

    return call


def test_a_wrong_rounding_in_one_site_of_one_block_is_found(diverge: Program, arms: ArmsHere) -> None:
    result = diverge("--fastpaths=off", "--fastpaths=rounds_up --fastpaths-from sites.py --gate off")
    assert 4 == result.code, result.err
    assert "step 1 of 2: the first difference" == result.out.splitlines()[1]
    assert f"module: {NORM} (LayerNorm, forward 1 of the step)" in result.out
    assert "site rounds_up in the candidate: ran fused, unchecked; key transformer_blocks.1.norm2" in result.out
    found = result.found
    assert ("difference", 1, "call", NORM) == (found["result"], found["step"], found["cause"], found["call"]["label"])
    (output,) = found["tensors"]["outputs"]
    assert ([0, 0, 5], 1) == (output["first_index"], output["difference"]["largest_ulp"])
    assert [True] == [one["equal"] for one in found["tensors"]["inputs"]]
    assert [("rounds_up", "fused")] == [(gate["site"], gate["ran"]) for gate in found["gates"]["candidate"]]
    assert 0 < found["consequences"] < found["compared_calls"]
    assert [0, 1, 2] == [one["step"] for one in found["growth"]]
    assert found["growth"][0]["identical"]
    assert 0 < found["growth"][1]["largest_ulp"]
    assert 4 == sum(line.startswith("start") for line in arms.log)


def test_a_wrong_kernel_inside_rewritten_blocks_is_told_from_its_neighbours(diverge: Program) -> None:
    result = diverge("--fastpaths=off", "--fastpaths=packed_blocks,own_gelu --fastpaths-from sites.py --gate off")
    assert "transformer.transformer_blocks.0" == result.found["call"]["label"]
    assert "packed_blocks" == result.found["gates"]["candidate"][0]["site"]
    assert ["output[0] and output[1]"] == [one["name"] for one in result.found["tensors"]["outputs"]]
    observed = result.found["observed"]["candidate"]
    assert ("own_gelu", 1) == (observed["site"], observed["difference"]["largest_ulp"])
    assert "held against its own reference, the candidate's first fast path to differ: site own_gelu in" in result.out


def test_equal_rewritten_blocks_are_held_against_the_librarys_and_are_no_cause(
    diverge: Program, arms: ArmsHere
) -> None:
    diverge("--fastpaths=off", "--fastpaths=auto")
    found = {}
    for (flags, *_), passes in arms._opened.items():
        answer = passes.answer({"pass": "calls", "first": 0, "last": 1, "steps": 2})
        found[flags] = [Call.from_json(call) for call in answer["calls"]]
    finding = compare_calls(found["--fastpaths=off"], found["--fastpaths=auto"])
    assert (None, None, 0) == (finding.cause, finding.outside, finding.consequences)
    blocks = {
        call.label for call in found["--fastpaths=auto"] if call.gates and call.gates[0]["site"] == "packed_blocks"
    }
    assert 6 == len(blocks)
    eager = {call.label: call for call in found["--fastpaths=off"]}
    for call in found["--fastpaths=auto"]:
        if call.label in blocks:
            assert () == differing(eager[call.label].outputs, call.outputs), call.label


def test_another_attention_backend_is_named_by_its_setting(diverge: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry as Registry

    monkeypatch.setattr(Registry, "_active_backend", Registry._active_backend)  # choosing one sets it for the process
    here = ArmsHere()
    backends = ("--attention-backend=native", "--attention-backend=_native_math")
    result = diverge(*(f"--fastpaths=off {backend}" for backend in backends), here=here)
    here.close()
    assert (4, "transformer.transformer_blocks.0.attn") == (result.code, result.found["call"]["label"])
    assert {"processor._attention_backend": ["native", "_native_math"]} == result.found["settings"]
    assert "transformer.transformer_blocks.0.attn.to_out.0" == result.found["inner"]["label"]


def test_a_changed_scheduler_step_is_no_modules_fault(diverge: Program) -> None:
    shifts: list[str] = []

    def drifting(arm: ArmPasses) -> None:
        step = arm.subject.scheduler.step

        def changed(*args: Any, **kwargs: Any) -> Any:
            return (step(*args, **kwargs)[0] * (1 + 2**-20),)

        arm.subject.scheduler.step = changed
        shift = arm.subject.scheduler.config["base_shift"]
        shifts[:] = [str(shift), str(shift + 0.25)]
        arm.subject.scheduler.register_to_config(base_shift=shift + 0.25)

    here = ArmsHere({"candidate": drifting})
    result = diverge("--fastpaths=off", "--fastpaths=off --seed 42", here=here)
    here.close()
    assert (4, "scheduler.step", 1) == (result.code, result.found["call"]["label"], result.found["consequences"])
    assert shifts == result.found["settings"]["base_shift"]


def test_an_arm_that_does_not_repeat_itself_is_named(diverge: Program) -> None:
    result = diverge("--fastpaths=off", "--fastpaths=noisy --fastpaths-from sites.py --gate off")
    assert (4, "nondeterministic", "candidate") == (result.code, result.found["result"], result.found["arm"])
    assert "step 1 of 2: the candidate does not repeat its own bits, whatever the other arm does" in result.out
    assert NORM == result.found["call"]["label"]
    assert "site noisy in its second run: ran fused" in result.out


def test_a_text_encoder_and_a_decoder_that_differ_lie_outside_the_loop(diverge: Program) -> None:
    loaded: list[ArmPasses] = []
    here = ArmsHere({"candidate": loaded.append})
    norm, bias = "text_encoder.model.language_model.norm", "vae.decoder.conv_out"
    for label, parameter, region in ((bias, "bias", "after the loop"), (norm, "weight", "before the loop")):
        diverge("--fastpaths=off", "--fastpaths=off --seed 42", here=here) if not loaded else None
        weights = getattr(loaded[0].subject.modules[label], parameter).data
        before = weights.clone()
        weights[0] += 1e-3
        result = diverge("--fastpaths=off", "--fastpaths=off --seed 42", here=here)
        weights.copy_(before)
        assert (4, label, region) == (result.code, result.found["call"]["label"], result.found["call"]["region"])
        assert [parameter] == result.found["weights"]
    here.close()


def test_equal_arms_differ_in_nothing_and_a_gate_that_held_a_kernel_back_is_said(diverge: Program) -> None:
    result = diverge("--fastpaths=off", "--fastpaths=rounds_up --fastpaths-from sites.py")
    assert (0, "same", None) == (result.code, result.found["result"], result.found["call"])
    assert "nothing differs: latents behind all 2 steps and the decoded result are equal, bit for bit" in result.out
    assert "the gate of rounds_up let eager run instead" in result.out


@pytest.mark.parametrize(
    ("candidate", "told"),
    [
        ("--num-inference-steps 3", "the baseline runs 2 steps and the candidate 3"),
        ("--width 64", "the arms have --width 32 against 64, so their bits cannot be compared."),
        ("--dtype bfloat16", "the arms have --dtype float32 against bfloat16, so"),
        ("--prompt=another", "2 prompts were given, and diverge follows one request."),
        ("--gate=never", "The candidate: generate would refuse these flags:"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence_before_anything_is_loaded(
    diverge: Program, arms: ArmsHere, candidate: str, told: str
) -> None:
    result = diverge("--fastpaths=off --dtype float32", f"--fastpaths=off --dtype float32 {candidate}")
    assert (2, "", []) == (result.code, result.out, arms.log)
    assert told in result.err


def test_arms_of_other_seeds_are_told_so_behind_pass_1(diverge: Program, arms: ArmsHere) -> None:
    result = diverge("--fastpaths=off", "--fastpaths=off --seed 43")
    assert 4 == result.code, result.err
    assert "fuseproof: the arms differ in --seed 42 against 43" in result.err
    assert "arms (baseline against candidate): --seed 42 against 43" == result.out.splitlines()[0]
    assert ("noise", None) == (result.found["cause"], result.found["call"])
    assert 2 == sum(line.startswith("start") for line in arms.log)


@pytest.mark.parametrize(
    ("code", "told", "path"),
    [(1, "cannot be written", "/proc/x"), (2, "it must be a file", "."), (2, "cannot name a file", "x" * 300)],
)
def test_a_file_that_cannot_be_written_is_found_before_pass_1(
    diverge: Program, arms: ArmsHere, code: int, told: str, path: str
) -> None:
    result = diverge("--fastpaths=off", "--fastpaths=off --seed 43", "--json", path)
    assert (code, "") == (result.code, result.out)
    assert told in result.err
    assert [] == arms.log


def test_what_was_found_is_printed_before_it_is_written(diverge: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuseproof.harness.atomic_files.replace_whole", full_disk)
    result = diverge("--fastpaths=off", "--fastpaths=off --seed 42")
    assert (1, True) == (result.code, "nothing differs: latents behind all 2 steps" in result.out)
    assert "No space left on device" in result.err


def full_disk(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_without_a_candidate_there_is_nothing_to_do(capsys: pytest.CaptureFixture) -> None:
    assert 2 == main(["diverge", "--baseline", "--fastpaths=off"])
    assert "there is no candidate" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        (False, ""),
        (True, "--enable-breakable-cuda-graph"),
        (True, "--enable-breakable-cuda-graph=true --seed 1"),
        (True, "--enable-breakable-cuda-graph --seed 1"),
        (False, "--enable-breakable-cuda-graph --enable-breakable-cuda-graph false"),
    ],
)
def test_graphs_are_seen_in_the_flags(expected: bool, words: str) -> None:
    assert expected is _asks_for_graphs(words.split())


def test_watching_keeps_no_tensor_but_digests(arms: ArmsHere, diverge: Program) -> None:
    diverge("--fastpaths=off", "--fastpaths=off --seed 42")
    watch = CallWatch(next(iter(arms._opened.values())).subject)
    before = {id(one) for one in _tensors()}
    watch.start()
    with torch.no_grad():
        watch.subject.modules["text_encoder"](torch.arange(40)[None])
    watch.stop()
    held = [one for one in _tensors() if id(one) not in before]
    assert 30 < len(watch.calls())
    assert {2} == {one.numel() for one in held}
    assert 300 > len(held)


def _tensors() -> list[torch.Tensor]:
    gc.collect()
    return [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]


def test_arms_of_other_work_are_not_compared() -> None:
    one = [{"digest": "0", "shape": [1, 4, 64], "dtype": "float32"}] * 3
    other = [{"digest": "0", "shape": [1, 8, 64], "dtype": "float32"}] * 3
    with pytest.raises(UsageError, match=r"latents are \[1, 4, 64\] float32 against \[1, 8, 64\] float32"):
        _refuse_other_work([one, other])
    with pytest.raises(UsageError, match="the baseline runs 2 steps and the candidate 1"):
        _refuse_other_work([one, other[:2]])


def test_any_diffusers_pipeline_is_followed_by_its_own_callback(diverge: Program, tmp_path: Path) -> None:
    write_qwen_image(tmp_path / "qwen")
    sites = SITE.replace("transformer_blocks.1.norm2", "transformer_blocks.1.img_norm2")
    of_longcat = next(line for line in SITE.splitlines() if "replaces=" in line)
    (tmp_path / "sites.py").write_text(sites.replace(of_longcat, ""))
    guided = f"--model-path qwen {SMALL} --guidance-scale 3 --negative-prompt cat"
    here = ArmsHere()
    result = diverge("--seed 42", "--fastpaths=rounds_up --fastpaths-from sites.py --gate off", here=here, flags=guided)
    here.close()
    assert 4 == result.code, result.err
    assert 1 == result.found["call"]["forward"]
    assert "transformer.transformer_blocks.1.img_norm2" == result.found["call"]["label"]
    assert "QwenImagePipeline has no native pipeline: diffusers' own call is watched" in result.out
    assert [0, 1, 2] == [one["step"] for one in result.found["growth"]]


def write_qwen_image(folder: Path) -> None:
    """A small Qwen-Image, whose family has no native pipeline, around the embedded model's text encoder."""
    from diffusers import (
        AutoencoderKLQwenImage,
        FlowMatchEulerDiscreteScheduler,
        QwenImagePipeline,
        QwenImageTransformer2DModel,
    )
    from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration

    from fuseproof.pipelines.embedded import resolve_model

    source = resolve_model("embedded:longcat-image", None).folder
    text_encoder = Qwen2_5_VLForConditionalGeneration.from_pretrained(source / "text_encoder")
    torch.manual_seed(0)
    transformer = QwenImageTransformer2DModel(
        in_channels=16, out_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=text_encoder.config.text_config.hidden_size, axes_dims_rope=(8, 4, 4),
    )  # fmt: skip
    vae = AutoencoderKLQwenImage(
        base_dim=8, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True],
        latents_mean=[0.0] * 4, latents_std=[1.0] * 4,
    )  # fmt: skip
    QwenImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=AutoTokenizer.from_pretrained(source / "tokenizer"),
        transformer=transformer,
    ).save_pretrained(folder)


@pytest.mark.slow_process
@pytest.mark.timeout(600)
def test_two_refs_that_differ_in_one_line_in_fresh_processes(tmp_path: Path) -> None:
    """Both commits know nothing of this command: what watches is taken from here, all else from their trees."""
    repository = tmp_path / "repo"
    copy_of_this_checkout(repository)
    run_git(repository, "init", "--quiet", "--initial-branch=main")
    commit_all(repository, "as it is")
    file = repository / "pipelines" / "longcat_arithmetic.py"
    before = "velocity_uncond + request.guidance_scale * (velocity - velocity_uncond)"
    after = "request.guidance_scale * velocity + (1 - request.guidance_scale) * velocity_uncond"
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after))
    commit_all(repository, "another order")
    guided = f"{REQUEST} --guidance-scale 4"
    refs = ["--baseline-ref=main~1", "--candidate-ref=main", "--repo", str(repository)]
    command = [sys.executable, "-m", "fuseproof", "diverge", *refs, "--flags", guided, "--json", "-"]
    environment = {**os.environ, "FUSEPROOF_CACHE_DIR": str(tmp_path / "cache"), **IDENTITY}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert 4 == done.returncode, done.stderr
    found = json.loads(done.stdout)
    assert ("difference", 1, "guidance and step") == (found["result"], found["step"], found["call"]["label"])
    assert "scheduler.step" == found["inner"]["label"]
    assert ({}, {}) == (found["flags"], found["settings"])
    assert found["commits"]["baseline"].startswith("main~1 (commit ")


def copy_of_this_checkout(folder: Path) -> None:
    """The package as an earlier commit had it, without this command and what watches."""
    shutil.copytree(
        ROOT / "fuseproof", folder / "fuseproof", symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    for room in ("cli", "fastpaths", "harness", "pipelines", "schedules"):
        left_out = shutil.ignore_patterns("__pycache__", "diverge*.py", "divergence")
        shutil.copytree(ROOT / room, folder / room, ignore=left_out)
