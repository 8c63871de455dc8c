"""``fuseproof fastpaths capture``: the true tensors of a request at one site, for ``verify --from`` and ``bench``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseproof.cli.config_file import merge_config
from fuseproof.cli.fastpaths_output import check_output
from fuseproof.cli.generate import ARGUMENTS, RememberingCommand
from fuseproof.cli.generate_options import EXCLUSIVE_GROUPS, GenerateOptions
from fuseproof.cli.hash_seed import restart_with_fixed_hash_seed
from fuseproof.cli.option_fields import WholeNumber, click_options
from fuseproof.cli.options import json_option
from fuseproof.errors import FuseproofError, UsageError

if TYPE_CHECKING:
    from fuseproof.cli.generation import Job
    from fuseproof.fastpaths.captures import CapturedCall

SCHEMA = "fuseproof.fastpaths-capture/1"
OWN_PARAMETERS = ("site", "step", "output")
WRITES = ("perf_dump_path", "output_path", "output_file_name", "output_file_path", "save_output")
REPLAYS_CALLS = ("enable_breakable_cuda_graph", "enable_torch_compile")
PROFILES = ("profile",)


@click.command("capture", cls=RememberingCommand)
@click.argument("site")
@click.option("--step", type=WholeNumber(0), required=True, help="Denoise step, from 0: its first call is saved.")
@click.option("--output", metavar="FILE", required=True, help="The safetensors file to write.")
@click_options(GenerateOptions)
@json_option()
@click.pass_context
def capture(ctx: click.Context, /, **flags: Any) -> None:
    """Save the tensors of the first call at SITE in step N of a request, strides and shared memory included.

    The request is given by `generate`'s flags and runs only as far as that step; it writes no picture.
    `verify --from FILE` and `bench --from FILE` use what was saved.

    \b
    fuseproof fastpaths capture qk_norm_rope --step 3 --output q.safetensors --prompt "a red circle above a blue square"
    """
    options = _options(ctx, flags)
    restart_with_fixed_hash_seed("fastpaths", ("capture", *ctx.meta[ARGUMENTS]))
    call = captured_call(options, flags["site"], flags["step"], Path(flags["output"]).expanduser())
    document = _document(call, flags["output"])
    if flags["as_json"]:
        click.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        click.echo(f"{document['file']}  {document['bytes']:,} bytes, {document['site']}: {document['shapes']}")


class _Done(Exception):  # noqa: N818 (no error: the request has gone as far as it must)
    """The step is over."""


@dataclass
class _Catcher:
    """Hears the calls at one site, keeps the first in the wanted step, and ends the request after that step."""

    site: str
    wanted_step: int
    source: dict[str, Any]
    step: int | None = None
    caught: CapturedCall | None = None

    def __call__(self, operation: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        if self.step != self.wanted_step or self.caught is not None:
            return
        from fuseproof.fastpaths.captures import captured

        module = getattr(operation, "module", None)
        parameters = {} if module is None else {**module.state_dict()}
        source = {**self.source, "kind": "kernel" if module is None else "module"}
        self.caught = captured(self.site, operation.name, arguments, keywords, parameters, source)

    def stage_started(self, name: str, total_steps: int | None) -> None:
        """Steps are counted in the stage that has some."""
        self.step = 0 if total_steps is not None else None

    def step_finished(self, step: int) -> None:
        """End the request where nothing more is wanted of it."""
        if step == self.wanted_step:
            raise _Done
        self.step = step + 1

    def stage_finished(self, name: str, milliseconds: float) -> None:
        """Calls between stages belong to no step."""
        self.step = None


def captured_call(options: GenerateOptions, site: str, step: int, output: Path) -> CapturedCall:
    """Run the request up to ``step`` and write the call; every mistake is found before a weight is read."""
    from fuseproof.cli.generation import prepare

    check_output(output, inputs_of(options), _is_capture, "captured call")
    job = prepare(options)
    steps = job.requests[0].num_inference_steps
    if step >= steps:
        raise UsageError(
            f"--step is {step}, and this request has the steps 0 to {steps - 1}.",
            next_step=f"Use --step {steps - 1}, or more --num-inference-steps.",
        )
    is_own = _check_site(site, job)
    catcher = _Catcher(site, step, _source(job, site, step, is_own=is_own))
    report = _run(job, catcher)
    if catcher.caught is None:
        entry = report["sites"].get(site) or {"state": "off", "reason": "not requested"}
        raise FuseproofError(
            f"no call reached site {site!r} in step {step}: {entry['state']}, {entry['reason']}.",
            next_step="`fuseproof fastpaths list` says what this machine can mount.",
        )
    _write(output, catcher.caught)
    return catcher.caught


def _is_capture(path: Path) -> bool:
    from fuseproof.fastpaths.captures import is_capture

    return is_capture(path)


def inputs_of(options: GenerateOptions) -> dict[str, list[Path | None]]:
    """The files that the request reads, by the flag that names them."""
    single = {name: getattr(options, name) for name in ("prompt_path", "fixed_prompt_path", "config", "fastpaths_from")}
    named: dict[str, list[Path | None]] = {
        f"--{name.replace('_', '-')}": [Path(value).expanduser()] for name, value in single.items() if value
    }
    named["--image-path"] = [Path(path).expanduser() for path in options.image_path if "://" not in path]
    if options.certificate not in ("auto", "off"):
        named["--certificate"] = [Path(options.certificate).expanduser()]
    return named


def _options(ctx: click.Context, flags: Mapping[str, Any]) -> GenerateOptions:
    merged = merge_config(ctx, flags, flags["config"], EXCLUSIVE_GROUPS)
    fields = {field.name for field in dataclasses.fields(GenerateOptions)}
    options = GenerateOptions(**{name: value for name, value in merged.items() if name in fields})
    reasons = {
        **dict.fromkeys(WRITES, "writes no picture and no dump"),
        **dict.fromkeys(REPLAYS_CALLS, "needs the calls themselves"),
        **dict.fromkeys(PROFILES, "times nothing"),
    }
    for name, why in reasons.items():
        if getattr(options, name):
            raise UsageError(f"--{name.replace('_', '-')} has no place here: capture {why}.", next_step="Drop it.")
    if len(options.prompt) > 1:
        raise UsageError(f"{len(options.prompt)} prompts were given; one request is captured.", next_step="Keep one.")
    if options.effective_fastpaths == "off":
        raise UsageError("fast paths are off, so no call could be captured.", next_step="Drop --fastpaths off.")
    return dataclasses.replace(options, no_save_output=True)


def _check_site(site: str, job: Job) -> bool:
    """Whether ``site`` is one of the user's own; a :class:`UsageError` where no kernel of that name is called."""
    import importlib

    from fuseproof.fastpaths.families import FAMILIES, kernels_of_site

    own = {one.name for one in job.user_sites.sites} if job.user_sites is not None else set()
    if site in own:
        return True
    with_kernel: list[str] = []
    without: list[str] = []
    for component in job.family.components.values():
        for name in component.classes:
            if name in FAMILIES:
                family = importlib.import_module(FAMILIES[name])
                kernels = kernels_of_site(family)
                with_kernel += kernels
                without += [one for one in family.SITES if one not in kernels]
    if site in with_kernel:
        return False
    what = "has no kernel whose tensors could be saved" if site in without else "is no site of this model"
    raise UsageError(
        f"{site!r} {what}; {', '.join([*with_kernel, *sorted(own)])} can be captured.",
        next_step="`fuseproof fastpaths list` shows the sites.",
    )


