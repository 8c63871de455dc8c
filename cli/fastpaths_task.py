"""``fuseproof fastpaths task``: a kernel's work as a folder of its own, for a writer who has nothing but torch."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuseproof.cli.fastpaths_guide import Contract, markdown, read_guide
from fuseproof.cli.fastpaths_task_names import contract_of
from fuseproof.cli.options import json_option
from fuseproof.cli.output_names import check_folder_name, check_writable
from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.atomic_files import temporary_beside
from fuseproof.harness.escape import markdown_text

if TYPE_CHECKING:
    from fuseproof.fastpaths.captures import CapturedCall
    from fuseproof.fastpaths.tasks.folder import TaskCall

SCHEMA = "fuseproof.fastpaths-task/1"


@click.command("task")
@click.argument("site")
@click.option(
    "--model",
    metavar="MODEL",
    help="Whose shapes: a family, a published id, embedded:FAMILY or a model folder. [default: the first family that "
    "has the site]",
)
@click.option(
    "--captures",
    "captured",
    multiple=True,
    metavar="FILE",
    help="A call that `capture` saved: its true tensors come along, beside the seeded ones; repeatable.",
)
@click.option("--from", "profile", metavar="FILE", help="A profile.json: what this site costs there stands in task.md.")
@click.option("--output", metavar="FOLDER", help="The folder to write. [default: task-SITE in this folder]")
@json_option()
def task(
    site: str,
    model: str | None,
    captured: tuple[str, ...],
    profile: str | None,
    output: str | None,
    as_json: bool,
) -> None:
    """Write a folder with everything that writing a kernel for SITE takes, and that runs with torch alone.

    SITE is a site or a kernel. The folder holds the task, a reference in plain torch, the true shapes and strides with
    ordinary and hard values, a candidate that calls the reference, a test of its bits, and a bench.

    \b
    fuseproof fastpaths task gated_residual --output my-task
    cd my-task && python -m pytest -v test_candidate.py && python bench.py
    """
    contract = contract_of(site, read_guide())
    folder = _folder(output or f"task-{site}")
    measured = [] if profile is None else _measured(Path(profile).expanduser(), site, contract.name)
    calls, models = _calls(contract.name, model, captured)
    _say(f"writing {len(calls)} calls of {contract.name}, and the fewest bytes that each must move, to {folder}")
    _write(folder, _files(site, contract, calls, models, measured))
    document = {
        "schema": SCHEMA,
        "folder": str(folder),
        "site": site,
        "kernel": contract.name,
        "models": models,
        "calls": len(calls),
        "cases": sum(len(call.values) for call in calls),
        "files": sorted(path.name for path in folder.iterdir()),
    }
    if as_json:
        click.echo(json.dumps(document, indent=2, allow_nan=False))
        return
    from fuseproof.fastpaths.tasks.texts import COMMAND

    click.echo(f"{folder}: {contract.name}, {len(calls)} calls of {', '.join(models)}, {document['cases']} cases")
    click.echo(f"next: cd {folder} && {COMMAND}")


def _say(text: str) -> None:
    """What takes the time, on stderr."""
    click.echo(f"fuseproof: {text}", err=True)


def _folder(text: str) -> Path:
    path = Path(text).expanduser()
    check_folder_name(path, "--output")
    if path.is_symlink() or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
        raise UsageError(
            f"--output {path} exists and is not an empty folder, so nothing is written there.",
            next_step="Choose another folder, or remove it.",
        )
    check_writable(path.absolute().parent, 0, "--output in")
    return path


def _calls(kernel: str, model: str | None, captured: Sequence[str]) -> tuple[list[TaskCall], list[str]]:
    _say(f"reading what calls of {kernel} there are; torch and diffusers are loaded first")
    from fuseproof.fastpaths.captures import read_capture
    from fuseproof.fastpaths.tasks.folder import captured_calls

    saved: list[CapturedCall] = [read_capture(Path(path).expanduser()) for path in captured]
    true = captured_calls(saved, kernel)
    for name in [model] if model is not None else _models_with(kernel):
        planned = _planned(kernel, name)
        if planned:
            return [*true, *planned], [name]
    where = f"model {model!r} has" if model is not None else "the families have"
    raise UsageError(
        f"{where} no call of {kernel}.", next_step=f"fuseproof fastpaths explain {kernel} says which models have it."
    )


def _models_with(kernel: str) -> list[str]:
    """Families whose components have a site that runs the kernel."""
    from fuseproof.pipelines.families import FAMILIES

    guide = read_guide()
    sites = [site for site in guide.sites if kernel in guide.kernels_of(site)]
    classes = {name for site in sites for name in guide.classes_of(site)}
    return [
        name
        for name, family in FAMILIES.items()
        if any(not classes.isdisjoint(component.classes) for component in family.components.values())
    ]


def _planned(kernel: str, model: str) -> list[TaskCall]:
    import torch

    from fuseproof.fastpaths.tasks.folder import calls_of_cases
    from fuseproof.fastpaths.verification import labelled
    from fuseproof.pipelines.fastpath_workloads import meta_model, planned_cases, real_calls

    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    began = time.monotonic()
    skeleton = meta_model(model)
    _say(f"tracing the requests of {model} for calls of {kernel}, without weights")
    cases = [case for case in planned_cases(skeleton, (), device) if case.call.layout.operation == kernel]
    real = [call.layout for _, call in real_calls(skeleton, (), device) if call.layout.operation == kernel]
    _say(f"{len(cases)} cases of {kernel} in {model}, traced in {time.monotonic() - began:.0f} s")
    return calls_of_cases(labelled(cases), real)


def _files(
    site: str, contract: Contract, calls: Sequence[TaskCall], models: Sequence[str], measured: Sequence[str]
) -> Mapping[str, bytes]:
    from fuseproof.fastpaths.tasks import texts
    from fuseproof.fastpaths.tasks.folder import task_files

    named = [markdown_text(model) for model in models]
    paragraphs = {label: markdown(text) for label, text in contract.paragraphs.items()}
    return task_files(
        site,
        contract.name,
        calls,
        {
            "task.md": texts.task_text(site, contract.name, paragraphs, contract.parameters, calls, named, measured),
            "README.md": texts.readme_text(site, contract.name, shlex.quote(models[0])),
            "candidate.py": texts.candidate_text(contract.parameters, contract.buffers),
            "test_candidate.py": texts.TEST,
            "bench.py": texts.BENCH,
        },
    )


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """All of them or none: a folder beside it is filled, and then gets its name."""
    target = folder.absolute()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        made = temporary_beside(target)
        made.mkdir()
        try:
            for name, content in files.items():
                (made / name).write_bytes(content)
            made.rename(target)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        raise FuseproofError(
            f"the folder {folder} cannot be written: {error.strerror or error}.",
            next_step="Choose a folder that is writable and has space left.",
        ) from error


def _measured(path: Path, site: str, kernel: str) -> list[str]:
    from fuseproof.cli.fastpaths_task_profile import measured_lines

    return measured_lines(path, site, kernel)
