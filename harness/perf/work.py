"""Did two runs do the same work, and was it measured the same way? Unequal work has no speed-up.

Three kinds of difference: ``work`` (another prompt, model, size, seed, number of steps ...) and ``measurement``
(another warm-up or timer) forbid a comparison; a ``note`` is worth knowing and often the very thing that is compared
(commit, fast paths, dtype). What a dump does not record cannot be checked, and is listed as such.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

from fuseproof.harness.machine.redaction import redact
from fuseproof.harness.perf import determinism
from fuseproof.harness.perf.dump import PerfDump
from fuseproof.harness.perf.saving import saves_inside

Kind = Literal["work", "measurement", "note"]

WORK_FLAGS = (
    "width",
    "height",
    "num_frames",
    "batch_size",
    "num_outputs_per_prompt",
    "num_images_per_prompt",
    "seed",
    "guidance_scale",
    "guidance_scale_2",
    "true_cfg_scale",
    "num_inference_steps",
    "negative_prompt",
    "generator_device",
    "enable_cfg_renorm",
    "cfg_renorm_min",
    "enable_prompt_rewrite",
    "use_pe",
    "pe_sampling",
    "fixed_prompt",
    "image_sha256",
    "video_sha256",
    "audio_sha256",
    "mask_sha256",
    "resolved_revision",
    "load_format",
    "weights",
    "weights_kind",
    "weights_sha256",
    "scheduler",
    "shift",
    "flow_shift",
    "conditioning_cache_hits",
)
MEASUREMENT_FLAGS = (
    "timer",
    "warmup",
    "warmup_mode",
    "warmup_steps",
    "warmup_resolutions",
    "warmup_num_frames",
    "warmup_sampling_params",
    "verify_every_step",
)
DECIDED_BY_THE_MODEL = ("width", "height", "num_frames", "num_inference_steps", "guidance_scale")
"""Flags whose null means "the model's default, not written down", which cannot be compared."""

EXPECTED_FLAGS = ("width", "height", "seed", "guidance_scale", "warmup_mode", "warmup_steps")
"""Flags whose absence is worth a line: sglang's dumps record none of them."""

IRRELEVANT_FLAGS = frozenset(
    {
        "config",
        "json",
        "log_level",
        "model_path",
        "output_file_name",
        "output_file_path",
        "output_path",
        "perf_dump_path",
        "prompt",
        "prompt_path",
        "fixed_prompt_path",
    }
)

TRANSFORMER_CALLS, TRANSFORMER_TOKENS = "transformer calls", "transformer tokens"

DOUBTFUL_SPEEDUP = 3.0
EXCESSIVE_SPEEDUP = 10.0
"""A candidate this much faster has almost always done less; KernelBench draws the same line."""
SPEED_FIELD = "excessive speed-up"
UNBELIEVED = "more than is usually believed"


@dataclass(frozen=True)
class Difference:
    """One thing in which a run differs from the baseline run, as text that is safe to print."""

    kind: Kind
    field: str
    baseline: str
    other: str
    sentence: str = ""
    """Said instead of "field: baseline against other", where that would be no English."""

    def __str__(self) -> str:
        return self.sentence or f"{self.field}: {self.baseline} against {self.other}"


@dataclass(frozen=True)
class WorkCheck:
    """The differences between a baseline run and another one, and what could not be checked."""

    label: str
    differences: tuple[Difference, ...]
    unchecked: tuple[str, ...]

    @property
    def blocking(self) -> tuple[Difference, ...]:
        """The differences that forbid a comparison."""
        return tuple(difference for difference in self.differences if difference.kind != "note")

    @property
    def notes(self) -> tuple[Difference, ...]:
        """The differences that are worth knowing."""
        return tuple(difference for difference in self.differences if difference.kind == "note")

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return asdict(self) | {"is_equal_work": not self.blocking}


Fact = Callable[[PerfDump], Any]
"""Reads one comparable value from a dump; None or empty when the dump does not record it."""

