"""Every flag of ``fuseproof generate``, and the one typed object that they become.

The names and boolean forms are sglang-diffusion's, so that a published ``sglang generate`` command runs with only the
program's name changed. A flag that cannot have its effect here is refused with a sentence; it is never ignored.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal

import click

from fuseproof.cli import generate_rules
from fuseproof.cli.option_fields import FiniteNumber, Name, PathText, flag, switch, whole

DEFAULT_MODEL = "embedded:longcat-image"
LARGEST_SEED = 2**64 - 1
LARGEST_SIDE = 16384
WARMUP_SYNTHETIC_PROMPT = "warmup"
ATTENTION_BACKENDS = (
    "native",
    "_native_math",
    "_native_efficient",
    "_native_flash",
    "_native_cudnn",
    "flash",
    "_flash_3",
    "flex",
    "sage",
    "xformers",
)
ATTENTION_ALIASES = {"torch_sdpa": "native", "sdpa": "native", "fa": "flash", "fa3": "_flash_3", "sage_attn": "sage"}
REFERENCE_BACKENDS = ("diffusers", "reference")
EXCLUSIVE_GROUPS: tuple[frozenset[str], ...] = (
    frozenset({"prompt", "prompt_path"}),
    frozenset({"fixed_prompt", "fixed_prompt_path"}),
    frozenset({"save_output", "no_save_output"}),
    frozenset({"warmup", "warmup_mode"}),
    frozenset({"output_path", "output_file_name", "output_file_path"}),
)
"""Flags that speak about one thing: one of them on the command line silences the others' values in a config file."""
UNRECORDED_FIELDS = frozenset({"prompt", "no_save_output", "as_json", "log_level", "show"})
"""Not part of a dump's ``config``: recorded elsewhere, folded into another field, or without effect on the run."""


class WarmupSteps(click.ParamType["int | str"]):
    """A positive number of steps, or ``full``."""

    name = "steps"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Return the number, or ``"full"``."""
        text = str(value)
        if text == "full":
            return text
        if not re.fullmatch(r"[0-9]{1,4}", text) or not 1 <= int(text) <= 1000:
            self.fail(f"{text!r} is neither a whole number from 1 to 1000 nor full.", param, ctx)
        return int(text)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Show both forms."""
        return "[N|full]"


