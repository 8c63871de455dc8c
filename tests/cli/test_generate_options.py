"""Flags of ``generate``: sglang's names and boolean forms, canonical values, and every cross-flag rule."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from fuseproof.cli.generate import generate, options_of
from fuseproof.cli.generate_options import GenerateOptions, WarmupPlan
from fuseproof.errors import UsageError

LONGCAT_IMAGE = """
  --backend=sglang --model-path meituan-longcat/LongCat-Image
  --prompt 'A red panda reading a book beside a sunlit window.'
  --width=1024 --height=1024 --num-inference-steps=50 --guidance-scale=4.5
  --seed=42 --enable-prompt-rewrite=false --performance-mode=manual
  --quality=lossless --warmup-mode=request --save-output --perf-dump-path image.json
"""
LONGCAT_EDIT = """
  --backend=sglang --model-path meituan-longcat/LongCat-Image-Edit
  --image-path https://github.com/lm-sys/lm-sys.github.io/releases/download/test/TI2I_Qwen_Image_Edit_Input.jpg
  --prompt 'Make the cat wear a red hat.' --seed=42
  --enable-prompt-rewrite=false --performance-mode=manual
  --quality=lossless --warmup-mode=request --save-output --perf-dump-path edit.json
"""
LONGLIVE_I2V = """
  --backend=sglang
  --model-path=Rabinovich/LongLive-2.0-5B-Diffusers
  --prompt='The cat starts walking slowly towards the camera.'
  --image-path=/path/to/input-cat.png --seed=42
  --width=960 --height=928 --num-frames=61
  --num-inference-steps=4 --guidance-scale=1.0
  --num-gpus=1 --tp-size=1 --enable-torch-compile=false
  --warmup-resolutions=960x928 --warmup-num-frames=61
  --quality=lossless --save-output --warmup-mode=request
  --perf-dump-path=/tmp/longlive2-i2v.json
  --output-path=/tmp/longlive2-i2v --output-file-name=longlive2-i2v
"""
LONGLIVE_T2V = """
  --backend=sglang
  --model-path=Rabinovich/LongLive-2.0-5B-Diffusers
  --prompt='A curious raccoon' --seed=42
  --width=832 --height=480 --num-frames=61
  --num-inference-steps=4 --guidance-scale=1.0
  --num-gpus=1 --tp-size=1 --enable-torch-compile=false
  --warmup-resolutions=832x480 --warmup-num-frames=61
  --quality=lossless --save-output --warmup-mode=request
  --perf-dump-path=/tmp/longlive2-t2v.json
  --output-path=/tmp/longlive2-t2v --output-file-name=longlive2-t2v
"""
ERNIE_TURBO = """
  --backend=sglang
  --model-path=baidu/ERNIE-Image-Turbo
  --prompt="A futuristic cyberpunk city at night, neon lights reflecting on wet streets"
  --seed=42
  --width=1024
  --height=1024
  --save-output
  --warmup
  --enable-torch-compile
  --perf-dump-path /tmp/outputs/pr_candidate/ernie-image-turbo_fused_adaln.json