FACTS: tuple[tuple[Kind, str, Fact], ...] = (
    ("work", "model", lambda dump: dump.model),
    ("work", "prompt", lambda dump: list(dump.prompts)),
    ("work", "requests", lambda dump: len(dump.requests) or None),
    ("work", "rewritten prompts", lambda dump: _of_requests(dump, "rewritten_prompt")),
    ("work", "denoise steps", lambda dump: len(dump.denoise_steps_ms) or None),
    ("work", "seeds of the requests", lambda dump: _of_requests(dump, "seed")),
    ("work", TRANSFORMER_CALLS, lambda dump: _work_counter(dump, "transformer_calls")),
    ("work", TRANSFORMER_TOKENS, lambda dump: _work_counter(dump, "transformer_tokens")),
    ("work", "scheduler", lambda dump: dump.environment.get("scheduler")),
    ("work", "conditioning cache hits", lambda dump: _of_requests(dump, "conditioning_cache_hits")),
    ("measurement", "timer", lambda dump: dump.raw.get("timer")),
    ("measurement", "warm-up", lambda dump: dump.raw.get("warmup")),
    ("measurement", "saving inside the worker's time", saves_inside),
    ("note", "commit", lambda dump: dump.commit_hash),
    ("note", "torch threads", lambda dump: dump.environment.get("torch_threads")),
    ("note", "TF32 policy", lambda dump: dump.environment.get("allow_tf32")),
    ("note", "rounding policy", lambda dump: dump.environment.get("numerics")),
    ("note", "residency", lambda dump: _residency(dump, "components")),
    ("note", "offload", lambda dump: _residency(dump, "offload")),
    ("note", determinism.HASH_SEED, determinism.hash_seed),
    *(("note", name, partial(determinism.variable, name=name)) for name in determinism.VARIABLES),
    *(("note", name, partial(determinism.switch, name=name)) for name in determinism.SWITCHES),
    ("note", "dump schema", lambda dump: dump.schema or "sglang"),
)
EXPECTED_FACTS = ("model", "prompt", "denoise steps", "commit")


def check_equal_work(
    baseline: PerfDump, other: PerfDump, label: str | None = None, *, judges_speed: bool = True
) -> WorkCheck:
    """Compare everything the two dumps record about what was asked for and how it was measured.

    A speed-up that is too good to be true counts as unequal work; ``judges_speed=False`` leaves times alone.
    """
    differences: list[Difference] = []
    unchecked: list[str] = []
    for kind, field, fact in FACTS:
        before, after = fact(baseline), fact(other)
        if _is_missing(before) or _is_missing(after):
            unchecked += [field] if field in EXPECTED_FACTS else []
        elif before != after:
            differences.append(Difference(kind, field, *_differing_texts(before, after)))
    differences = _with_calls_as_note(differences, baseline, other)
    differences += _flag_differences(baseline.config, other.config)
    differences += _version_differences(baseline.environment, other.environment)
    differences += _output_differences(baseline, other)
    differences += excessive_speedup(baseline.worker_ms, other.worker_ms) if judges_speed else []
    unchecked += determinism.recorded_by_one(baseline, other)
    unchecked += [flag for flag in EXPECTED_FLAGS if not _has_flag(flag, baseline.config, other.config)]
    return WorkCheck(label or other.label, tuple(differences), tuple(unchecked))


def _differing_texts(before: Any, after: Any) -> tuple[str, str]:
    """Both values as text; of two tables only the entries in which they differ."""
    if not (isinstance(before, Mapping) and isinstance(after, Mapping)):
        return value_text(before), value_text(after)
    names = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
    sides = (
        ", ".join(f"{name} {_plain(own[name])}" if name in own else f"no {name}" for name in names)
        for own in (before, after)
    )
    baseline, other = sides
    return value_text(baseline), value_text(other)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else value_text(value)


def _with_calls_as_note(differences: list[Difference], baseline: PerfDump, other: PerfDump) -> list[Difference]:
    """The same work in fewer, larger calls is equal work: where all batch x tokens agree, calls are only shown."""
    tokens = [_work_counter(dump, "transformer_tokens") for dump in (baseline, other)]
    if tokens[0] is None or tokens[0] != tokens[1]:
        return differences
    return [replace(found, kind="note") if found.field == TRANSFORMER_CALLS else found for found in differences]


