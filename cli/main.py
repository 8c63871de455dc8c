"""Table of contents of the ``fuseproof`` program: which command lives where, and how an error leaves it.

Commands are imported only when they run: ``fuseproof --help`` must answer in under 0.3 s, so nothing here may load
torch, triton, diffusers or pydantic. The one-line helps stand here because click's own listing would import them all.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import select
import sys
from collections.abc import Sequence
from pathlib import PurePath
from types import TracebackType
from typing import NamedTuple

import click

from fuseproof import __version__
from fuseproof.cli import exit_codes
from fuseproof.cli.termination import Terminated, signals_raise
from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.escape import visible


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
    "compare-media": Command(
        "compare_media", "compare_media", "Compare two images, clips or folders: bytes, pixels, then metrics."
    ),
    "report": Command("report", "report", "Render a campaign's report again from its folder."),
    "profile": Command("profile", "profile", "Say which kernels, sites and lines take a request's time."),
    "diverge": Command("diverge", "diverge", "Find the first step, module and site where two arms differ by a bit."),
    "import": Command("import_", "import_", "Make a campaign folder from dumps, logs and outputs that exist already."),
    "verify": Command(
        "verify", "verify", "Recompute every hash, metric and number of a campaign; fail on a difference."
    ),
    "pack": Command("pack", "pack", "Make one archive of a campaign, to attach to a pull request."),
    "fastpaths": Command("fastpaths", "fastpaths", "List, explain, check and measure fast paths."),
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
    if arguments is None:
        _hold_standard_descriptors()
    if sys.stdout is None:
        return report_error(
            FuseproofError(
                "standard output is closed, so no result can be shown.", next_step="Redirect it, even to /dev/null."
            )
        )
    _escape_what_cannot_be_encoded()
    try:
        with signals_raise():
            return _run(arguments)
    except (click.exceptions.Abort, KeyboardInterrupt):
        return _ended("interrupted", exit_codes.INTERRUPTED)
    except Terminated:
        return _ended("terminated", exit_codes.TERMINATED)
    except OSError as error:
        return _report_lost_output(error)
    except SystemExit as error:
        return _report_exit(error)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        result = cli.main(args=arguments, prog_name="fuseproof", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        return _report_click_error(error)
    except FuseproofError as error:
        return report_error(error)
    except ImportError as error:
        return _report_missing_library(error)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return report_error(_too_long(str(error.filename or "")))
    return result if isinstance(result, int) else 0


def _too_long(path: str) -> UsageError:
    """No file of ours has such a name: it was given, as whatever path the command takes."""
    longest = max(path.split("/"), key=len)
    return UsageError(
        f"The name {longest[:40]}… has {len(longest.encode(errors='replace'))} bytes, in a path of {len(path)}; "
        "255 are the most in a name, 4095 in a path.",
        next_step="Check the path that was given.",
    )


def _hold_standard_descriptors() -> None:
    """Where the caller closed one of the first three descriptors, the next file would get it, and stray prints too."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one


def _escape_what_cannot_be_encoded() -> None:
    """A file name of other bytes than UTF-8 is printed with escapes; it must not end a run whose work is done."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def report_error(error: FuseproofError) -> int:
    """Print an error as one sentence and one next step on stderr, and return its exit code."""
    click.echo(f"fuseproof: error: {_on_one_line(error.message)}", err=True)
    if error.next_step:
        click.echo(f"  next: {_on_one_line(error.next_step)}", err=True)
    return error.exit_code


def _on_one_line(text: str) -> str:
    """A path may hold a line break or a terminal's control codes; a message shows them and obeys none."""
    return visible(text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t"))


def _report_click_error(error: click.ClickException) -> int:
    command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "fuseproof"
    click.echo(f"fuseproof: error: {_on_one_line(error.format_message())}", err=True)
    click.echo(f"  next: {command} --help lists every option.", err=True)
    return error.exit_code


def _report_missing_library(error: ImportError) -> int:
    """A light installation reads reports without torch; a fault of ours inside the package keeps its traceback."""
    if error.name is None or error.name.split(".")[0] == "fuseproof":
        raise error
    lacks = "is not installed here" if isinstance(error, ModuleNotFoundError) else f"cannot be loaded here: {error}"
    missing = FuseproofError(
        f"this command needs the library {error.name}, which {lacks}.",
        next_step="`make setup` in the checkout installs everything; `fuseproof doctor` lists what is missing.",
    )
    return report_error(missing)


def _report_lost_output(error: OSError) -> int:
    """Printing failed: the disk behind stdout is full, or its reader is gone. Any other OSError is a bug of ours."""
    where = _innermost(error)
    if where is None or where.tb_frame.f_globals.get("__name__") != "click.utils":
        raise error
    if error.errno == errno.EPIPE:
        _drop_buffered_output()
        return 1
    return _say_output_lost(error.strerror or str(error))


def _innermost(error: BaseException) -> TracebackType | None:
    """Where the error was raised."""
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    return where


def _report_exit(error: SystemExit) -> int:
    """Click answers any broken pipe with a silent exit, which is right for our own output alone."""
    if _has_lost_its_reader():
        _drop_buffered_output()  # `| head` has read enough: nothing to complain about
        return 1
    place = _innermost(error)
    if place is None or place.tb_frame.f_globals.get("__name__") == "click.core":
        return report_error(FuseproofError("a pipe that the command wrote to was closed by whoever read it."))
    return report_error(
        FuseproofError(
            f"the command was cut short by an exit with {error.code!r} in "
            f"{PurePath(place.tb_frame.f_code.co_filename).name} line {place.tb_lineno}.",
            next_step="Take sys.exit() out of the code that fuseproof was given, or raise an error that says why.",
        )
    )


def _has_lost_its_reader() -> bool:
    """Whether stdout or stderr is a pipe that nobody reads any more."""
    gone = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or no descriptor at all
            gone.register(stream.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in gone.poll(0))


def _say_output_lost(reason: str) -> int:
    _drop_buffered_output()
    lost = FuseproofError(
        f"the result could not be printed: {reason}.",
        next_step="Redirect standard output to a file with space; files that the run wrote are whole.",
    )
    with contextlib.suppress(OSError):  # stderr may be the one that is full
        report_error(lost)
    return lost.exit_code


def _drop_buffered_output() -> None:
    """What is buffered can never be written; Python would try again at exit and end in a traceback."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            os.dup2(null, stream.fileno())
    os.close(null)


def _ended(how: str, exit_code: int) -> int:
    with contextlib.suppress(OSError):  # the terminal may be what has gone
        click.echo(f"fuseproof: {how}", err=True)
    return exit_code
