"""``fuseproof diverge``: the first step, module and site where two arms differ by a bit."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseproof.cli import exit_codes
from fuseproof.cli.diverge_options import DivergeOptions
from fuseproof.cli.option_fields import click_options
from fuseproof.cli.output_names import check_file
from fuseproof.harness.atomic_files import write_text_atomically
from fuseproof.harness.escape import visible

if TYPE_CHECKING:
    from fuseproof.cli.diverge_flags import Config
    from fuseproof.cli.diverge_processes import ArmProcesses
    from fuseproof.cli.diverge_search import Result
    from fuseproof.schedules.plan import Plan

STDOUT = "-"


@click.command()
@click_options(DivergeOptions)
def diverge(**flags: Any) -> int:
    """Find the first step, module and site where two arms differ by a bit.

    Pass 1 runs the same request in both arms, each in a fresh process, and compares the latents behind every step. Pass
    2 runs the first step that differs again and digests the tensors of every module's call where they lie; pass 3
    compares those of the first call whose inputs are equal and whose outputs are not. An arm that does not repeat its
    own bits is named as such. Nothing is saved but --json (docs/diverge.md).

    \b
    fuseproof diverge --baseline "--fastpaths=off" --candidate "--fastpaths=auto --gate off"
    fuseproof diverge --candidate "--attention-backend _native_math" --flags "--model-path ./model --prompt 'a panda'"
    fuseproof diverge --baseline-ref main --candidate-ref HEAD --json found.json

    Exit codes: 0 nothing differs, 4 something does, 1 an arm failed, 2 usage, 130 interrupted.
    """
    options = DivergeOptions(**flags)
    if options.json is not None and options.json != STDOUT:
        check_file(Path(options.json), "--json")
    result = search(options)
    from fuseproof.cli.diverge_text import as_json, lines_of

    code = exit_codes.CONTRACT if result.has_difference else exit_codes.DONE
    document = json.dumps(as_json(result, code), indent=2, allow_nan=False)
    if options.json == STDOUT:
        click.echo(document)
        return code
    for line in lines_of(result):
        click.echo(visible(line))
    if options.json is not None:
        write_text_atomically(options.json, document + "\n")
    return code


def search(options: DivergeOptions) -> Result:
    """Run both arms and find where they first differ; raises :class:`FuseproofError`."""
    from fuseproof.cli.diverge_processes import ArmProcesses
    from fuseproof.cli.diverge_search import Search

    with tempfile.TemporaryDirectory(prefix="fuseproof-diverge-") as temporary:
        folder = Path(temporary).resolve()
        plan = options.plan()
        configs = ArmProcesses(plan, {}, folder).configs()
        _compare_flags(configs)
        with _processes(plan, folder) as processes:
            graphs = processes.with_graphs()
            found = Search(processes.start, folder, graphs, _say, configs).run()
            found.commits = processes.commits()
    for role in sorted(graphs):
        found.remarks.append(f"passes 2 and 3 ran the {role} without its CUDA graphs, which call no module")
    for role, answer in found.arms.items():
        found.remarks += [f"{role}: {note}" for note in answer.get("notes", [])]
    found.remarks += _held_back(found)
    return found


def _compare_flags(configs: Mapping[str, Config]) -> None:
    """Say where the flags of both arms differ, and refuse what they alone rule out; of refs nothing is known yet."""
    from fuseproof.cli.diverge_flags import differences, refuse_other_requests
    from fuseproof.cli.diverge_search import ROLES

    if len(configs) < len(ROLES):
        return
    one, other = (configs[role] for role in ROLES)
    refuse_other_requests(one, other)
    for setting in differences(one, other):
        _say(f"the arms differ in {setting}")


@contextmanager
def _processes(plan: Plan, folder: Path) -> Iterator[ArmProcesses]:
    """Both arms ready to start: refs checked out, set up and proved to be what is imported, as for a campaign."""
    from fuseproof.cli.diverge_processes import ArmProcesses
    from fuseproof.harness.campaign.arm_caches import cache_space, remove_space
    from fuseproof.harness.campaign.git_arms import prepare_arms, resolve_arms

    worktrees = resolve_arms(plan, Path.cwd())
    space = cache_space(folder, datetime.now(UTC).isoformat())
    try:
        prepared = prepare_arms(plan, worktrees, space, Path.cwd())
        for remark in prepared.remarks:
            _say(remark)
        yield ArmProcesses(plan, prepared.places, folder)
    finally:
        remove_space(space)


def _held_back(found: Result) -> list[str]:
    """Sites whose gate refused to run fused: why a wrong kernel may show no difference at all."""
    return [
        f"{role}: the gate of {name} let eager run instead ({site['reason']}); --gate off lets the kernel through"
        for role, answer in found.arms.items()
        for name, site in answer.get("sites", {}).items()
        if site.get("state") == "rejected"
    ]


def _say(text: str) -> None:
    click.echo(f"fuseproof: {visible(text)}", err=True)