@dataclass(frozen=True)
class WarmupPlan:
    """What runs before the first timed request and is left out of every number."""

    mode: Literal["off", "request", "server"]
    steps: int | None
    """Denoise steps of a warm-up; None runs all steps of the request."""
    resolutions: tuple[tuple[int, int], ...]
    """(width, height) pairs; empty warms the size of the request itself."""


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """The flags as parsed, canonical names only. Building one checks every rule and raises :class:`UsageError`."""

    model_path: str = flag(
        "--model-path", default=DEFAULT_MODEL, description="Folder, Hugging Face id, or embedded:FAMILY."
    )
    load_format: str = flag(
        "--load-format",
        type=Name("auto", "dummy"),
        default="auto",
        description="dummy makes seeded random weights of the released geometry on the device, for measuring speed: "
        "--model-path then names a family or its published id, and nothing is read or downloaded.",
    )
    revision: str | None = flag("--revision", description="Branch, tag or commit of a Hugging Face model.")
    model_id: str | None = flag(
        "--model-id",
        description="Published model that a local folder holds, where its files do not tell: "
        "meituan-longcat/LongCat-Image-Edit-Turbo, baidu/ERNIE-Image-Turbo.",
    )
    backend: str = flag(
        "--backend",
        type=Name("native", "diffusers", "reference", "auto", aliases={"sglang": "native"}),
        default="native",
        description="diffusers is the reference; of a model that it does not have, reference is, our own eager one. "
        "Only auto may fall back, and it records that it did.",
    )
    prompt: tuple[str, ...] = flag(
        "--prompt", multiple=True, description="What to draw; repeat it for several requests, run one by one."
    )
    prompt_path: str | None = flag(
        "--prompt-path", type=PathText(), description="UTF-8 file with one prompt per line; blank lines are skipped."
    )
    negative_prompt: str | None = flag("--negative-prompt", description="What to steer away from.")
    image_path: tuple[str, ...] = flag(
        "--image-path",
        "--image-paths",
        type=PathText(),
        multiple=True,
        description="Image to edit, whose aspect the canvas follows, or to begin a video with, scaled to its size: a "
        "file or an http(s) URL (docs/image-inputs.md).",
    )
    width: int | None = whole("--width", minimum=1, maximum=LARGEST_SIDE, description="Pixels; default: the model's.")
    height: int | None = whole("--height", minimum=1, maximum=LARGEST_SIDE, description="Pixels; default: the model's.")
    num_inference_steps: int | None = whole(
        "--num-inference-steps", minimum=1, maximum=1000, description="Denoise steps; default: the model's."
    )
    guidance_scale: float | None = flag(
        "--guidance-scale",
        type=FiniteNumber(0.0),
        description="Guidance; 1 or less runs one branch. Default: the model's.",
    )
    seed: int = whole(
        "--seed", minimum=0, maximum=LARGEST_SEED, default=42, description="0 to 2**64-1, the same for every prompt."
    )
    generator_device: str = flag(
        "--generator-device",
        type=Name("cpu", "cuda"),
        default="cpu",
        description="Where the noise is drawn; cpu gives the same noise on every machine.",
    )
    quality: str = flag(
        "--quality",
        type=Name("lossless", "extra-high", "high", aliases={"exact": "lossless"}),
        default="lossless",
        description="What fast paths may change: lossless (also called exact) nothing, extra-high the rounding, high "
        "the precision.",
    )
    enable_cfg_renorm: bool | None = switch(
        "--enable-cfg-renorm",
        default=None,
        description="Renormalise guided predictions. [default: true for LongCat-Image; the others cannot]",
    )
    cfg_renorm_min: float = flag(
        "--cfg-renorm-min", type=FiniteNumber(0.0, 1.0), default=0.0, description="Smallest renormalisation factor."
    )
    enable_prompt_rewrite: bool = switch(
        "--enable-prompt-rewrite",
        description="Let the model's language model rewrite the prompt first. Off here, unlike in sglang: the rewrite "
        "takes a different time for every prompt and would make timings meaningless.",
    )
    use_pe: bool = switch(
        "--use-pe",
        description="Let the model's prompt enhancer write the text that is drawn (ERNIE-Image). Off here, unlike in "
        "diffusers and sglang: it takes a different time for every prompt. The text is recorded in the perf dump.",
    )
    pe_sampling: str | None = flag(
        "--pe-sampling",
        type=Name("seeded", "greedy"),
        description="How it writes: seeded as diffusers samples, but by --seed, so that runs repeat; greedy without "
        "sampling. [default: seeded]",
    )
    fixed_prompt: tuple[str, ...] = flag(
        "--fixed-prompt",
        multiple=True,
        description="Text to draw in the prompt's place, one for each prompt: what an enhancer wrote once, so that "
        "every run draws the same.",
    )
    fixed_prompt_path: str | None = flag(
        "--fixed-prompt-path",
        type=PathText(),
        metavar="FILE",
        description="The same from the perf dump of a run with --use-pe and the same prompts.",
    )
    num_frames: int | None = whole("--num-frames", minimum=1, description="Frames of a video; default: the model's.")
    fps: float | None = flag("--fps", type=FiniteNumber(0.001), description="Frames a second of a video.")
    fastpaths: str | None = flag(
        "--fastpaths",
        metavar="[auto|off|NAME,...]",
        description="Exact fast paths to mount. [default: auto; off with --backend diffusers and reference]",
    )
    gate: str = flag(
        "--gate",
        type=Name("enforce", "observe", "off"),
        default="enforce",
        description="First-sight check of a fast path: keep only equal bits, only report, or trust.",
    )
    fastpaths_from: str | None = flag(
        "--fastpaths-from",
        type=PathText(),
        metavar="FILE",
        description="Python file with fast paths of your own, SITES = [UserSite(...)], mounted with the built-in ones.",
    )
    require_fastpaths: bool = switch(
        "--require-fastpaths",
        description="Exit with 6 unless every requested fast path ran with eager's bits; the message says which did "
        "not, and why. With auto, one that has nothing to do in the request does not count; one that is named does.",
    )
    verify_every_step: bool = switch(
        "--verify-every-step",
        description="Run fused and eager side by side at every call of every step: a check, whose times mean nothing. "
        "Exit with 1 where the bits differ.",
    )
    certificate: str = flag(
        "--certificate",
        type=PathText(),
        default="auto",
        metavar="[auto|off|FILE]",
        description="Skip the first-sight check for what `fuseproof fastpaths verify` has checked; auto takes this "
        "machine's own certificate, where it still holds.",
    )
    enable_torch_compile: bool = switch(
        "--enable-torch-compile", description="Compile the transformer; turns a request warm-up on, compile time apart."
    )
    enable_breakable_cuda_graph: bool = switch(
        "--enable-breakable-cuda-graph",
        description="Capture the transformer as CUDA graphs in a request warm-up and replay them; a timed call that no "
        "graph answers makes the measurement invalid (exit code 6).",
    )
    device: str = flag("--device", default="auto", metavar="[auto|cpu|cuda|cuda:N]", description="Where to run.")
    dtype: str = flag(
        "--dtype",
        type=Name("auto", "float32", "bfloat16", "float16"),
        default="auto",
        description="Weights and arithmetic; auto is float32 on a CPU and bfloat16 on CUDA.",
    )
    attention_backend: str | None = flag(
        "--attention-backend",
        type=Name(*ATTENTION_BACKENDS, aliases=ATTENTION_ALIASES),
        description="Attention kernels, by diffusers' or sglang's name. [default: native, torch's own]",
    )
    performance_mode: str = flag(
        "--performance-mode",
        "--mode",
        type=Name("manual", "auto", "speed", "memory"),
        default="manual",
        description="Only manual and auto: components always stay where they are loaded.",
    )
    num_gpus: int = whole("--num-gpus", minimum=1, default=1, description="Only 1 in this release.")
    tp_size: int | None = whole("--tp-size", minimum=1, description="Only 1 in this release.")
    sp_degree: int | None = whole("--sp-degree", minimum=1, description="Only 1 in this release.")
    ulysses_degree: int | None = whole("--ulysses-degree", minimum=1, description="Only 1 in this release.")
    ring_degree: int | None = whole("--ring-degree", minimum=1, description="Only 1 in this release.")
    dp_size: int | None = whole("--dp-size", minimum=1, description="Only 1 in this release.")
    cfg_parallel_size: int | None = whole("--cfg-parallel-size", minimum=1, description="Only 1 in this release.")
    enable_cfg_parallel: bool = switch("--enable-cfg-parallel", description="Only false in this release.")
    warmup: bool | None = switch("--warmup", default=None, description="Short for --warmup-mode=request.")
    warmup_mode: str | None = flag(
        "--warmup-mode",
        type=Name("off", "request", "server"),
        description="Run before the first timed request: a copy of it, or (server) one with the prompt "
        f"'{WARMUP_SYNTHETIC_PROMPT}'. [default: off; request when compiling, capturing "
        "graphs, or when another warm-up flag is given]",
    )
    warmup_steps: int | str | None = flag(
        "--warmup-steps", type=WarmupSteps(), description="Denoise steps of a warm-up. [default: 1]"
    )
    warmup_resolutions: tuple[str, ...] = flag(
        "--warmup-resolutions",
        multiple=True,
        metavar="WxH",
        description="Sizes to warm instead of the request's own; with CUDA graphs, to capture besides it.",
    )
    warmup_num_frames: int | None = whole("--warmup-num-frames", minimum=1, description="Frames of a video warm-up.")
    save_output: bool | None = switch(
        "--save-output", default=None, description="Write a PNG, or an MP4 of a video, per prompt. [default: true]"
    )
    no_save_output: bool | None = switch(
        "--no-save-output", default=None, description="Measure and hash, write no image."
    )
    output_path: str | None = flag(
        "--output-path", type=PathText(), metavar="DIR", description="Output folder. [default: outputs]"
    )
    output_file_name: str | None = flag(
        "--output-file-name", description="File name in that folder. [default: from the prompt, the time and a hash]"
    )
    output_file_path: str | None = flag(
        "--output-file-path", type=PathText(), description="Folder and file name at once."
    )
    output_quality: str | None = flag(
        "--output-quality",
        type=Name("default", "maximum", "high", "medium", "low"),
        description="How much a video's encoder keeps. A PNG is lossless at every setting, and a warning says so.",
    )
    output_compression: int | None = whole(
        "--output-compression",
        minimum=0,
        maximum=100,
        description="Accepted for sglang's sake: no effect, and a warning says so.",
    )
    show: bool = switch(
        "--show",
        description="Draw each picture in the terminal too, where it can show one; nothing with --json.",
    )
    profile: bool = switch(
        "--profile",
        description="Run the request under torch's profiler, and write NAME.profile/ beside the output "
        "(docs/profile.md). Its times are no measurement, and the dump says so.",
    )
    profile_all_stages: bool = switch(
        "--profile-all-stages", description="With --profile: the other stages, too, not denoise steps alone."
    )
    num_profiled_timesteps: int | None = whole(
        "--num-profiled-timesteps",
        minimum=1,
        maximum=1000,
        description="With --profile: how many complete denoise steps. [default: 5]",
    )
    perf_dump_path: str | None = flag(
        "--perf-dump-path", type=PathText(), metavar="FILE", description="Write timings and hashes as JSON."
    )
    keep_raw: bool = switch(
        "--keep-raw",
        description="Keep each decoded array, from before the uint8 conversion, as raw/NAME.npy beside the perf dump.",
    )
    config: str | None = flag(
        "--config",
        type=PathText(),
        metavar="FILE",
        description="TOML, YAML or JSON with any of these flags; the command line wins.",
    )
    log_level: str = flag(
        "--log-level",
        type=Name("debug", "info", "warning", "error"),
        default="info",
        description="What stderr shows: settings too, progress too, warnings, or errors only.",
    )
    as_json: bool = False

    def __post_init__(self) -> None:
        """Check every cross-flag rule."""
        generate_rules.check(self)

    @property
    def saves_output(self) -> bool:
        """Whether images are written."""
        return self.save_output is not False and not self.no_save_output

    @property
    def asks_to_save(self) -> bool:
        """Whether saving was asked for in so many words, which keeps even a broken image for inspection."""
        return self.saves_output and self.save_output is True

    @property
    def output_folder(self) -> Path:
        """Where images go."""
        return (
            Path(self.output_path or "outputs") if self.output_file_path is None else Path(self.output_file_path).parent
        )

    @property
    def fixed_file_name(self) -> str | None:
        """The file name that was asked for, with ``.png`` where it has neither ending; None derives one per prompt."""
        name = self.output_file_name if self.output_file_path is None else PurePath(self.output_file_path).name
        if name is None or name.lower().endswith((".png", ".mp4")):
            return name
        return f"{name}.png"

    @property
    def effective_fastpaths(self) -> str:
        """``auto``, ``off`` or names: a reference backend mounts nothing unless told to."""
        return self.fastpaths or ("off" if self.backend in REFERENCE_BACKENDS else "auto")

    @property
    def warmup_plan(self) -> WarmupPlan:
        """The warm-up that the flags amount to."""
        mode = generate_rules.warmup_mode(self)
        steps = None if self.warmup_steps == "full" else int(self.warmup_steps or 1)
        return WarmupPlan(mode, steps, generate_rules.warmup_resolutions(self))

    def warnings(self, *, makes_video: bool = False) -> tuple[str, ...]:
        """What was accepted although it changes nothing, one sentence each."""
        found = []
        if makes_video:
            needless = "a video's compression is set by --output-quality"
            return () if self.output_compression is None else (f"--output-compression has no effect: {needless}.",)
        if self.output_quality not in (None, "default", "maximum"):
            found.append(f"--output-quality {self.output_quality} has no effect: images are written as lossless PNG.")
        if self.output_compression is not None:
            found.append("--output-compression has no effect: images are written as lossless PNG.")
        return tuple(found)

    def as_config(self) -> dict[str, Any]:
        """The effective flags by name, JSON-ready; sizes and the like that a model decides stay None here."""
        config = {
            field.name: value
            for field in dataclasses.fields(self)
            if field.name not in UNRECORDED_FIELDS
            for value in (getattr(self, field.name),)
        }
        plan = self.warmup_plan
        is_warm = plan.mode != "off"
        return {name: list(value) if isinstance(value, tuple) else value for name, value in config.items()} | {
            "attention_backend": self.attention_backend or "native",
            "fastpaths": self.effective_fastpaths,
            "num_frames": self.num_frames or 1,
            "pe_sampling": (self.pe_sampling or "seeded") if self.use_pe else None,
            "output_path": str(self.output_folder),
            "save_output": self.saves_output,
            "warmup": is_warm,
            "warmup_mode": plan.mode,
            "warmup_steps": ("full" if plan.steps is None else plan.steps) if is_warm else None,
            "warmup_resolutions": [f"{width}x{height}" for width, height in plan.resolutions],
        }
