"""Table of contents of the ``fuseproof`` program: which command lives where, and how an error leaves it.

Commands are imported only when they run: ``fuseproof --help`` must answer in under 0.3 s, so nothing here may load
torch, triton, diffusers or pydantic. The one-line helps stand here because click's own listing would import them all.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

import click

from fuseproof import __version__
from fuseproof.errors import FuseproofError

INTERRUPTED_EXIT_CODE = 130


class Command(NamedTuple):
    module: str
    attribute: str
    help: str


COMMANDS: dict[str, Command] = {
    "generate": Command("generate", "generate", "Generate images through a native or a diffusers pipeline."),
    "abba": Command("abba", "abba", "Run baseline and candidate in A-B-B-A order and judge the difference."),
    "compare-perf": Command(
        "compare_perf", "compare_perf", "Compare perf dumps, ours or sglang's; the first is the baseline."
    ),
    "compare-media": Command("compare_media", "compare_media", "Compare two images or folders: bytes, pixels, then metrics."),
    "report": Command("report", "report", "Render a campaign's report again from its folder."),
    "models": Command("models", "models", "List and describe model families; write tiny checkpoints."),
    "doctor": Command("doctor", "doctor", "Say what this machine can run and measure."),
}


class LazyGroup(click.Group):
    """A group that imports a command's module only when that command is run or asked for its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module = importlib.import_module(f"fuseproof.cli.{entry.module}")
        command: click.Command = getattr(module, entry.attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="fuseproof")
def cli() -> None:
    """The same bits, sooner, with proof.

    `generate` makes images with exact fast paths; `abba` proves what a change is worth.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code; ``arguments`` default to ``sys.argv[1:]``."""
    try:
        result = cli.main(args=arguments, prog_name="fuseproof", standalone_mode=False)
    except click.exceptions.Abort:
        return _interrupted()
    except KeyboardInterrupt:
        return _interrupted()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        return _report_click_error(error)
    except FuseproofError as error:
        return report_error(error)
    except ModuleNotFoundError as error:
        return _report_missing_library(error)
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    return result if isinstance(result, int) else 0


def report_error(error: FuseproofError) -> int:
    """Print an error as one sentence and one next step on stderr, and return its exit code."""
    click.echo(f"fuseproof: error: {error.message}", err=True)
    if error.next_step:
        click.echo(f"  next: {error.next_step}", err=True)
    return error.exit_code


def _report_click_error(error: click.ClickException) -> int:
    command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "fuseproof"
    click.echo(f"fuseproof: error: {error.format_message()}", err=True)
    click.echo(f"  next: {command} --help lists every option.", err=True)
    return error.exit_code


def _report_missing_library(error: ModuleNotFoundError) -> int:
    """A light installation reads reports without torch; a fault of ours inside the package keeps its traceback."""
    if error.name is None or error.name.split(".")[0] == "fuseproof":
        raise error
    missing = FuseproofError(
        f"this command needs the library {error.name}, which is not installed here.",
        next_step="pip install fuseproof installs everything; `fuseproof doctor` lists what is missing.",
    )
    return report_error(missing)


def _interrupted() -> int:
    click.echo("fuseproof: interrupted", err=True)
    return INTERRUPTED_EXIT_CODE
