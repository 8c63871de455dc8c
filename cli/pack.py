"""``fuseproof pack``: one archive of a campaign, to attach to a pull request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseproof.cli.options import json_option

if TYPE_CHECKING:
    from fuseproof.harness.report.pack import Packed

MOST_NAMED = 3


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The archive to write; never an existing file.  [default: <name of DIR>.zip here]",
)
@click.option(
    "--asset-base-url",
    metavar="URL",
    help="Where the files of assets/ will be served from: the body shows them as URL/NAME. Without it the body names "
    "them and holds no image.",
)
@click.option(
    "--without-logs",
    is_flag=True,
    help="Leave out the slots' stdout.log and stderr.log, except where a time rests on them.",
)
@click.option(
    "--without-outputs",
    is_flag=True,
    help="Leave out pictures, kept raw arrays, figures and report.html: small enough to keep in a repository. Their "
    "hashes stay, as recorded.",
)
@click.option("--unverified", is_flag=True, help="Pack a folder that does not verify; the body's first line says so.")
@json_option()
def pack(
    directory: Path,
    output: Path | None,
    asset_base_url: str | None,
    without_logs: bool,
    without_outputs: bool,
    unverified: bool,
    as_json: bool,
) -> int:
    """Pack the campaign in DIR: the whole folder, pull-request.md to paste, and the pictures it shows in assets/.

    The text to paste is also written beside the archive, as <name>.pull-request.md. What --without-logs and
    --without-outputs leave behind is named in left-out.txt, and `fuseproof verify` accepts exactly that as missing.

    The folder is verified first, as `fuseproof verify` does. The body stays below GitHub's 65,536 characters, and its
    pictures have flat names that stay the same: <cell>-<block>-<slot>-<n>.png. The same folder gives the same bytes.

    Exit code: 0, 1 the folder does not verify or the archive cannot be written, 2 usage.
    """
    from fuseproof.harness.report.pack import pack_campaign
    from fuseproof.harness.report.pull_request import checked_base_url

    packed = pack_campaign(
        directory,
        output if output is not None else Path(f"{directory.resolve().name}.zip"),
        base_url=None if asset_base_url is None else checked_base_url(asset_base_url),
        has_logs=not without_logs,
        has_outputs=not without_outputs,
        allows_unverified=unverified,
    )
    for line in _warnings(packed):
        click.echo(line, err=True)
    click.echo(json.dumps(_as_json(packed), indent=2) if as_json else _text(packed))
    return 0


def _as_json(packed: Packed) -> dict[str, Any]:
    return {
        "schema": "fuseproof.pack/1",
        "archive": str(packed.archive),
        "archive_bytes": packed.archive_bytes,
        "body": str(packed.body_file),
        "files": packed.files,
        "left_out": packed.left_out,
        "picture_bytes": packed.picture_bytes,
        "log_bytes": packed.log_bytes,
        "assets": list(packed.assets),
        "body_characters": packed.body_characters,
        "is_verified": packed.is_verified,
        "suspicious": list(packed.suspicious),
    }


def _text(packed: Packed) -> str:
    from fuseproof.harness.escape import visible
    from fuseproof.harness.report.pull_request import ASSETS_FOLDER, BODY_FILE, LONGEST_BODY

    sizes = f"pictures {_mib(packed.picture_bytes)}, logs {_mib(packed.log_bytes)} before compression"
    return "\n".join(
        (
            visible(f"{packed.archive}: {packed.files} files, {_mib(packed.archive_bytes)} ({sizes})"),
            visible(
                f"{packed.body_file}: the text to paste, {packed.body_characters:,} of {LONGEST_BODY:,} characters; "
                f"also in the archive as {BODY_FILE}"
            ),
            f"{ASSETS_FOLDER}/: {len(packed.assets)} pictures",
            *([f"left out, with their hashes in left-out.txt: {packed.left_out} files"] if packed.left_out else []),
        )
    )


def _warnings(packed: Packed) -> list[str]:
    found = []
    if not packed.is_verified:
        found.append("fuseproof: warning: the folder does not verify; the body's first line says so")
    words = f"{packed.logs} logs and all perf.json" if packed.logs else "all perf.json"
    found.append(
        f"fuseproof: note: {words} are packed in the arms' own words, not redacted; look through them before you share "
        "the archive" + ("; --without-logs leaves the logs out" if packed.logs else "")
    )
    if packed.suspicious:
        named = ", ".join(packed.suspicious[:MOST_NAMED])
        more = f" and {len(packed.suspicious) - MOST_NAMED} more" if len(packed.suspicious) > MOST_NAMED else ""
        found.append(f"fuseproof: warning: these hold what looks like a secret or a home folder: {named}{more}")
    return found


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.2f} MiB"
