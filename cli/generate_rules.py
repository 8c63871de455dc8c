"""The rules that tie the flags of ``fuseproof generate`` together; ``GenerateOptions`` applies them on creation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from fuseproof.cli import fastpath_rules, output_rules, raw_arrays
from fuseproof.cli.option_fields import flag_name
from fuseproof.errors import UsageError
from fuseproof.harness.perf.parallelism import PARALLEL_FLAGS

if TYPE_CHECKING:
    from fuseproof.cli.generate_options import GenerateOptions

PROFILE_FLAGS = ("profile_all_stages", "num_profiled_timesteps")
"""What only means something with ``--profile``."""

NAMED_PATHS = {
    "fastpaths_from": "a Python file",
    "perf_dump_path": "a JSON file to write",
    "output_path": "a folder",
    "config": "a file of flags",
    "fixed_prompt_path": "a perf dump",
}
"""What a flag must name that may not be blank, besides those whose rules say more."""


def check(options: GenerateOptions) -> None:
    """Raise :class:`UsageError` for the first rule that the flags break."""
    _check_unreleased(options)
    _check_profile(options)
    _check_named_paths(options)
    _check_load_format(options)
    _check_model_id(options)
    _check_prompts(options)
    _check_written_prompts(options)
    _check_device(options)
    fastpath_rules.check(options)
    _check_warmup(options)
    _check_graphs(options)
    output_rules.check(options)
    raw_arrays.check_rules(options)
    check_prompt_count(options, len(options.prompt))


def check_prompt_count(options: GenerateOptions, count: int) -> None:
    """Several prompts cannot share one output file. Also asked once a prompt file has been read."""
    if count > 1 and options.profile:
        raise UsageError(
            f"{count} prompts were given, and --profile is of one request.", next_step="Give one prompt a profile."
        )
    if count > 1 and options.fixed_file_name is not None:
        raise UsageError(
            f"{count} prompts cannot share the one output file {options.fixed_file_name!r}.",
            next_step="Use --output-path; each prompt then gets its own name.",
        )


def warmup_resolutions(options: GenerateOptions) -> tuple[tuple[int, int], ...]:
    """The (width, height) pairs of ``--warmup-resolutions``, which may be repeated or separated by commas."""
    texts = [text for given in options.warmup_resolutions for text in re.split(r"[,\s]+", given) if text]
    return tuple(_parse_resolution(text) for text in texts)


def warmup_mode(options: GenerateOptions) -> Literal["off", "request", "server"]:
    """The warm-up mode that the flags amount to, sglang's implications included."""
    if options.warmup_mode == "server":
        return "server"
    if options.warmup_mode is not None:
        return "request" if options.warmup_mode == "request" else "off"
    implies_request = (
        options.enable_torch_compile
        or options.enable_breakable_cuda_graph
        or options.warmup_steps is not None
        or bool(options.warmup_resolutions)
        or options.warmup_num_frames is not None
    )
    wants_warmup = implies_request if options.warmup is None else options.warmup
    return "request" if wants_warmup else "off"


def _check_unreleased(options: GenerateOptions) -> None:
    for name in PARALLEL_FLAGS:
        value = getattr(options, name)
        if value is True or (value or 1) > 1:
            shown = str(value).lower()
            raise UsageError(
                f"{flag_name(name)} is {shown}, but one process runs on one GPU in this release.",
                next_step=f"Drop {flag_name(name)}" + ("." if value is True else ", or set it to 1."),
            )
    if options.performance_mode in ("speed", "memory"):
        raise UsageError(
            f"--performance-mode {options.performance_mode} is not in this release; manual and auto are.",
            next_step="Use --performance-mode=manual: components stay where they are loaded.",
        )


def _check_profile(options: GenerateOptions) -> None:
    if not options.profile:
        for name in PROFILE_FLAGS:
            if getattr(options, name):
                raise UsageError(
                    f"{flag_name(name)} has no effect without --profile.", next_step="Add --profile, or drop it."
                )
        return
    for flag, is_on in (
        ("--verify-every-step", options.verify_every_step),
        ("--gate observe", options.gate == "observe"),
    ):
        if is_on:
            raise UsageError(
                f"{flag} computes every call twice, and a profile would show both.", next_step="Drop one of them."
            )


def _check_named_paths(options: GenerateOptions) -> None:
    for name, what in NAMED_PATHS.items():
        value = getattr(options, name)
        if value is not None and not value.strip():
            raise UsageError(f"{flag_name(name)} is {value!r}; it must name {what}.", next_step="Name it, or drop it.")


def _check_load_format(options: GenerateOptions) -> None:
    if options.load_format != "dummy":
        return
    if options.model_path.startswith("embedded:"):
        raise UsageError(
            f"--load-format dummy makes the released geometry, and --model-path {options.model_path} is a checkpoint "
            "of its own; the name of a family was expected.",
            next_step=f"Use --model-path {options.model_path.removeprefix('embedded:')}, or drop --load-format.",
        )
    if options.revision is not None:
        raise UsageError(
            f"--revision {options.revision} cannot be used with --load-format dummy, which reads no checkpoint.",
            next_step="Drop one of them.",
        )
    if options.enable_prompt_rewrite:
        raise UsageError(
            "--enable-prompt-rewrite cannot be used with --load-format dummy: random weights would write noise.",
            next_step="Drop --enable-prompt-rewrite.",
        )
    if options.use_pe:
        raise UsageError(
            "--use-pe cannot be used with --load-format dummy: random weights would write noise.",
            next_step="Drop --use-pe; --fixed-prompt draws a text that was written before.",
        )


