"""``fuseproof generate`` end to end with a stand-in for the loaded model: what is printed, written, and left undone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fuseproof.cli import hash_seed
from fuseproof.cli.clip_outputs import pixels_of
from fuseproof.cli.generate_summary import fastpaths_lines
from fuseproof.cli.termination import Terminated
from fuseproof.errors import FuseproofError
from fuseproof.harness.media.files import array_sha256, file_sha256
from fuseproof.harness.perf.dump import read_perf_dump
from fuseproof.pipelines.families import LONGCAT_IMAGE
from tests.cli.desk import SMALL, Desk
from tests.cli.fake_session import picture

Usage = namedtuple("Usage", "total used free")


def test_the_dump_says_when_the_run_loaded_warmed_up_and_worked(desk: Desk) -> None:
    before_s = time.monotonic()
    assert 0 == desk.run("--prompt=a", "--prompt=b", *SMALL, "--warmup", "--perf-dump-path=p.json")
    phases = desk.dump()["phases"]
    assert ["load", "warm-up", "request", "request"] == [entry["phase"] for entry in phases]
    stated = [entry[key] for entry in phases for key in ("started_monotonic_s", "ended_monotonic_s")]
    moments = [before_s, *stated, time.monotonic()]
    assert sorted(moments) == moments


def test_one_request_writes_an_image_and_a_dump(desk: Desk) -> None:
    assert 0 == desk.run("--prompt", "a red panda", *SMALL, "--seed=7", "--perf-dump-path=p.json")
    image_name, dump_name = desk.files()
    assert ("p.json", "") == (dump_name, desk.err)
    request = desk.session.requests[0]
    assert ("a red panda", 64, 48, 2, 4.5, 7) == (
        request.prompt,
        request.width,
        request.height,
        request.num_inference_steps,
        request.guidance_scale,
        request.seed,
    )
    with Image.open(desk.folder / image_name) as saved:
        np.testing.assert_array_equal((picture(request) * 255).round().astype(np.uint8), np.asarray(saved))
    raw = array_sha256(picture(request))
    saved_line, times, hashes, *paths = desk.out.splitlines()
    assert f"Output saved to {image_name}" == saved_line
    assert times.startswith("worker 0.100 s, denoise 0.080 s, client ")
    assert f"raw sha256 {raw}" == hashes
    assert ["fast paths auto:", "  fused: rotary 14 calls"] == paths
    output = desk.dump()["outputs"][0]
    assert (image_name, raw, file_sha256(desk.folder / image_name), 64, 48, None) == tuple(
        output[key] for key in ("path", "raw_sha256", "file_sha256", "width", "height", "degenerate")
    )
    assert desk.session.is_closed


def test_the_dump_reads_back_and_says_what_ran(desk: Desk) -> None:
    assert 0 == desk.run("--prompt=a", *SMALL, "--perf-dump-path=deep/er/p.json", "--warmup", "--revision=main")
    dump = read_perf_dump("deep/er/p.json")
    assert (100.0, 80.0, 500.0, 250.0) == (
        dump.total_ms,
        dump.denoise_ms,
        dump.timers["load_ms"],
        dump.timers["warmup_ms"],
    )
    assert dump.timers["save_ms"] < (dump.client_ms or 0)
    expected = {
        "backend": "native",
        "backend_used": "native",
        "width": 64,
        "dtype": "float32",
        "device": "cpu",
        "generator_device": "cpu",
        "guidance_scale": 4.5,
        "resolved_revision": "main",
        "model_sha256": "a" * 64,
        "warmup_mode": "request",
        "image_sha256": [],
    }
    assert expected == {name: dump.config[name] for name in expected}
    assert ("0", "user") == tuple(dump.environment[key] for key in ("python_hash_seed", "python_hash_seed_chosen_by"))
    assert dump.outputs[0]["path"].startswith("../../outputs/")
    assert [] == dump.warnings


def test_the_same_request_gives_the_same_hashes_and_another_file(desk: Desk) -> None:
    hashes = []
    for _ in range(2):
        assert 0 == desk.run("--prompt=a", *SMALL, "--perf-dump-path=p.json")
        hashes.append([desk.dump()["outputs"][0][key] for key in ("raw_sha256", "pixels_sha256", "latents_sha256")])
    assert hashes[0] == hashes[1]
    assert 3 == len(desk.files())


def test_prompts_run_one_by_one_and_are_summed(desk: Desk) -> None:
    (desk.folder / "prompts.txt").write_text("a\n\nb\na\n")
    assert 0 == desk.run("--prompt-path=prompts.txt", *SMALL, "--perf-dump-path=p.json")
    dump = desk.dump()
    assert ["a", "b", "a"] == [request.prompt for request in desk.session.requests] == dump["meta"]["prompt"]
    assert (100.0, 300.0) == (dump["total_duration_ms"], dump["timers"]["worker_ms"])
    assert 3 == len({output["path"] for output in dump["outputs"]})
    assert dump["outputs"][0]["raw_sha256"] == dump["outputs"][2]["raw_sha256"] != dump["outputs"][1]["raw_sha256"]
    assert 3 == desk.out.count("Output saved to ") == desk.out.count("raw sha256 ")


def test_json_prints_the_dump_and_nothing_else(desk: Desk) -> None:
    assert 0 == desk.run("--prompt=a", *SMALL, "--json")
    assert "fuseproof.perf/1" == json.loads(desk.out)["schema"]


def test_without_saving_nothing_is_created(desk: Desk) -> None:
    assert 0 == desk.run("--prompt=a", *SMALL, "--no-save-output", "--perf-dump-path=p.json")
    assert ["p.json"] == [path.name for path in desk.folder.iterdir()]
    assert (None, 0.0) == (desk.dump()["outputs"][0]["path"], desk.dump()["timers"]["save_ms"])
    assert "Output saved" not in desk.out


def test_an_existing_file_is_replaced_only_with_a_word(desk: Desk) -> None:
    arguments = ("--prompt=a", *SMALL, "--output-file-path=x y/ü.png", "--perf-dump-path=p.json")
    assert 0 == desk.run(*arguments)
    assert "" == desk.err
    assert 0 == desk.run(*arguments)
    assert "existed and was replaced" in desk.err
    assert ["x y/ü.png existed and was replaced."] == desk.dump()["warnings"]
    assert ["p.json", "x y/ü.png"] == desk.files()


@pytest.mark.parametrize(
    ("prompt", "start"),
    [("../../x", "x_"), ("\N{PANDA FACE}", "image_"), ("word " * 400, "word_word_"), ("--x|`<script>", "x_script_")],
    ids=["climbing", "emoji", "2000-characters", "markup"],
)
def test_odd_prompts_become_safe_names(desk: Desk, prompt: str, start: str) -> None:
    assert 0 == desk.run(f"--prompt={prompt}", *SMALL, "--perf-dump-path=p.json")
    name, _ = desk.files()
    assert name.startswith(f"outputs/{start}")
    assert [prompt] == desk.dump()["meta"]["prompt"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--warmup"], [("a", 64, 48, 1)]),
        (["--warmup-steps=full"], [("a", 64, 48, None)]),
        (["--warmup-mode=server"], [("warmup", 64, 48, 1)]),
        (["--warmup-resolutions=32x32,64x48", "--warmup-steps=2"], [("a", 32, 32, 2), ("a", 64, 48, 2)]),
        (["--enable-torch-compile"], [("a", 64, 48, 1)]),
        ([], []),
    ],
)
def test_warmups(desk: Desk, arguments: list[str], expected: list[tuple[Any, ...]]) -> None:
    assert 0 == desk.run("--prompt=a", *SMALL, *arguments)
    asked = [(request.prompt, request.width, request.height, steps) for request, steps in desk.session.warmups]
    assert expected == asked
    assert 1 == len(desk.session.requests)


def test_the_dump_says_how_many_steps_a_warm_up_ran(desk: Desk) -> None:
    def warm_up(request: Any, steps: int | None = None) -> float:
        desk.session.warmup_steps = 5
        return 250.0

    desk.session.warm_up = warm_up  # type: ignore[method-assign]
    assert 0 == desk.run("--prompt=a", *SMALL, "--warmup-steps=1", "--perf-dump-path=p.json")
    assert 5 == desk.dump()["config"]["warmup_steps"]


def test_settings_reach_the_session(desk: Desk) -> None:
    arguments = ("--backend=auto", "--device=cpu", "--dtype=bfloat16", "--fastpaths=modulation", "--gate=observe")
    assert 0 == desk.run("--prompt=a", *SMALL, *arguments, "--quality=exact", "--attention-backend=torch_sdpa")
    expected = {
        "backend": "auto",
        "device": "cpu",
        "dtype": "bfloat16",
        "attention_backend": "native",
        "fastpaths": "modulation",
        "gate": "observe",
        "quality": "lossless",
        "enable_torch_compile": False,
        "enable_breakable_cuda_graph": False,
        "enable_prompt_rewrite": False,
        "use_pe": False,
        "certified": None,
        "verify_every_step": False,
        "user_sites": (),
        "call_observers": None,
    }
    assert expected == vars(desk.session.opened_with)


def test_the_embedded_model_has_small_defaults(desk: Desk) -> None:
    assert 0 == desk.run("--prompt=a")
    request = desk.session.requests[0]
    assert (256, 256, 8) == (request.width, request.height, request.num_inference_steps)


def test_a_fallback_is_recorded(desk: Desk) -> None:
    desk.session.backend, desk.session.fallback_reason = "diffusers", "no native loop"
    desk.session.warnings.append("fell back from native to diffusers: no native loop")
    assert 0 == desk.run("--prompt=a", *SMALL, "--backend=auto", "--perf-dump-path=p.json")
    config = desk.dump()["config"]
    assert ("auto", "diffusers", "no native loop") == (
        config["backend"],
        config["backend_used"],
        config["fallback_reason"],
    )
    assert "fell back" in desk.err


@pytest.mark.parametrize("log_level", ["info", "error"])
def test_warnings_go_to_stderr_unless_only_errors_are_wanted(desk: Desk, log_level: str) -> None:
    assert 0 == desk.run("--prompt=a", *SMALL, "--output-quality=low", f"--log-level={log_level}")
    assert (log_level == "info") == ("has no effect" in desk.err)


def test_a_constant_image_is_flagged(desk: Desk) -> None:
    desk.session.outcomes[0] = np.full((48, 64, 3), 0.5, np.float32)
    assert 0 == desk.run("--prompt=a", *SMALL, "--perf-dump-path=p.json")
    assert "constant" == desk.dump()["outputs"][0]["degenerate"]
    assert "image 0 is constant" in desk.err


@pytest.mark.parametrize(
    ("expected", "dtype", "scale"),
    [
        ("next: Try --dtype bfloat16; float16 overflows in many models.", "float16", 4),
        ("next: Try a smaller --guidance-scale, or compare the weight files", "float32", 4),
        ("next: Compare the weight files with the published ones; bfloat16 itself", "bfloat16", 1),
    ],
)
def test_the_advice_on_a_non_finite_image_fits_the_dtype(desk: Desk, expected: str, dtype: str, scale: int) -> None:
    desk.session.outcomes[0] = np.full((48, 64, 3), np.nan, np.float32)
    desk.session.dtype = dtype
    assert 1 == desk.run("--prompt=a", *SMALL, f"--guidance-scale={scale}", "--output-path=new/folder")
    assert expected in desk.err
    assert not (desk.folder / "new").exists(), "nothing was saved"


@pytest.mark.parametrize(
    ("extra", "files"), [([], []), (["--save-output", "--output-file-name=x"], ["outputs/x.png"])], ids=["", "asked"]
)
def test_a_non_finite_image_is_a_failure(desk: Desk, extra: list[str], files: list[str]) -> None:
    broken = np.full((48, 64, 3), 0.5, np.float32)
    broken[0, 0] = (np.nan, np.inf, -np.inf)
    desk.session.outcomes[0] = broken
    desk.session.dtype = "float16"
    assert 1 == desk.run("--prompt=a", *SMALL, "--perf-dump-path=p.json", *extra)
    assert "3 of 9,216 raw values of image 0 are NaN or infinite, computed in float16" in desk.err
    assert "Try --dtype bfloat16" in desk.err
    assert files == desk.files()


@pytest.mark.parametrize(
    ("outcome", "code"),
    [(FuseproofError("out of memory"), 1), (KeyboardInterrupt(), 130), (Terminated(), 143)],
    ids=["fails", "ctrl-c", "sigterm"],
)
def test_a_failure_leaves_no_dump_that_looks_like_success(desk: Desk, outcome: BaseException, code: int) -> None:
    arguments = ("--prompt=a", "--prompt=b", *SMALL, "--perf-dump-path=p.json", "--output-path=o")
    assert 0 == desk.run(*arguments)
    desk.session.requests.clear()
    desk.session.outcomes[1] = outcome
    assert code == desk.run(*arguments)
    assert "p.json" not in desk.files()
    assert "p.json.previous" in desk.files()
    assert "kept as p.json.previous" in desk.err
    assert 1 == desk.out.count("Output saved to "), "the first image was whole"
    assert 3 == sum(name.startswith("o/") for name in desk.files())
    assert desk.session.is_closed


def test_a_disk_that_fills_up_while_saving_leaves_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", no_space)
    assert 1 == desk.run("--prompt=a", *SMALL, "--perf-dump-path=p.json")
    assert "No space left on device" in desk.err
    assert [] == desk.files()


def test_a_full_disk_is_found_before_the_model_is_loaded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9, 2**20))
    assert 1 == desk.run("--prompt=a", "--width=1024", "--height=1024")
    assert "the disk has 1.0 MiB free, this run needs about" in desk.err
    assert desk.session.opened_with is None


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--height=427"], 2, "416 and 432"),
        (["--width=1920", "--height=1080"], 2, "1072 and 1088"),
        (["--warmup-resolutions=100x64"], 2, "cannot make width 100"),
        (["--output-file-name=a.png", "--no-save-output"], 2, "--output-file-name names an image, and none is written"),
        (["--output-file-path=x/a.png", "--save-output=false"], 2, "--output-file-path names an image, and none"),
        (["--warmup-resolutions=9999x9999"], 2, "next: Use --warmup-resolutions 2048x2048."),
        (["--warmup-resolutions=64x65"], 2, "next: Use --warmup-resolutions 64x64."),
        (["--perf-dump-path=quiet.yaml", "--config=quiet.yaml"], 2, "is the same file as --config"),
        (["--perf-dump-path=./good.png", "--image-path=good.png"], 2, "is the same file as --image-path"),
        (["--output-file-path=good.png", "--image-path=good.png"], 2, "the output file good.png is the same file"),
        (["--perf-dump-path=x.png", "--output-file-path=./x"], 2, "is the same file as the output file"),
        (["--perf-dump-path=taken"], 2, "is not a perf dump"),
        (["--perf-dump-path=/dev/null"], 2, "is a device"),
        (["--perf-dump-path=" + "x" * 300], 2, "cannot name a file"),
        (["--config=nul.json"], 2, "cannot name a file"),
        (["--device=tpu"], 2, "next: "),
        (["--num-inference-steps=0"], 2, "'0' is not a whole number from 1 to 1000"),
        (["--seed=-1"], 2, "from 0 to 18446744073709551615"),
        (["--output-file-name=../../x"], 2, "'../../x'"),
        (["--perf-dump-path=."], 2, "is a folder"),
        (["--output-path=taken"], 2, "is a file"),
        (["--output-path=/proc/none"], 1, "cannot be written"),
        (["--output-file-path=folder.png"], 2, "is a folder"),
        (["--prompt-path=none.txt", "--config=quiet.yaml"], 2, "both given"),
        (["--image-path=page.png"], 1, "an HTML page"),
        (["--image-path=none.png"], 1, "No such file"),
        (["--image-path=good.png"], 2, "makes images from text alone"),
        (["--num-frames=61"], 2, "--num-frames is 61"),
        (["--warmup-num-frames=61"], 2, "--warmup-num-frames is 61"),
        (["--fps=24"], 2, "--fps is 24"),
        (["--num-gpus=2"], 2, "--num-gpus is 2"),
        (["--enable-torch-compile", "--warmup-resolutions=32x32"], 2, "own 256x256"),
        (["--enable-prompt-rewrite"], 2, "text_processor"),
        (["--profile-all-stages"], 2, "no effect without --profile"),
        (["--enable-teacache"], 2, "No such option"),
        (["--config=quiet.yaml"], 2, "'colour' is not a flag"),
        (["stray"], 2, "stray"),
    ],
)
def test_every_mistake_is_a_sentence_before_anything_is_loaded(
    desk: Desk, arguments: list[str], code: int, said: str
) -> None:
    (desk.folder / "taken").write_text("notes")
    (desk.folder / "nul.json").write_text('{"perf_dump_path": "a\\u0000b"}')
    (desk.folder / "folder.png").mkdir()
    (desk.folder / "page.png").write_text("<html>")
    (desk.folder / "quiet.yaml").write_text("colour: red\n" if len(arguments) == 1 else "width: 64\n")
    Image.new("RGB", (16, 16)).save(desk.folder / "good.png")
    before = desk.files()
    assert code == desk.run("--prompt=a", *arguments)
    assert said in desk.err
    assert desk.err.startswith("fuseproof: error: ")
    assert "Traceback" not in desk.err
    assert "" == desk.out
    assert before == desk.files()
    assert desk.session.opened_with is None


def model_folder(folder: Path, index: str | None = None) -> Path:
    """A LongCat-Image folder, whole up to its text encoder's weights."""
    parts = {name: [part.library, part.classes[0]] for name, part in LONGCAT_IMAGE.components.items() if part.required}
    for name in ("scheduler", "text_encoder"):
        (folder / name).mkdir(parents=True)
    (folder / "scheduler" / "scheduler_config.json").write_text('{"a": 1}')
    (folder / "text_encoder" / "config.json").write_text('{"a": 1}')
    (folder / "model_index.json").write_text(
        json.dumps({"_class_name": "LongCatImagePipeline", **parts}) if index is None else index
    )
    return folder / "text_encoder"