def _flag_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    differences = []
    for flag in dict.fromkeys([*before, *after]):
        if flag in IRRELEVANT_FLAGS or not _has_flag(flag, before, after) or before[flag] == after[flag]:
            continue
        differences.append(Difference(flag_kind(flag), flag, value_text(before[flag]), value_text(after[flag])))
    return differences


def _has_flag(flag: str, *configs: Mapping[str, Any]) -> bool:
    is_undecided = flag in DECIDED_BY_THE_MODEL
    return all(flag in config and not (is_undecided and config[flag] is None) for config in configs)


def flag_kind(flag: str) -> Kind:
    """Whether a flag says what was asked for ("work"), how it was measured, or something that may be compared."""
    if flag in WORK_FLAGS:
        return "work"
    return "measurement" if flag in MEASUREMENT_FLAGS else "note"


def _version_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    old, new = _versions(before), _versions(after)
    return [
        Difference("note", f"{name} version", value_text(old[name]), value_text(new[name]))
        for name in old
        if name in new and old[name] != new[name]
    ]


def _versions(environment: Mapping[str, Any]) -> dict[str, Any]:
    libraries, python = environment.get("libraries"), environment.get("python")
    versions = dict(libraries) if isinstance(libraries, dict) else {}
    return versions | ({"python": python.get("version")} if isinstance(python, dict) else {})


def _output_differences(baseline: PerfDump, other: PerfDump) -> list[Difference]:
    for level in ("raw_sha256", "pixels_sha256"):
        before = [output.get(level) for output in baseline.outputs]
        after = [output.get(level) for output in other.outputs]
        if before and after and all(before) and all(after):
            differ = f"{len(after)} output(s), not the same {level}"
            return [] if before == after else [Difference("note", "outputs", f"{len(before)} output(s)", differ)]
    return []


def doubtful_speedup(baseline_ms: float, candidate_ms: float) -> str | None:
    """``3.50x apart: more than is usually believed``; None for a speed-up that is no reason to doubt."""
    speedup = baseline_ms / candidate_ms
    return f"{speedup:.2f}x apart: {UNBELIEVED}" if speedup > DOUBTFUL_SPEEDUP else None


def excessive_speedup(baseline_ms: float, candidate_ms: float) -> list[Difference]:
    """A speed-up that is doubtful (a note) or not believed at all (unequal work); empty when it is neither."""
    doubt = doubtful_speedup(baseline_ms, candidate_ms)
    if doubt is None:
        return []
    times = (f"{baseline_ms:.2f} ms", f"{candidate_ms:.2f} ms")
    speedup = baseline_ms / candidate_ms
    if speedup <= EXCESSIVE_SPEEDUP:
        return [Difference("note", SPEED_FIELD, *times, f"the worker times are {doubt}")]
    limit = f"more than {EXCESSIVE_SPEEDUP:g}x is not believed"
    sentence = f"{SPEED_FIELD}: the worker times are {speedup:.2f}x apart, and {limit}"
    return [Difference("work", SPEED_FIELD, *times, sentence)]


def _residency(dump: PerfDump, key: str) -> Any:
    residency = dump.environment.get("residency")
    return residency.get(key) if isinstance(residency, Mapping) else None


def _of_requests(dump: PerfDump, key: str) -> list[Any] | None:
    values = [request.get(key) for request in dump.requests]
    return values if values and None not in values else None


def _work_counter(dump: PerfDump, key: str) -> list[Any] | None:
    counters = [request.get("work") for request in dump.requests]
    values = [counter.get(key) if isinstance(counter, dict) else None for counter in counters]
    return values if values and None not in values else None


def _is_missing(value: Any) -> bool:
    return value is None or value == []


def value_text(value: Any) -> str:
    """A value as short text without secrets; not escaped."""
    text = redact(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
    text = f"{text[:77]}..." if len(text) > 80 else text
    return text or '""'