def _run(job: Job, catcher: _Catcher) -> dict[str, Any]:
    from fuseproof.cli.generation import open_session

    session = open_session(job, catcher, None, {catcher.site: catcher})
    try:
        session.run(job.requests[0])
    except _Done:
        pass
    finally:
        report: dict[str, Any] = session.fastpaths_report()
        session.close()
    return report


def _source(job: Job, site: str, step: int, *, is_own: bool) -> dict[str, Any]:
    from fuseproof.harness.machine.redaction import redact

    request = job.requests[0]
    return {
        "model": redact(job.options.model_path),
        "family": job.family.name,
        "load_format": job.options.load_format,
        "site": site,
        "step": step,
        "is_own": is_own,
        "fastpaths_from_sha256": job.user_sites.sha256 if job.user_sites is not None else None,
        "width": request.width,
        "height": request.height,
        "num_inference_steps": request.num_inference_steps,
        "guidance_scale": request.guidance_scale,
        "seed": request.seed,
    }


def _write(output: Path, call: CapturedCall) -> None:
    from fuseproof.fastpaths.captures import to_bytes
    from fuseproof.harness.atomic_files import regular_target, replace_whole

    content = to_bytes(call)
    target = regular_target(output.expanduser())
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(target, content)
    except OSError as error:
        raise FuseproofError(
            f"the captured call ({len(content):,} bytes) cannot be written to {target}: {error.strerror or error}.",
            next_step="Choose a folder that is writable and has space left.",
        ) from error


def _document(call: CapturedCall, output: str) -> dict[str, Any]:
    from fuseproof.fastpaths.call_texts import shapes_text
    from fuseproof.harness.machine.redaction import redact

    return {
        "schema": SCHEMA,
        "file": redact(output),
        "bytes": Path(output).expanduser().stat().st_size,
        "site": call.site,
        "operation": call.layout.operation,
        "shapes": shapes_text(call.layout),
        "source": dict(call.source),
    }
