"""A git repository that stands for an sglang checkout: its command line, its log lines and its perf dump, in 30 ms."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.harness.fake_commands import FAKE_ARM
from tests.harness.small_repositories import commit_all, run_git

MAIN = '''"""As sglang's: main is defined, and nothing calls it."""
import argparse, json, pathlib, sys, time
from datetime import UTC, datetime
import sglang, sglang.fake_arm

def main():
    began = time.monotonic()
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("subcommand", choices=["generate", "serve"])
    for flag in ("backend", "model-path", "prompt", "width", "height", "num-frames", "fps", "num-inference-steps",
                 "guidance-scale", "true-cfg-scale", "seed", "performance-mode", "quality", "warmup-mode",
                 "enable-prompt-rewrite", "warmup-resolutions", "warmup-sampling-params", "perf-dump-path",
                 "output-path", "output-file-name"):
        parser.add_argument("--" + flag)
    for flag in ("save-output", "disable-conditioning-cache", "enable-breakable-cuda-graph", "fall-back", "fail"):
        parser.add_argument("--" + flag, action="store_true")
    options = parser.parse_args()
    assert options.quality in ("exact", "lossless", "high", "extra-high"), options.quality
    say = lambda text: sys.stderr.write("[11-30 12:00:00] " + text + "\\n")
    if options.fall_back:
        say("Falling back to diffusers backend")
    if options.fail:
        say("Generation failed: no kernel image")
        return
    if options.enable_breakable_cuda_graph and sglang.CAPTURES:
        say("[Diffusion BCG] captured 3 segment(s), 4 tensor input(s) for signature x")
    file = pathlib.Path(options.output_path) / (options.output_file_name + ".png")
    sglang.fake_arm.write_png(file, sglang.GREY, 8)
    total_ms = sglang.MS + time.time_ns() % 10**8 * 1e-10
    stages = [{"name": "DenoisingStage", "duration_ms": 0.9 * total_ms}, {"name": "DecodingStage", "duration_ms": 0.05}]
    dump = {
        "timestamp": datetime.now(UTC).isoformat(), "request_id": "r", "commit_hash": "N/A", "tag": "cli_generate",
        "total_duration_ms": total_ms, "steps": stages,
        "denoise_steps_ms": [{"step": 0, "duration_ms": 0.9 * total_ms}], "memory_checkpoints": {},
        "meta": {"prompt": options.prompt, "model": options.model_path},
    }
    pathlib.Path(options.perf_dump_path).write_text(json.dumps(dump, indent=2))
    say(f"Output saved to {file}")
    say(f"Warmed-up request processed in {total_ms / 1e3:.2f} seconds (with warmup excluded)")
    say("Pixel data generated successfully in 0.01 seconds")
'''


def make_sglang(folder: Path) -> None:
    """A repository whose branch ``main`` has one commit, and ``faster`` one more on top."""
    package = folder / "python" / "sglang"
    (package / "cli").mkdir(parents=True)
    run_git(folder, "init", "--quiet", "--initial-branch=main")
    (package / "cli" / "__init__.py").touch()
    (package / "cli" / "main.py").write_text(MAIN)
    shutil.copyfile(FAKE_ARM, package / "fake_arm.py")
    commit_version(folder, "main")
    run_git(folder, "switch", "--quiet", "--create", "faster")
    commit_version(folder, "faster", ms=1.6)


def commit_version(folder: Path, message: str, *, ms: float = 2.0, grey: int = 10, captures: bool = True) -> str:
    """One more commit on the present branch: how long it takes, what it draws, and whether it captures graphs."""
    values = f"MS = {ms}\nGREY = {grey}\nCAPTURES = {captures}\n"
    (folder / "python" / "sglang" / "__init__.py").write_text(f"# {message}\n{values}")
    return commit_all(folder, message)
