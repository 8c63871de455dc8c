"""``fuseproof profile``: where a request's device time goes, by class, site, module and line; before against after."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseproof.cli.generate import ARGUMENTS, RememberingCommand
from fuseproof.cli.hash_seed import restart_with_fixed_hash_seed
from fuseproof.cli.option_fields import click_options
from fuseproof.cli.profile_options import ProfileOptions, request_words
from fuseproof.harness.escape import visible

if TYPE_CHECKING:
    from fuseproof.harness.profiles.comparison import ProfileComparison
    from fuseproof.harness.profiles.profile import Profile
    from fuseproof.harness.profiles.timings import Timings

STDOUT = "-"


@click.command(
    cls=RememberingCommand,
    context_settings={"ignore_unknown_options": True},
    options_metavar="[OPTIONS] [FLAGS OF GENERATE]",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[PROFILE]")
@click_options(ProfileOptions)
@click.pass_context
def profile(ctx: click.Context, /, **arguments: Any) -> int:
    """Say where a request's device time goes: by class of kernel, by site, module and line, and what fusing would save.

    Runs one request, after a warm-up, with torch's profiler on complete denoise steps, and writes profile.json,
    profile.md, profile.html (with a flame view) and trace.json.gz. Every flag of `generate` that says what to run is
    taken; without any it is a small request on the embedded model. PROFILE, a profile.json, a before-after.json, or the
    folder of either, is shown again instead. Times under a profiler are for comparing parts with each other, never with
    timed runs (docs/profile.md).

    \b
    fuseproof profile --model-path longcat-image --load-format dummy -o eager --fastpaths=off
    fuseproof profile --before "--fastpaths=off" --after "--fastpaths=auto" --flags "--prompt 'a red circle'"
    fuseproof profile --before eager --after fused --timings CAMPAIGN
    fuseproof profile eager

    Exit codes: 0 done, 1 unreadable profile, unequal requests or a failed run, 2 usage, 130 interrupted.
    """
    options = ProfileOptions(**arguments)
    _check_json(options)
    if options.compares:
        return _compare(options)
    if options.rendered is not None:
        return _render(options, options.rendered)
    restart_with_fixed_hash_seed("profile", ctx.meta[ARGUMENTS])
    return _capture(options)


def _capture(options: ProfileOptions) -> int:
    from fuseproof.cli.profile_capture import parsed_request, profile_into
    from fuseproof.cli.profile_folders import free_folder

    request = parsed_request(request_words(options.words))
    folder = free_folder(options.output_path)
    found = profile_into(folder, request, options.profiled_steps, all_stages=options.profile_all_stages)
    _show(options, found)
    names = ["profile.json", "profile.md", "profile.html", *(["trace.json.gz"] if found.trace is not None else [])]
    _say(f"{', '.join(names[:-1])} and {names[-1]} are in {folder}")
    return 0


def _render(options: ProfileOptions, path: Path) -> int:
    from fuseproof.cli.profile_folders import refuse_other_profile
    from fuseproof.harness.profiles.comparison_files import comparison_folder
    from fuseproof.harness.profiles.reading import read_profile
    from fuseproof.harness.profiles.writing import write_rendered

    folder = comparison_folder(path)
    if folder is not None:
        return _render_comparison(options, folder)
    found = read_profile(path)
    if options.output_path is not None:
        folder = Path(options.output_path)
        refuse_other_profile(folder, Path(found.source))
        write_rendered(folder, found)
        _say(f"profile.md and profile.html are in {folder}")
    _show(options, found)
    return 0


def _render_comparison(options: ProfileOptions, folder: Path) -> int:
    from fuseproof.cli.profile_folders import free_folder
    from fuseproof.harness.profiles import comparison_files as files

    comparison, timings = files.read_comparison(folder)
    if options.output_path is not None:
        target = Path(options.output_path)
        if target.exists() and target.samefile(folder):
            files.write_rendered_comparison(folder, comparison, timings)
        else:
            free_folder(options.output_path, (files.COMPARISON_FILE,))
            files.write_comparison(target, comparison, timings, _values(comparison, timings))
        _say(f"before-after.md and before-after.html are in {target}")
    _show_comparison(options, comparison, timings)
    return 0


def _compare(options: ProfileOptions) -> int:
    from fuseproof.cli.profile_sides import both_profiles
    from fuseproof.harness.profiles.comparison import compare_profiles
    from fuseproof.harness.profiles.comparison_files import write_comparison
    from fuseproof.harness.profiles.timings import read_timings, refuse_unreadable

    if options.timing_files:
        refuse_unreadable(options.timing_files)
    before, after, folder = both_profiles(options, _say)
    comparison = compare_profiles(before, after)
    timings = read_timings(options.timing_files, comparison) if options.timing_files else None
    if folder is not None:
        write_comparison(folder, comparison, timings, _values(comparison, timings))
        _say(f"before-after.md, before-after.html and before-after.json are in {folder}, beside both profiles")
    _show_comparison(options, comparison, timings)
    return 0


def _values(comparison: ProfileComparison, timings: Timings | None) -> dict[str, Any]:
    from fuseproof.harness.profiles.comparison import as_json

    return as_json(comparison) | {"timings": None if timings is None else timings.to_json()}


def _show_comparison(options: ProfileOptions, comparison: ProfileComparison, timings: Timings | None) -> None:
    from fuseproof.harness.profiles.comparison_build import TERMINAL, build_comparison
    from fuseproof.harness.profiles.text import render_text

    document = build_comparison(comparison, timings, TERMINAL)
    _print(options, _values(comparison, timings), lambda: render_text(document, _columns()))


def _columns() -> int | None:
    """What a terminal is wide; None where stdout is none, so that a file or a pipe gets whole lines."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _show(options: ProfileOptions, found: Profile) -> None:
    from fuseproof.harness.profiles.build import TERMINAL, build_document
    from fuseproof.harness.profiles.text import render_text

    _print(options, found.raw, lambda: render_text(build_document(found, TERMINAL), _columns()))


def _check_json(options: ProfileOptions) -> None:
    """Whether ``--json`` can be written, and replaces nothing that is read: asked before anything runs."""
    if options.json is None or options.json == STDOUT:
        return
    from fuseproof.cli.output_names import check_distinct, check_file
    from fuseproof.cli.profile_folders import PROFILE_FILE
    from fuseproof.harness.profiles.places import expanded

    target = Path(options.json)
    check_file(target, "--json")
    read = {"--before": options.before, "--after": options.after, "the profile": options.rendered}
    places = {flag: [expanded(str(one))] for flag, one in read.items() if one is not None}
    inputs = {flag: [*paths, *(path / PROFILE_FILE for path in paths)] for flag, paths in places.items()}
    check_distinct(target, "--json", {**inputs, "--timings": options.timing_files})


def _print(options: ProfileOptions, values: Mapping[str, Any], text: Callable[[], str]) -> None:
    """Print ``text``, then write ``--json``, or print that in its place."""
    if options.json == STDOUT:
        click.echo(json.dumps(values, indent=1, allow_nan=False))
        return
    click.echo(text(), nl=False)
    if options.json is not None:
        from fuseproof.harness.atomic_files import write_text_atomically

        write_text_atomically(options.json, json.dumps(values, indent=1, allow_nan=False) + "\n")


def _say(text: str) -> None:
    click.echo(f"fuseproof: {visible(text)}", err=True)
