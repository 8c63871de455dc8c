"""One arm of ``fuseproof diverge`` in its own process: loaded once, then asked for one pass after the other.

Started by path (``python -P .../cli/diverge_arm.py``), with the arm's own ``fuseproof`` on the path: that may be
another commit's, which knows nothing of this command. So only what watches, ``pipelines/divergence``, is taken from
beside this file; everything else is the arm's own code. Jobs come as JSON, one a line, on stdin, and answers go to what
was stdout; whatever a library prints goes to stderr.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuseproof.cli.generate_options import GenerateOptions
    from fuseproof.cli.generation import Job
    from fuseproof.pipelines.divergence.passes import ArmPasses
    from fuseproof.pipelines.session import Session

WATCHING = "fuseproof.pipelines.divergence"
MODEL_INDEX = "model_index.json"


def main(words: Sequence[str]) -> int:
    """Load the arm that ``words`` (flags of ``generate``) describe and answer jobs until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    take_watching_from_here()
    from fuseproof.errors import FuseproofError

    try:
        with opened_arm(words) as arm:
            _write(answers, {"ready": True, "notes": arm.describe().get("notes", [])})
            for line in sys.stdin:
                _write(answers, arm.answer(json.loads(line)))
    except FuseproofError as error:
        _write(answers, {"error": error.message, "next_step": error.next_step, "exit_code": error.exit_code})
    except Exception as error:  # noqa: BLE001 - told to whoever asked; the traceback is in the log
        traceback.print_exc()
        _write(answers, {"error": f"{type(error).__name__}: {error}", "next_step": None, "exit_code": 1})
    return 0


