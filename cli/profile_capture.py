"""One request under the profiler: its flags, its session, its files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseproof.cli.hash_seed import hash_seed_record
from fuseproof.cli.option_fields import flag_name
from fuseproof.cli.profile_flags import recorded_flags
from fuseproof.cli.profile_folders import PROFILE_FILE, claimed, folder_beside, free_folder
from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.escape import visible

if TYPE_CHECKING:
    from fuseproof.cli.generate_options import GenerateOptions
    from fuseproof.cli.generation import Job
    from fuseproof.harness.profiles.profile import Profile
    from fuseproof.pipelines.request_run import GenerationResult
    from fuseproof.pipelines.session import Session

WRITES_NOTHING = ("perf_dump_path", "output_file_name", "output_file_path", "keep_raw")
"""Flags of ``generate`` about files that a profile does not leave."""
BOTH_HELPS = (
    "`fuseproof profile --help` lists the flags of a profile, `fuseproof generate --help` those of its request."
)
DEFAULT_STEPS = 5
"""Of ``generate --profile``, as sglang's."""
TORCH_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"


def parsed_request(words: Sequence[str]) -> GenerateOptions:
    """What the flags of ``generate`` amount to; :class:`UsageError` for those that a profile has no use for."""
    from fuseproof.cli.abba_arms import parsed_flags

    options = parsed_flags((*words, "--profile"))
    if isinstance(options, FuseproofError):
        raise _pointing_to_both_helps(options)
    for name in WRITES_NOTHING:
        if getattr(options, name):
            raise UsageError(
                f"{flag_name(name)} has no effect: `fuseproof profile` saves no picture and no perf dump.",
                next_step="Drop it, or use `fuseproof generate --profile`, which saves them too.",
            )
    return options


def _pointing_to_both_helps(error: FuseproofError) -> FuseproofError:
    """A word that is no flag of ``generate`` may have been meant as one of ``profile``'s own."""
    from fuseproof.cli.abba_arms import EVERY_OPTION

    return UsageError(error.message, next_step=BOTH_HELPS) if error.next_step == EVERY_OPTION else error


def profile_into(folder: Path, options: GenerateOptions, steps: int, *, all_stages: bool) -> Profile:
    """Load, warm up, run the request under the profiler and write its files, all of them or none.

    Raises :class:`FuseproofError`.
    """
    with claimed(folder) as working:
        found = _profiled(working, options, steps, all_stages=all_stages)
    return _moved(found, folder)


def _moved(found: Profile, folder: Path) -> Profile:
    return replace(found, source=str(folder / PROFILE_FILE))


def _profiled(folder: Path, options: GenerateOptions, steps: int, *, all_stages: bool) -> Profile:
    from fuseproof.cli.fastpath_choices import choose_certificate
    from fuseproof.cli.generation import open_session, prepare
    from fuseproof.cli.profile_progress import ProfileProgress
    from fuseproof.harness.machine.environment import describe

    quieten()
    job = prepare(options)
    for warning in job.warnings if options.log_level != "error" else ():
        click.echo(f"fuseproof: warning: {warning}", err=True)
    machine = describe()
    progress = ProfileProgress(_say, is_wanted=options.log_level in ("debug", "info"))
    progress.phase(f"loading torch and {options.model_path}")
    certificate = choose_certificate(options, job.user_sites)
    session = open_session(job, progress, certificate)
    try:
        progress.warming_up()
        progress.phase("warming up, so that no first call is in the profile")
        for request in job.warmups:
            session.warm_up(request, options.warmup_plan.steps)
        if session.warmup_steps is None:
            session.warm_up(job.requests[0], steps=steps + 1)
        progress.profiling(steps)
        progress.phase("profiling")
        return capture(job, session, folder, steps, all_stages=all_stages, machine=machine)[0]
    finally:
        session.close()


def run_profiled(job: Job, session: Session, destination: Path | None) -> GenerationResult:
    """The job's one request under the profiler, for ``generate --profile``: files go beside its output."""
    from fuseproof.harness.machine.environment import describe

    options = job.options
    folder = free_folder(str(folder_beside(options, destination)))
    steps = options.num_profiled_timesteps or DEFAULT_STEPS
    with claimed(folder) as working:
        found, result = capture(job, session, working, steps, all_stages=options.profile_all_stages, machine=describe())
    without = "" if found.trace is not None else ", without its trace (profile.json says why)"
    _say(f"the profile is in {folder}{without}")
    return result


def capture(
    job: Job, session: Session, folder: Path, steps: int, *, all_stages: bool, machine: Mapping[str, Any]
) -> tuple[Profile, GenerationResult]:
    """Profile the job's request and write its files into ``folder``; a session that is cold is warmed up first."""
    from fuseproof.harness.machine.watch import MachineWatch
    from fuseproof.harness.profiles.writing import TRACE_FILE, write_profile
    from fuseproof.pipelines.profiling import profile_and_run

    values, result = profile_and_run(
        session,
        job.requests[0],
        steps=steps,
        all_stages=all_stages,
        trace_file=folder / TRACE_FILE,
        about=_about(job),
        machine=MachineWatch(),
    )
    return write_profile(folder, _completed(values, job, session, machine)), result


def _about(job: Job) -> dict[str, Any]:
    """What only the command knows of its request."""
    from fuseproof.harness.machine.environment import redact

    options = job.options
    return {
        "model": redact(options.model_path),
        "family": job.family.name,
        "weights": job.weights_kind,
        "flags": recorded_flags(options),
    }


def _completed(values: Mapping[str, Any], job: Job, session: Session, machine: Mapping[str, Any]) -> dict[str, Any]:
    """The profile with the machine under it, as perf dumps record it; no home folder in its texts."""
    from fuseproof.harness.machine.environment import redact, redact_mapping
    from fuseproof.pipelines import session_warnings

    request = {**values["request"], "fastpaths": job.options.effective_fastpaths, "dtype": session.dtype}
    environment = redact_mapping({**machine, **values["environment"], **hash_seed_record()})
    told = dict.fromkeys((*values["warnings"], *job.warnings))
    warnings = [redact(text) for text in told if text != session_warnings.PROFILED]  # every profile says so
    return {**values, "request": request, "environment": environment, "warnings": warnings}


def _say(text: str) -> None:
    click.echo(f"fuseproof: {visible(text)}", err=True)


def quieten() -> None:
    """Keep torch from remarking on memory that is older than its profiler; before torch is loaded."""
    os.environ.setdefault(TORCH_LOG_LEVEL, "ERROR")