def _check_model_id(options: GenerateOptions) -> None:
    if options.model_id is None:
        return
    if options.load_format == "dummy" or options.model_path.startswith("embedded:"):
        raise UsageError(
            f"--model-id says what a local folder holds, and --model-path {options.model_path} names its model itself.",
            next_step="Drop --model-id.",
        )


def _check_prompts(options: GenerateOptions) -> None:
    if options.prompt and options.prompt_path is not None:
        raise UsageError("--prompt and --prompt-path were both given.", next_step="Give one of them.")
    if options.prompt_path is not None and not options.prompt_path.strip():
        raise UsageError(
            f"--prompt-path is {options.prompt_path!r}; it must name a file.",
            next_step="Give a text file with one prompt per line, or use --prompt.",
        )
    if not options.prompt and options.prompt_path is None:
        raise UsageError(
            "nothing to generate: neither --prompt nor --prompt-path was given.",
            next_step='Add --prompt "a red circle", or --prompt-path FILE with one prompt per line.',
        )
    for prompt in options.prompt:
        if not prompt.strip():
            raise UsageError(f"--prompt is {prompt!r}, which holds no text.", next_step="Describe the image.")
    if not all(map(_is_unicode, options.prompt)):
        raise UsageError("a prompt is not valid UTF-8.", next_step="Pass it with --prompt-path from a UTF-8 file.")
    if not _is_unicode(options.negative_prompt or ""):
        raise UsageError("the negative prompt is not valid UTF-8.", next_step="Pass --negative-prompt in UTF-8.")


def _check_written_prompts(options: GenerateOptions) -> None:
    """Of the texts that a language model writes, or wrote once: one source for each prompt."""
    given = [name for name in ("fixed_prompt", "fixed_prompt_path") if getattr(options, name)]
    given += [name for name in ("use_pe", "enable_prompt_rewrite") if getattr(options, name)]
    if len(given) > 1 and "fixed_prompt" in given[0]:
        raise UsageError(
            f"{flag_name(given[0])} draws a text that was written before, so {flag_name(given[1])} cannot be added.",
            next_step="Drop one of them.",
        )
    if options.pe_sampling is not None and not options.use_pe:
        raise UsageError(
            f"--pe-sampling {options.pe_sampling} has no effect without --use-pe.",
            next_step="Drop it, or add --use-pe.",
        )
    for text in options.fixed_prompt:
        if not text.strip():
            raise UsageError(f"--fixed-prompt is {text!r}, which holds no text.", next_step="Drop it.")
    if not all(map(_is_unicode, options.fixed_prompt)):
        raise UsageError("a fixed prompt is not valid UTF-8.", next_step="Use --fixed-prompt-path and a perf dump.")


def _check_device(options: GenerateOptions) -> None:
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", options.device):
        raise UsageError(
            f"--device is {options.device!r}; it must be auto, cpu, cuda or cuda:N.",
            next_step="Drop --device; auto takes the first GPU, or the CPU where there is none.",
        )
    if options.device == "cpu" and options.generator_device == "cuda":
        raise UsageError(
            "--generator-device cuda needs a CUDA device, but --device is cpu.", next_step="Use --generator-device cpu."
        )


def _check_warmup(options: GenerateOptions) -> None:
    mode = warmup_mode(options)
    is_contradiction = options.warmup is not None and options.warmup_mode and options.warmup != (mode != "off")
    if is_contradiction:
        raise UsageError(
            f"--warmup={str(options.warmup).lower()} and --warmup-mode={mode} contradict each other.",
            next_step="Give one of them.",
        )
    warmup_resolutions(options)
    if mode != "off":
        return
    if options.enable_torch_compile:
        raise UsageError(
            "--enable-torch-compile without a warm-up would put compile time into the timed request.",
            next_step="Use --warmup-mode=request.",
        )
    for name in ("warmup_steps", "warmup_resolutions", "warmup_num_frames"):
        if getattr(options, name):
            raise UsageError(
                f"{flag_name(name)} has no effect while the warm-up is off.", next_step="Use --warmup-mode=request."
            )


def _check_graphs(options: GenerateOptions) -> None:
    if not options.enable_breakable_cuda_graph:
        return
    flag, drop_it = "--enable-breakable-cuda-graph", "Drop it to run without CUDA graphs."
    if options.device == "cpu":
        raise UsageError(f"{flag} cannot work on a CPU, and --device is cpu.", next_step=drop_it)
    if options.enable_torch_compile:
        raise UsageError(
            f"{flag} and --enable-torch-compile cannot be combined: each takes over the transformer's calls.",
            next_step="Drop one of them.",
        )
    if options.gate == "observe":
        raise UsageError(
            f"{flag} and --gate observe cannot be combined: a replayed graph makes no calls that could be measured.",
            next_step="Drop one of them.",
        )
    if warmup_mode(options) == "off":
        raise UsageError(
            f"{flag} without a warm-up would capture nothing, and every timed request would miss.",
            next_step="Use --warmup-mode=request, or leave the warm-up flags out.",
        )


def _parse_resolution(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,5})[xX×]([0-9]{1,5})", text)
    if match is None:
        raise UsageError(
            f"--warmup-resolutions is {text!r}; it must be WIDTHxHEIGHT, such as 1024x1024.",
            next_step="Drop it to warm the size of the request.",
        )
    return int(match[1]), int(match[2])


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