def take_watching_from_here() -> None:
    """Let ``fuseproof.pipelines.divergence`` be the package beside this file, whatever commit ``fuseproof`` is of."""
    folder = Path(__file__).resolve().parents[1] / "pipelines" / "divergence"
    spec = importlib.util.spec_from_file_location(
        WATCHING, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise AssertionError(f"{folder} is a package")
    package = importlib.util.module_from_spec(spec)
    sys.modules[WATCHING] = package
    spec.loader.exec_module(package)


@contextlib.contextmanager
def opened_arm(words: Sequence[str]) -> Iterator[ArmPasses]:
    """The arm of these flags of ``generate``, loaded and warmed up; raises :class:`FuseproofError`."""
    from fuseproof.cli.abba_arms import parsed_flags
    from fuseproof.errors import FuseproofError

    options = parsed_flags(words)
    if isinstance(options, FuseproofError):
        raise options
    folder = foreign_folder(options)
    with _native_arm(options) if folder is None else _generic_arm(options, folder) as arm:
        yield arm


@contextlib.contextmanager
def _native_arm(options: GenerateOptions) -> Iterator[ArmPasses]:
    """A model that ``generate`` runs, on either backend, by ``generate``'s own checks, loading and warm-up."""
    from fuseproof.cli.fastpath_choices import choose_certificate
    from fuseproof.cli.generation import open_session, prepare
    from fuseproof.pipelines.divergence.following import RequestFollower

    job = prepare(options)
    refuse_several(len(job.requests))
    follower = RequestFollower()
    session = open_session(job, follower, choose_certificate(options, job.user_sites))
    try:
        for request in job.warmups or job.requests[:1]:
            session.warm_up(request, options.warmup_plan.steps)
        yield _passes_of(session, job, follower)
    finally:
        session.close()


def _passes_of(session: Session, job: Job, follower: Any) -> ArmPasses:
    import torch

    from fuseproof.pipelines.divergence.passes import ArmPasses
    from fuseproof.pipelines.divergence.subject import Subject

    def describe() -> dict[str, Any]:
        sites = session.fastpaths_report()["sites"]
        config = _config_of(job, session)
        return {"sites": sites, "graphs": session.graphs_report(), "notes": list(job.warnings), "config": config}

    pipe = session._runner.pipe  # no commit has a public name for it
    return ArmPasses(
        Subject.of(pipe), follower, lambda: session.run(job.requests[0]).image, torch.device(session.device), describe
    )


def _config_of(job: Job, session: Session) -> dict[str, Any]:
    """Every effective flag as this commit's dump has it; empty where it writes that in another way."""
    from fuseproof.cli import generate_record

    config: dict[str, Any] = {}
    with contextlib.suppress(AttributeError, TypeError):  # no commit has a public name for it
        config = generate_record._config(job, session) | {"prompt": [one.prompt for one in job.requests]}
    return dict(json.loads(json.dumps(config, default=str)))


@contextlib.contextmanager
def _generic_arm(options: GenerateOptions, folder: Path) -> Iterator[ArmPasses]:
    """A diffusers pipeline that no family of ours runs, by its own call; flags that it has no use for are refused."""
    from fuseproof.cli.fastpath_choices import read_user_sites
    from fuseproof.cli.prompts import read_prompts
    from fuseproof.errors import FuseproofError
    from fuseproof.fastpaths import mount
    from fuseproof.pipelines.devices import choose_device, choose_dtype, set_attention_backend
    from fuseproof.pipelines.divergence import generic
    from fuseproof.pipelines.divergence.following import RequestFollower
    from fuseproof.pipelines.divergence.passes import ArmPasses
    from fuseproof.pipelines.divergence.subject import Subject
    from fuseproof.pipelines.libraries import silence_libraries

    silence_libraries()
    sites = read_user_sites(options)
    prompts = read_prompts(options.prompt, options.prompt_path)
    refuse_several(len(prompts))
    request = _generic_request(options, prompts[0])
    device = choose_device(options.device)
    pipe = generic.load(folder, choose_dtype(options.dtype, device), device)
    reason = generic.reject_reason(pipe)
    if reason is not None:
        raise FuseproofError(f"{reason}.", next_step="Compare the pictures with `fuseproof compare-media`.")
    if options.attention_backend is not None:
        set_attention_backend(Subject.of(pipe).denoiser, options.attention_backend)
    mounted = None
    if getattr(pipe, "transformer", None) is not None:
        wanted = options.fastpaths or ("auto" if sites is not None else "off")
        mounted = mount(pipe, sites=wanted, gate=options.gate, user_sites=sites.sites if sites is not None else ())
    notes = [f"{type(pipe).__name__} has no native pipeline: diffusers' own call is watched"]

    def describe() -> dict[str, Any]:
        report = {} if mounted is None else mounted.report()["sites"]
        config = json.loads(json.dumps(options.as_config(), default=str))
        return {"sites": report, "graphs": {}, "notes": notes, "config": config | {"prompt": list(prompts)}}

    follower = RequestFollower()
    try:
        yield ArmPasses(Subject.of(pipe), follower, lambda: generic.run(pipe, request, follower), device, describe)
    finally:
        if mounted is not None:
            mounted.unmount()


def _generic_request(options: GenerateOptions, prompt: str) -> Any:
    from io import BytesIO

    from PIL import Image

    from fuseproof.cli.image_inputs import read_image_input
    from fuseproof.pipelines.divergence.generic import GenericRequest

    return GenericRequest(
        prompt=prompt,
        seed=options.seed,
        negative_prompt=options.negative_prompt,
        width=options.width,
        height=options.height,
        num_inference_steps=options.num_inference_steps,
        guidance_scale=options.guidance_scale,
        num_frames=options.num_frames,
        images=tuple(
            Image.open(BytesIO(read_image_input(source).content)).convert("RGB") for source in options.image_path
        ),
    )


def foreign_folder(options: GenerateOptions) -> Path | None:
    """The folder of a diffusers pipeline whose class is no family's; None where ``generate`` knows what to do."""
    from fuseproof.pipelines.families import FAMILIES

    folder = Path(options.model_path).expanduser()
    if options.load_format == "dummy" or not (folder / MODEL_INDEX).is_file():
        return None
    try:
        kind = json.loads((folder / MODEL_INDEX).read_text(encoding="utf-8")).get("_class_name")
    except (OSError, ValueError, AttributeError):
        return None  # generate's own checks say what is wrong with it
    known = {family.pipeline_class for family in FAMILIES.values()}
    return None if not isinstance(kind, str) or kind in known else folder


def refuse_several(count: int) -> None:
    """Raise :class:`UsageError` for more than one prompt."""
    from fuseproof.errors import UsageError

    if count > 1:
        raise UsageError(
            f"{count} prompts were given, and diverge follows one request.", next_step="Give the one that differs."
        )


def _write(answers: Any, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
