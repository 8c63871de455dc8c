"""Writes the pages of ``docs/cli`` from the commands' own ``--help``, so that the two cannot drift apart.

``python -m fuseproof.cli.reference docs/cli`` writes; with ``--check`` it changes nothing and fails on any difference.
``--guide docs/fast-paths.md`` does the same for the guide to the fast paths, whose text stands in their docstrings.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from fuseproof.cli.fastpaths_page import page
from fuseproof.cli.main import cli, report_error
from fuseproof.errors import FuseproofError

# Fixed, so that the pages do not depend on the terminal that wrote them.
HELP_WIDTH = 100
INDEX = "README.md"
_NOTICE = "<!-- Written by `make docs` from the commands' --help; a test fails when it differs. -->"
_EXIT_CODES = """\
| code | meaning |
|---|---|
| 0 | done, whatever the verdict (SAME and INCONCLUSIVE too) |
| 1 | failed: unreadable input, an arm that failed or ran out of memory, a mismatch |
| 2 | usage: the command line or a file given on it cannot be carried out as written |
| 3 | SLOWER (`abba` and `compare-perf --abba`; `fastpaths bench --baseline`: a kernel is slower) |
| 4 | outputs break their contract; `diverge`: something differs |
| 5 | a required verdict was not reached |
| 6 | invalid: what was measured proves nothing (unequal work, a busy device, a fallback, a missing graph) |
| 130 | interrupted |
| 143 | ended by SIGTERM (`generate`); nothing is left half-written |

Where several apply: 130, 2, 1, 6, 4, 3, 5."""


def pages() -> dict[str, str]:
    """Text by file name: one page a command, its sub-commands on it, and an index."""
    root = _context(cli, "fuseproof", None)
    commands = dict(_subcommands(cli, root))
    texts = {f"{name}.md": _command_page(command, name, root) for name, command in commands.items()}
    return {INDEX: _index_page(root, commands), **texts}


def differences(folder: Path) -> list[str]:
    """One sentence for every page of ``folder`` that is missing, differs from ``--help``, or belongs to no command."""
    expected = pages()
    found = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}
    missing = [f"{folder / name} is missing" for name in expected if name not in found]
    stale = [
        f"{folder / name} differs from --help" for name in expected if found.get(name, expected[name]) != expected[name]
    ]
    return missing + stale + [f"{folder / name} belongs to no command" for name in found if name not in expected]


def write_pages(folder: Path) -> list[str]:
    """Write every page that differs, remove pages of commands that are gone, and return the names touched."""
    folder.mkdir(parents=True, exist_ok=True)
    expected = pages()
    touched = []
    for path in sorted(folder.glob("*.md")):
        if path.name not in expected:
            path.unlink()
            touched.append(path.name)
    for name, text in expected.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            touched.append(name)
    return touched


def guide_differences(path: Path) -> list[str]:
    """One sentence where the guide to the fast paths is missing, or says something else than their docstrings."""
    if not path.is_file():
        return [f"{path} is missing"]
    is_current = path.read_text(encoding="utf-8") == page()
    return [] if is_current else [f"{path} differs from the docstrings in fastpaths"]


def write_guide(path: Path) -> list[str]:
    """Write the guide where it differs, and return its name if it did."""
    if not guide_differences(path):
        return []
    path.write_text(page(), encoding="utf-8")
    return [path.name]


def undocumented(command: click.Command, path: str) -> Iterator[str]:
    """Names of commands without help text and of options without one, at any depth."""
    if not (command.help or "").strip():
        yield path
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden and not parameter.help:
            yield f"{path} {'/'.join(parameter.opts)}"
    if isinstance(command, click.Group):
        for name, child in _subcommands(command, _context(command, path, None)):
            yield from undocumented(child, f"{path} {name}")


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    settings = command.context_settings if parent is None else {}
    width = {"terminal_width": HELP_WIDTH, "max_content_width": HELP_WIDTH}
    return click.Context(command, parent=parent, info_name=name, **{**settings, **width})


def _subcommands(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None and not command.hidden:
            yield name, command


def _command_page(command: click.Command, name: str, parent: click.Context) -> str:
    sections = [f"# fuseproof {name}", _NOTICE, *_help_sections(command, name, parent)]
    return "\n\n".join(sections) + "\n"


def _help_sections(command: click.Command, name: str, parent: click.Context) -> Iterator[str]:
    context = _context(command, name, parent)
    yield f"```text\n{_help(command, context)}\n```"
    if isinstance(command, click.Group):
        for child_name, child in _subcommands(command, context):
            yield f"## {context.command_path} {child_name}"
            yield from _help_sections(child, child_name, context)


def _index_page(root: click.Context, commands: dict[str, click.Command]) -> str:
    rows = [f"| [`{name}`]({name}.md) | {_summary(command)} |" for name, command in commands.items()]
    table = "\n".join(["| command | what it does |", "|---|---|", *rows])
    overview = f"```text\n{_help(cli, root)}\n```"
    return "\n\n".join(["# Commands", _NOTICE, table, overview, "## Exit codes", _EXIT_CODES]) + "\n"


def _summary(command: click.Command) -> str:
    return command.get_short_help_str(HELP_WIDTH).replace("|", "\\|")


def _help(command: click.Command, context: click.Context) -> str:
    lines = click.unstyle(command.get_help(context)).splitlines()
    return "\n".join(line.rstrip() for line in lines)


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--check", is_flag=True, help="Change nothing; fail when a page differs from --help.")
@click.option("--guide", type=click.Path(path_type=Path), help="Write the guide to the fast paths here, too.")
def reference(folder: Path, check: bool, guide: Path | None) -> None:
    """Write the command pages into FOLDER."""
    if not check:
        touched = write_pages(folder) + (write_guide(guide) if guide is not None else [])
        click.echo(
            f"{len(touched)} page(s) changed in {folder}" + (f": {', '.join(touched)}" if touched else ""), err=True
        )
        return
    found = differences(folder) + (guide_differences(guide) if guide is not None else [])
    if found:
        raise FuseproofError("; ".join(found), next_step="make docs")


def main() -> int:
    try:
        reference(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except FuseproofError as error:
        return report_error(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