"""


def parse(*arguments: str) -> GenerateOptions:
    context = generate.make_context("generate", list(arguments))
    return options_of(context, context.params)


def parse_with_prompt(*arguments: str) -> GenerateOptions:
    return parse("--prompt", "a red panda", *arguments)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        pytest.param(
            LONGCAT_IMAGE,
            {
                "backend": "native",
                "model_path": "meituan-longcat/LongCat-Image",
                "prompt": ("A red panda reading a book beside a sunlit window.",),
                "width": 1024,
                "height": 1024,
                "num_inference_steps": 50,
                "guidance_scale": 4.5,
                "seed": 42,
                "enable_prompt_rewrite": False,
                "performance_mode": "manual",
                "quality": "lossless",
                "warmup_plan": WarmupPlan("request", 1, ()),
                "saves_output": True,
                "perf_dump_path": "image.json",
            },
            id="longcat-image",
        ),
        pytest.param(
            LONGCAT_EDIT,
            {
                "model_path": "meituan-longcat/LongCat-Image-Edit",
                "image_path": (
                    "https://github.com/lm-sys/lm-sys.github.io/releases/download/test/TI2I_Qwen_Image_Edit_Input.jpg",
                ),
                "prompt": ("Make the cat wear a red hat.",),
                "width": None,
                "num_inference_steps": None,
                "guidance_scale": None,
                "perf_dump_path": "edit.json",
            },
            id="longcat-image-edit",
        ),
        pytest.param(
            LONGLIVE_I2V,
            {
                "model_path": "Rabinovich/LongLive-2.0-5B-Diffusers",
                "image_path": ("/path/to/input-cat.png",),
                "num_frames": 61,
                "guidance_scale": 1.0,
                "num_gpus": 1,
                "tp_size": 1,
                "enable_torch_compile": False,
                "warmup_num_frames": 61,
                "warmup_plan": WarmupPlan("request", 1, ((960, 928),)),
                "output_folder": Path("/tmp/longlive2-i2v"),
                "fixed_file_name": "longlive2-i2v.png",
            },
            id="longlive2-i2v",
        ),
        pytest.param(
            LONGLIVE_T2V,
            {
                "prompt": ("A curious raccoon",),
                "image_path": (),
                "width": 832,
                "height": 480,
                "warmup_plan": WarmupPlan("request", 1, ((832, 480),)),
            },
            id="longlive2-t2v",
        ),
        pytest.param(
            ERNIE_TURBO,
            {
                "model_path": "baidu/ERNIE-Image-Turbo",
                "enable_torch_compile": True,
                "warmup": True,
                "warmup_plan": WarmupPlan("request", 1, ()),
                "saves_output": True,
            },
            id="ernie-image-turbo",
        ),
    ],
)
def test_published_sglang_commands_parse(command: str, expected: dict[str, Any]) -> None:
    options = parse(*shlex.split(command))
    assert expected == {name: getattr(options, name) for name in expected}


def test_the_published_graph_variant_parses() -> None:
    options = parse(*shlex.split(LONGCAT_IMAGE + "--enable-breakable-cuda-graph --warmup-resolutions 1024x1024"))
    assert WarmupPlan("request", 1, ((1024, 1024),)) == options.warmup_plan
    assert options.enable_breakable_cuda_graph is True


def test_the_published_profile_run_is_taken_as_it_stands() -> None:
    options = parse(*shlex.split(f"{LONGCAT_IMAGE} --profile --num-profiled-timesteps 3 --profile-all-stages"))
    assert (True, 3, True) == (options.profile, options.num_profiled_timesteps, options.profile_all_stages)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--enable-torch-compile"], True),
        (["--enable-torch-compile=true"], True),
        (["--enable-torch-compile", "true"], True),
        (["--enable-torch-compile=false"], False),
        (["--enable-torch-compile", "false"], False),
        ([], False),
    ],
    ids=["bare", "=true", "true", "=false", "false", "absent"],
)
def test_boolean_forms(arguments: list[str], expected: bool) -> None:
    assert expected is parse_with_prompt(*arguments).enable_torch_compile


@pytest.mark.parametrize(
    ("arguments", "field", "expected"),
    [
        ([], "model_path", "embedded:longcat-image"),
        ([], "seed", 42),
        ([], "load_format", "auto"),
        (["--load-format", "dummy", "--model-path", "longcat-image"], "load_format", "dummy"),
        ([], "backend", "native"),
        ([], "effective_fastpaths", "auto"),
        (["--backend", "diffusers"], "effective_fastpaths", "off"),
        (["--backend", "diffusers", "--fastpaths", "auto"], "effective_fastpaths", "auto"),
        (["--fastpaths", "modulation,rotary"], "effective_fastpaths", "modulation,rotary"),
        (["--quality", "exact"], "quality", "lossless"),
        (["--attention-backend", "torch_sdpa"], "attention_backend", "native"),
        (["--mode", "auto"], "performance_mode", "auto"),
        (["--image-paths", "a.png"], "image_path", ("a.png",)),
        (["--seed", "0"], "seed", 0),
        (["--seed", str(2**64 - 1)], "seed", 2**64 - 1),
        (["--no-save-output"], "saves_output", False),
        (["--save-output=false"], "saves_output", False),
        (["--no-save-output=false"], "saves_output", True),
        ([], "asks_to_save", False),
        (["--save-output"], "asks_to_save", True),
        ([], "output_folder", Path("outputs")),
        (["--output-file-path", "a b/ü.PNG"], "output_folder", Path("a b")),
        (["--output-file-path", "a b/ü.PNG"], "fixed_file_name", "ü.PNG"),
        (["--output-file-name", "v1.2"], "fixed_file_name", "v1.2.png"),
        (["--output-file-name", "-x"], "fixed_file_name", "-x.png"),
        (["--num-frames", "1"], "num_frames", 1),
    ],
)
def test_values(arguments: list[str], field: str, expected: Any) -> None:
    assert expected == getattr(parse_with_prompt(*arguments), field)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], WarmupPlan("off", 1, ())),
        (["--warmup"], WarmupPlan("request", 1, ())),
        (["--warmup=false"], WarmupPlan("off", 1, ())),
        (["--warmup", "--warmup-mode=request", "--warmup-steps=3"], WarmupPlan("request", 3, ())),
        (["--warmup-mode=server"], WarmupPlan("server", 1, ())),
        (["--warmup-steps=full"], WarmupPlan("request", None, ())),
        (["--enable-torch-compile"], WarmupPlan("request", 1, ())),
        (["--warmup-num-frames=1"], WarmupPlan("request", 1, ())),
        (["--enable-breakable-cuda-graph"], WarmupPlan("request", 1, ())),
        (["--enable-breakable-cuda-graph", "--warmup-mode=server"], WarmupPlan("server", 1, ())),
        (
            ["--warmup-resolutions", "64x64,128X96", "--warmup-resolutions", "32x32 16x16"],
            WarmupPlan("request", 1, ((64, 64), (128, 96), (32, 32), (16, 16))),
        ),
    ],
)
def test_warmup_plan(arguments: list[str], expected: WarmupPlan) -> None:
    assert expected == parse_with_prompt(*arguments).warmup_plan


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--num-gpus=2"], "--num-gpus is 2"),
        (["--load-format=dummy"], "--model-path embedded:longcat-image is a checkpoint of its own"),
        (["--load-format=dummy", "--model-path=longcat-image", "--revision=v1"], "--revision v1 cannot be used"),
        (
            ["--load-format=dummy", "--model-path=longcat-image", "--enable-prompt-rewrite"],
            "--enable-prompt-rewrite cannot be used with --load-format dummy",
        ),
        (["--tp-size=4"], "--tp-size is 4"),
        (["--enable-cfg-parallel"], "--enable-cfg-parallel is true"),
        (["--num-profiled-timesteps=3"], "--num-profiled-timesteps has no effect without --profile"),
        (["--profile", "--gate=observe"], "--gate observe computes every call twice"),
        (["--profile", "--verify-every-step"], "--verify-every-step computes every call twice"),
        (["--profile", "--prompt=another"], "--profile is of one request"),
        (["--enable-breakable-cuda-graph", "--device=cpu"], "cannot work on a CPU"),
        (["--enable-breakable-cuda-graph", "--enable-torch-compile"], "cannot be combined: each takes over"),
        (["--enable-breakable-cuda-graph", "--gate=observe"], "--gate observe cannot be combined"),
        (["--enable-breakable-cuda-graph", "--warmup-mode=off"], "every timed request would miss"),
        (["--enable-breakable-cuda-graph", "--warmup=false"], "every timed request would miss"),
        (["--performance-mode=speed"], "--performance-mode speed"),
        (["--device=tpu"], "--device is 'tpu'"),
        (["--device=cuda:x"], "--device is 'cuda:x'"),
        (["--device=cpu", "--generator-device=cuda"], "--generator-device cuda"),
        (["--fastpaths=auto,x"], "--fastpaths is 'auto,x'"),
        (["--fastpaths="], "--fastpaths is ''"),
        (["--warmup", "--warmup-mode=off"], "contradict"),
        (["--warmup=false", "--warmup-mode=request"], "contradict"),
        (["--warmup-mode=off", "--warmup-steps=2"], "--warmup-steps has no effect"),
        (["--warmup-mode=off", "--enable-torch-compile"], "compile time into the timed request"),
        (["--warmup-resolutions=1024"], "'1024'"),
        (["--save-output", "--no-save-output"], "contradict"),
        (["--output-file-path=a.png", "--output-path=b"], "--output-file-path"),
        (["--output-file-path=a/"], "must end in a file name"),
        (["--output-file-name=../../x"], "plain file name"),
        (["--output-file-name=a\\b"], "plain file name"),
        (["--output-file-name=.."], "plain file name"),
        (["--output-file-name="], "plain file name"),
        (["--output-file-name=x.jpg"], "'x.jpg' does not end in .png"),
        (["--output-file-name", "x" * 300], "longer than 250 bytes"),
        (["--prompt=b", "--output-file-name=x"], "2 prompts cannot share"),
        (["--prompt-path=p.txt"], "both given"),
        (["--prompt-path="], "both given"),
        (["--output-file-path="], "must end in a file name"),
        (["--prompt="], "holds no text"),
        (["--prompt=  "], "holds no text"),
        (["--prompt=\udcff"], "not valid UTF-8"),
    ],
)
def test_cross_flag_rules(arguments: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_with_prompt(*arguments)
    assert said in caught.value.message
    assert caught.value.next_step


def test_an_empty_prompt_path_is_named() -> None:
    with pytest.raises(UsageError, match="--prompt-path is ''"):
        parse("--prompt-path=")


def test_no_prompt_is_an_error_with_a_next_step() -> None:
    with pytest.raises(UsageError, match="nothing to generate") as caught:
        parse()
    assert "--prompt" in (caught.value.next_step or "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seed=-1"], "'-1' is not a whole number from 0 to 18446744073709551615"),
        (["--seed", str(2**64)], "is not a whole number from 0 to"),
        (["--seed=abc"], "'abc' is not a whole number"),
        (["--seed=1e3"], "'1e3' is not a whole number"),
        (["--num-inference-steps=0"], "'0' is not a whole number from 1 to 1000"),
        (["--width=0"], "'0' is not a whole number"),
        (["--guidance-scale=nan"], "'nan' is not a finite number"),
        (["--guidance-scale=inf"], "'inf' is not a finite number"),
        (["--guidance-scale=-1"], "'-1' is not a finite number >= 0"),
        (["--cfg-renorm-min=1.5"], "from 0 to 1"),
        (["--backend=vllm"], "'vllm' is not one of native, diffusers, reference, auto, sglang"),
        (["--load-format=safetensors"], "'safetensors' is not one of auto, dummy"),
        (["--warmup-steps=0"], "neither a whole number from 1 to 1000 nor full"),
        (["--enable-torch-compile=maybe"], "'maybe' is not a valid boolean; write true or false (also 1, 0,"),
        (["--enable-torch-compile="], "'' is not a valid boolean; write true or false"),
        (["--save-output", " "], "' ' is not a valid boolean"),
        (["--enable-teacache"], "No such option"),
    ],
)
def test_bad_values_name_the_flag_and_the_range(arguments: list[str], said: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        parse_with_prompt(*arguments)
    assert said in caught.value.format_message()
    assert 2 == caught.value.exit_code


def test_a_prompt_may_begin_with_dashes() -> None:
    assert ("--x",) == parse("--prompt=--x").prompt


def test_flags_without_effect_on_a_png_are_accepted_with_a_warning() -> None:
    options = parse_with_prompt("--output-quality=high", "--output-compression=80")
    assert 2 == len(options.warnings())
    assert () == parse_with_prompt("--output-quality=maximum").warnings()


def test_the_options_are_frozen_and_every_flag_has_help() -> None:
    options = parse_with_prompt()
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.seed = 1  # type: ignore[misc]
    assert [] == [p.name for p in generate.params if isinstance(p, click.Option) and not p.help]


def test_config_of_a_dump_holds_effective_values_as_json() -> None:
    config = parse_with_prompt("--warmup", "--backend=sglang", "--image-path=a.png").as_config()
    expected = {
        "backend": "native",
        "warmup_mode": "request",
        "warmup_steps": 1,
        "image_path": ["a.png"],
        "num_frames": 1,
    }
    assert expected == {name: config[name] for name in expected}
    assert "prompt" not in config


@pytest.mark.parametrize("flag", ["--fastpaths-from", "--perf-dump-path", "--output-path"])
def test_a_blank_path_is_told_with_its_flag(flag: str) -> None:
    with pytest.raises(UsageError, match=f"^{flag} is ''; it must name a"):
        parse("--prompt=a", f"{flag}=")


@pytest.mark.parametrize(
    ("flag", "field"),
    [
        ("--prompt-path", "prompt_path"),
        ("--fastpaths-from", "fastpaths_from"),
        ("--certificate", "certificate"),
        ("--output-path", "output_path"),
        ("--output-file-path", "output_file_path"),
        ("--perf-dump-path", "perf_dump_path"),
        ("--config", "config"),
    ],
)
def test_every_path_expands_a_home_folder(
    flag: str, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "x.yaml").write_text("seed: 1")
    prompt = [] if flag == "--prompt-path" else ["--prompt=a"]
    assert f"{tmp_path}/x.yaml" == getattr(parse(*prompt, f"{flag}=~/x.yaml"), field)


def test_an_image_path_expands_and_a_url_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/anna")
    options = parse("--prompt=a", "--image-path=~/x.png", "--image-path=http://h/~/x.png")
    assert ("/home/anna/x.png", "http://h/~/x.png") == options.image_path


def test_a_negative_prompt_is_called_by_its_name() -> None:
    with pytest.raises(UsageError, match="the negative prompt is not valid UTF-8"):
        parse("--prompt=a", "--negative-prompt=\udcff")
