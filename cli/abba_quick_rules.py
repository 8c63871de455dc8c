"""What ``fuseproof abba --quick`` can compare: flags that are switched inside one loaded process, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseproof.cli.abba_arms import parsed_flags, refusal, refuse_bad_requests
from fuseproof.cli.abba_from import given_fields
from fuseproof.cli.option_fields import flag_name
from fuseproof.errors import FuseproofError, InvalidMeasurementError, UsageError

if TYPE_CHECKING:
    from fuseproof.cli.generate_options import GenerateOptions
    from fuseproof.pipelines.requests import GenerationRequest
    from fuseproof.schedules.plan import Arm, Cell, Plan

MOUNT_FIELDS = (
    "fastpaths",
    "fastpaths_from",
    "certificate",
    "gate",
    "quality",
    "require_fastpaths",
    "enable_breakable_cuda_graph",
)
"""Mounted for one slot and taken off behind it."""
REQUEST_FIELDS = (
    "prompt",
    "prompt_path",
    "fixed_prompt",
    "fixed_prompt_path",
    "negative_prompt",
    "width",
    "height",
    "num_inference_steps",
    "guidance_scale",
    "seed",
    "generator_device",
    "enable_cfg_renorm",
    "cfg_renorm_min",
    "pe_sampling",
)
"""Read by each request anew. Arms that differ in them do unequal work, which is said as such."""
UNSEEN_FIELDS = frozenset({"config", "log_level", "as_json", "perf_dump_path", "output_path", "show"})
"""Where flags come from and what is printed: no part of what a slot does."""
FOREIGN_KEYS = ("command", "ref", "repo", "setup", "python", "imports", "env")
"""Keys of an arm that need a process of its own."""
LOAD_FIELDS = (
    "model_path",
    "load_format",
    "revision",
    "model_id",
    "device",
    "dtype",
    "attention_backend",
    "enable_prompt_rewrite",
    "use_pe",
)
"""What decides which pipeline is loaded: cells that agree in it share one load."""
WARMUPS = 2
"""Discarded slots before a cell's first block: one of each arm, whatever the plan says of fresh processes."""
FRESH_PROCESSES = "Leave out --quick: `fuseproof abba` compares them in fresh processes."
HEEDED_FLAGS = frozenset(
    {
        *(
            "quick",
            "plan",
            "from_stored",
            "cells",
            "flags",
            "aa",
            "blocks",
            "order",
            "primary",
            "min_effect",
            "contract",
        ),
        *(
            "baseline",
            "candidate",
            "more_candidates",
            "baseline_name",
            "candidate_name",
            "dry_run",
            "allow_busy",
            "require_fastpaths",
            "as_json",
        ),
        *("baseline_command", "candidate_command", "baseline_ref", "candidate_ref"),
    }
)
"""Fields of ``abba``'s options that a quick run heeds, or (commands and refs) refuses with more words than these."""


@dataclass(frozen=True)
class ArmOptions:
    """Both arms' flags for one cell, as one loaded process will run them. The letters are A and B."""

    cell: Cell
    baseline: GenerateOptions
    candidate: GenerateOptions

    def of(self, letter: str) -> GenerateOptions:
        return self.baseline if letter == "A" else self.candidate

    @property
    def load_key(self) -> tuple[Any, ...]:
        return tuple(getattr(self.baseline, name) for name in LOAD_FIELDS)


def refuse_useless_flags(options: Any) -> None:
    """Raise :class:`UsageError` for a flag of ``abba`` that a run in one process cannot heed. Asked while parsing."""
    for field in given_fields(options):
        if field not in HEEDED_FLAGS:
            raise UsageError(
                f"{flag_name(field)} has no effect with --quick, which runs in one process, keeps no folder and gives "
                "no verdict.",
                next_step="Leave one of them out; --json prints everything that a quick run knows.",
            )


def arms_of(plan: Plan, folder: Path) -> tuple[ArmOptions, ...]:
    """Both arms of every cell, checked; their pictures and dumps will go below ``folder``.

    Raises :class:`UsageError` naming the flag or key in which they may not differ, and those in which they may.
    """
    if len(_arms(plan)) != 2:
        raise UsageError("--quick compares two arms, and this plan has more.", next_step=FRESH_PROCESSES)
    for role, arm in _arms(plan).items():
        _refuse_own_process(role, arm)
    return tuple(_both(plan, cell, folder) for cell in plan.cells)


