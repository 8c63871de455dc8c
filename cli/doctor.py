"""``fuseproof doctor``: what this machine can run and measure, and what would make its numbers untrustworthy."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click

from fuseproof.cli.options import json_option
from fuseproof.errors import FuseproofError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fuseproof.harness.machine.capabilities import Capability
    from fuseproof.harness.machine.facts import Finding, MachineFacts

SCHEMA = "fuseproof.doctor/1"
_COLORS = {"ok": "green", "yes": "green", "warn": "yellow", "problem": "red", "no": "red"}


@click.command()
@click.option(
    "--model",
    metavar="MODEL",
    help="Predict which fast paths of this model would mount here, and why not. Imports torch and diffusers first.",
)
@json_option()
def doctor(model: str | None, as_json: bool) -> int:
    """Say what this machine can run and measure, and what would make a measurement here untrustworthy.

    Looks for about half a second and changes nothing. Exit code 0 even with warnings; 1 only when `generate` cannot
    run at all. With --model it also says what `fastpaths list` says of that model, without reading its weights; that
    takes ten seconds or more, nearly all of it for importing torch, diffusers and the model's classes.
    """
    try:
        from fuseproof.harness.machine.capabilities import command_capabilities, measurement_capabilities
        from fuseproof.harness.machine.check import check_machine
        from fuseproof.harness.machine.facts import gather_facts

        facts = gather_facts()
    except ModuleNotFoundError as error:
        raise FuseproofError(
            f"doctor itself needs {error.name}, which is not installed", next_step=f"pip install {error.name}"
        ) from error
    commands = command_capabilities(facts)
    measurements = measurement_capabilities(facts)
    findings = [*check_machine(facts), *_embedded_weights()]
    fastpaths = _fastpaths(model)
    if as_json:
        document = _as_json(facts, commands, measurements, findings) | fastpaths
        click.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        _print_text(commands, measurements, findings)
        _print_fastpaths(fastpaths)
    return exit_code(commands, findings)


def _embedded_weights() -> Iterator[Finding]:
    """What the default model draws with, and whether packaged weights are whole; nothing where a library is missing."""
    from fuseproof.harness.machine.facts import Finding

    try:
        from fuseproof.pipelines.embedded import PREFIX, embedded_weights, refuse_damaged_packages
        from fuseproof.pipelines.model_cache import RECIPES
    except ModuleNotFoundError:  # which the libraries' own check tells
        return
    try:
        refuse_damaged_packages()
        trained = [name for name in RECIPES if embedded_weights(name) == "trained"]
    except FuseproofError as error:
        yield Finding("problem", "embedded models", error.message, error.next_step)
        return
    if trained:
        seen = f"trained weights, and whole: {', '.join(trained)}; of every other {PREFIX}NAME random ones"
    else:
        seen = f"random weights, built on first use: every {PREFIX}NAME draws noise"
    yield Finding("ok", "embedded models", seen)


def _fastpaths(model: str | None) -> dict[str, Any]:
    """What would mount on the model; empty where none was named, and then no model library is loaded."""
    if model is None:
        return {}
    from fuseproof.cli.fastpaths_coverage import coverage

    return {"fastpaths": coverage(model)}


def _print_fastpaths(found: dict[str, Any]) -> None:
    if not found:
        return
    from fuseproof.cli.fastpaths_coverage import coverage_lines

    click.echo("\nWhich fast paths would mount here")
    for line in coverage_lines(found["fastpaths"]):
        click.echo(f"  {line}")


def exit_code(commands: list[Capability], findings: list[Finding]) -> int:
    """1 when ``generate`` cannot run: a library is missing or Python is too old."""
    can_generate = all(command.is_available for command in commands if command.name == "generate")
    has_old_python = any(finding.topic == "python" and finding.level == "problem" for finding in findings)
    return 0 if can_generate and not has_old_python else 1


def _as_json(
    facts: MachineFacts, commands: list[Capability], measurements: list[Capability], findings: list[Finding]
) -> dict[str, Any]:
    from dataclasses import asdict

    from fuseproof.harness.machine.environment import describe, redact_mapping

    document = {
        "schema": SCHEMA,
        "commands": [asdict(capability) for capability in commands],
        "measurements": [asdict(capability) for capability in measurements],
        "findings": [asdict(finding) for finding in findings],
        "activity": asdict(facts.activity),
        "environment": describe(host=facts.host, gpus=facts.gpus, variables=facts.variables),
    }
    return redact_mapping(document)


def _print_text(commands: list[Capability], measurements: list[Capability], findings: list[Finding]) -> None:
    from fuseproof.harness.machine.environment import redact

    # click drops colour by itself when stdout is no terminal.
    color = False if os.environ.get("NO_COLOR") else None
    for mark, line in _lines(commands, measurements, findings):
        styled = click.style(mark, fg=_COLORS[mark.strip()]) if mark.strip() in _COLORS else mark
        click.echo(styled + redact(line), color=color)


def _lines(
    commands: list[Capability], measurements: list[Capability], findings: list[Finding]
) -> Iterator[tuple[str, str]]:
    """Pairs of a mark, which may be coloured, and the rest of the line."""
    yield "", "What can run here"
    yield from _capability_lines(commands)
    yield "", "\nWhat can be measured here"
    yield from _capability_lines(measurements)
    yield "", "\nWhat would make a measurement untrustworthy"
    width = max(len(finding.topic) for finding in findings)
    for finding in findings:
        yield f"  {finding.level:<8}", f"{finding.topic:<{width}}  {finding.message}"
        if finding.next_step:
            yield "", f"{'':<{width + 12}}next: {finding.next_step}"
    yield "", f"\n{summary(findings)}"


def _capability_lines(capabilities: list[Capability]) -> Iterator[tuple[str, str]]:
    width = max(len(capability.name) for capability in capabilities)
    for capability in capabilities:
        mark = "yes" if capability.is_available else "no"
        yield f"  {mark:<4}", f"{capability.name:<{width}}  {capability.reason or ''}".rstrip()


def summary(findings: list[Finding]) -> str:
    """The last line: how many findings of which weight, and what that means."""
    problems = sum(finding.level == "problem" for finding in findings)
    warnings = sum(finding.level == "warn" for finding in findings)
    if problems:
        return f"{problems} problem(s), {warnings} warning(s): do not trust a time measured here until they are solved."
    if warnings:
        return f"No problem, {warnings} warning(s): times measured here may be noisy; bits are not affected."
    return "No problem and no warning: a good place to measure."