@pytest.mark.parametrize(
    ("index", "weights", "said"),
    [
        (None, {"model.safetensors": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n"}, "LFS"),
        (None, {"model.safetensors.index.json": '{"weight_map": {"a": "model-1.safetensors"}}'}, "model-1.safetensors"),
        (None, {}, "text_encoder/model.safetensors is missing"),
        ("{", {}, "model_index.json"),
        (
            '{"_class_name": "ZImagePipeline"}',
            {},
            "Z-Image (ZImagePipeline) is not supported yet",
        ),
    ],
    ids=["lfs-pointer", "missing-shard", "no-weights", "bad-json", "later-pipeline"],
)
def test_a_broken_model_folder_is_a_sentence(
    real_models: Desk, index: str | None, weights: dict[str, str], said: str
) -> None:
    text_encoder = model_folder(real_models.folder / "model", index)
    for name, content in weights.items():
        (text_encoder / name).write_text(content)
    before = real_models.files()
    assert real_models.run("--prompt=a", "--model-path=./model", "--perf-dump-path=p.json") in (1, 2)
    assert said in real_models.err
    assert before == real_models.files()
    assert real_models.session.opened_with is None


@pytest.mark.parametrize(
    ("expected", "model_id"),
    [
        ("not supported yet", "Wan-AI/Wan2.2-T2V-A14B-Diffusers"),
        ("ERNIE-Image-Turbo makes images from text alone", "baidu/ERNIE-Image-Turbo"),
    ],
)
def test_what_a_published_model_cannot_do_is_said_without_a_network(
    expected: str, real_models: Desk, model_id: str
) -> None:
    assert 2 == real_models.run("--prompt=a", f"--model-path={model_id}", "--image-path=http://127.0.0.1:1/cat.png")
    assert expected in real_models.err
    assert [] == real_models.files()


@pytest.mark.parametrize(
    ("expected", "sites"),
    [
        pytest.param(["fast paths auto: none mounted"], {}, id="no-sites"),
        pytest.param(
            ["fast paths auto: none mounted"],
            {"rotary": {"state": "off", "reason": "not requested", "calls_fused": 0}},
            id="off",
        ),
        pytest.param(
            [
                "fast paths auto:",
                "  fused: rotary 14 calls, norm 1 call",
                "  rejected: modulation (3 of 9 bits differ)",
                "  declined: gelu, rope (on cpu)",
            ],
            {
                "rotary": {"state": "fused", "reason": None, "calls_fused": 14},
                "modulation": {"state": "rejected", "reason": "3 of 9 bits differ", "calls_fused": 0},
                "gelu": {"state": "declined", "reason": "on cpu", "calls_fused": 0},
                "norm": {"state": "fused", "reason": None, "calls_fused": 1},
                "rope": {"state": "declined", "reason": "on cpu", "calls_fused": 0},
            },
            id="grouped-by-state-and-reason",
        ),
    ],
)
def test_the_fast_path_lines_say_what_ran_and_why_not(expected: list[str], sites: dict[str, Any]) -> None:
    assert expected == fastpaths_lines({"requested": "auto", "sites": sites})


def test_rounding_is_that_of_diffusers() -> None:
    raw = np.concatenate([np.linspace(0, 1, 100_001), (np.arange(255) + 0.5) / 255]).astype(np.float32)
    np.testing.assert_array_equal((raw * 255).round().astype("uint8"), pixels_of(raw))


@pytest.mark.parametrize(
    ("seed", "started_as", "restarts"),
    [
        (None, ["generate", "--prompt=a"], True),
        ("", ["generate", "--prompt=a"], True),
        ("0", ["generate", "--prompt=a"], False),
        ("random", ["generate", "--prompt=a"], False),
        (None, ["-q", "tests"], False),
    ],
    ids=["unset", "empty", "fixed", "chosen-random", "called-from-python"],
)
def test_the_process_restarts_once_with_a_fixed_hash_seed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, seed: str | None, started_as: list[str], restarts: bool
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: calls.append(arguments))
    monkeypatch.setattr(sys, "argv", ["/bin/fuseproof", *started_as])
    monkeypatch.setattr(sys, "orig_argv", ["python", "/bin/fuseproof", *started_as])
    monkeypatch.setenv("PYTHONHASHSEED", "to be restored")
    monkeypatch.setenv(hash_seed.MARKER, "to be restored")
    del os.environ[hash_seed.MARKER]
    if seed is None:
        del os.environ["PYTHONHASHSEED"]
    else:
        os.environ["PYTHONHASHSEED"] = seed
    assert 0 == desk.run("--prompt=a")
    assert ([[sys.executable, "/bin/fuseproof", *started_as]] if restarts else []) == calls
    assert (not restarts and seed != "0") == ("PYTHONHASHSEED is" in desk.err)
    if restarts:
        assert ("0", "fuseproof") == tuple(hash_seed.hash_seed_record().values())


def test_importing_the_command_loads_nothing_heavy() -> None:
    code = (
        "import sys, fuseproof.cli.generate; "
        "assert sys.modules.keys().isdisjoint({'torch', 'numpy', 'PIL', 'rich', 'pydantic', 'diffusers'}); "
        "import fuseproof.cli.generation; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