def refuse_unequal_requests(
    cell: str, baseline: tuple[GenerationRequest, ...], candidate: tuple[GenerationRequest, ...]
) -> None:
    """Raise :class:`InvalidMeasurementError` (exit code 6) before anything is loaded, naming what differs."""
    if len(baseline) != len(candidate):
        differences = [f"the number of prompts ({len(baseline)} against {len(candidate)})"]
    else:
        pairs = zip(baseline, candidate, strict=True)
        differences = list(dict.fromkeys(text for pair in pairs for text in _request_differences(*pair)))
    if differences:
        raise InvalidMeasurementError(
            f"Cell {cell}: unequal work: the arms' requests differ in {', '.join(differences)}, so they have no ratio.",
            next_step="Give both arms the same request with --flags; what is compared belongs into the arms.",
        )


def allowed_text() -> str:
    """The flags in which quick arms may differ, for messages and documentation."""
    return ", ".join(flag_name(field) for field in MOUNT_FIELDS)


def _arms(plan: Plan) -> dict[str, Arm]:
    return {role: arm for role, arm in plan.arms if arm is not None}


def _refuse_own_process(role: str, arm: Arm) -> None:
    for key in FOREIGN_KEYS:
        value = getattr(arm, key)
        if value:
            raise UsageError(
                f"The {role} has a {key} of its own ({_shown(value)}), and --quick runs both arms in one loaded "
                f"process; there they may differ in {allowed_text()}.",
                next_step=FRESH_PROCESSES,
            )


def _both(plan: Plan, cell: Cell, folder: Path) -> ArmOptions:
    from fuseproof.harness.campaign.arms import generate_words

    found = []
    for role, arm in _arms(plan).items():
        parsed = parsed_flags(generate_words(arm, cell, folder / "perf.json", folder / "outputs"))
        if isinstance(parsed, FuseproofError):
            raise refusal(f"Cell {cell.name}, {role}", parsed)
        for field in ("enable_torch_compile", "verify_every_step", "profile"):
            if getattr(parsed, field):
                raise UsageError(
                    f"Cell {cell.name}, {role}: {flag_name(field)} cannot be had with --quick: "
                    f"{'compiled code stays' if field == 'enable_torch_compile' else 'its times mean nothing'}.",
                    next_step=FRESH_PROCESSES if field == "enable_torch_compile" else "Leave it out.",
                )
        found.append(parsed)
    _refuse_other_differences(cell, *found)
    refuse_bad_requests([(f"Cell {cell.name}, {role}", both) for role, both in zip(_arms(plan), found, strict=True)])
    return ArmOptions(cell, *map(_with_slot_fields, found))


def _with_slot_fields(options: GenerateOptions) -> GenerateOptions:
    """Pictures are kept for the comparison, and first sights never enter a time: without a warm-up there is one."""
    own: dict[str, Any] = {"save_output": True, "no_save_output": None, "output_file_name": None, "keep_raw": False}
    if options.warmup_plan.mode == "off":
        own |= {"warmup": None, "warmup_mode": "request"}
    return dataclasses.replace(options, **own)


def _refuse_other_differences(cell: Cell, baseline: GenerateOptions, candidate: GenerateOptions) -> None:
    for field in dataclasses.fields(baseline):
        before, after = getattr(baseline, field.name), getattr(candidate, field.name)
        if before == after or field.name in (*MOUNT_FIELDS, *REQUEST_FIELDS, *UNSEEN_FIELDS):
            continue
        raise UsageError(
            f"Cell {cell.name}: the arms differ in {flag_name(field.name)} ({_shown(before)} against "
            f"{_shown(after)}), which one loaded process cannot switch; there they may differ in {allowed_text()}.",
            next_step=FRESH_PROCESSES,
        )


def _request_differences(first: GenerationRequest, second: GenerationRequest) -> Iterator[str]:
    for field in dataclasses.fields(first):
        before, after = getattr(first, field.name), getattr(second, field.name)
        if field.name in ("quality", "image") or before == after:
            continue
        yield f"{field.name} ({_shown(before)} against {_shown(after)})"


def _shown(value: object) -> str:
    from fuseproof.harness.number_format import shortened

    return shortened("not given" if value is None else str(value), 60)
