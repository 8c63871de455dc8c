"""``fuseproof compare-media``: two pictures, two videos, or two folders of them, by bytes, values and metrics."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuseproof.cli import exit_codes
from fuseproof.cli.options import json_option
from fuseproof.cli.output_names import check_file_name
from fuseproof.errors import UsageError

if TYPE_CHECKING:
    from fuseproof.harness.media.comparing import Comparison
    from fuseproof.harness.media.folders import MediaReport
    from fuseproof.schedules.contracts import Contract


@dataclass(frozen=True)
class CompareMediaOptions:
    """What the command line asked for, checked across flags before anything is read."""

    a: Path
    b: Path
    contract: Contract | None
    diff_image: Path | None
    data_range: float | None

    def __post_init__(self) -> None:
        if self.diff_image is not None:
            _check_diff_image(self.diff_image, (self.a, self.b))


@dataclass(frozen=True)
class DiffImage:
    path: Path
    pair: str
    amplification: int
    frame: int | None
    """The frame of a video that is drawn, from 1: its worst one."""


@click.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--contract", metavar="TEXT", help='What must hold: "exact", or "close:ssim>=0.95,psnr>=28".')
@click.option(
    "--diff-image",
    type=click.Path(path_type=Path),
    help="Write A | B | amplified difference as PNG; of two folders, the worst pair that can be drawn; of two videos, "
    "the worst frame.",
)
@click.option(
    "--data-range",
    type=float,
    help="Largest minus smallest possible value of float arrays (1 for 0..1); integers have their own.",
)
@json_option()
def compare_media(
    a: Path, b: Path, contract: str | None, diff_image: Path | None, data_range: float | None, as_json: bool
) -> int:
    """Compare picture or video A with B, or the folders A and B file name by file name.

    Names that differ only in a time (outputs of two runs) belong together; where no names agree, pictures with times
    in their names are paired in that order. A note says which pairs were not formed by equal names.

    Equality comes first: file bytes, then decoded values in their native depth. SSIM (with its variant), PSNR and
    distances follow. Sizes, channels and bit depths must agree; nothing is ever resized or converted. In folders every
    pair is compared, and the worst decides.

    Videos are compared frame by frame: frame count, size, frame rate and sound, identical frames, SSIM and PSNR of the
    worst frame and on average, and which frames differ. The worst frame decides a contract; the usual one of videos is
    "close:ssim>=0.92,psnr>=24".

    Reads PNG, JPEG, WEBP, TIFF, BMP, GIF, MP4 and other videos, and .npy arrays (HxW, HxWxC, of videos TxHxWxC). JPEG,
    GIF, lossy WEBP and MP4 can never fulfil "exact": equal files of a lossy container do not prove equal outputs.
    Constant or non-finite outputs fulfil no contract.

    \b
    Exit codes:
      0  compared; with --contract: the contract holds
      1  something could not be compared: unreadable or, without --contract, a missing partner,
         different sizes, channels or bit depths, non-finite values
      2  usage
      4  the contract is broken (only with --contract)
    """
    from fuseproof.harness.media.folders import compare_paths
    from fuseproof.schedules.contracts import parse_contract

    parsed = None if contract is None else parse_contract(contract)
    options = CompareMediaOptions(a, b, parsed, diff_image, data_range)
    report = compare_paths(a, b, data_range=data_range)
    drawn = _write_diff_image(report, options)
    _print_warnings(report, data_range)
    click.echo(_json_text(report, options, drawn) if as_json else _plain_text(report, options, drawn))
    return _exit_code(report, options.contract)


def _exit_code(report: MediaReport, contract: Contract | None) -> int:
    if report.errors:
        return exit_codes.FAILED
    if contract is not None:
        return exit_codes.CONTRACT if report.violations(contract) else 0
    is_incomplete = any(pair.comparison and _is_incomparable(pair.comparison) for pair in report.pairs)
    return exit_codes.FAILED if report.unmatched or is_incomplete else 0


def _is_incomparable(comparison: Comparison) -> bool:
    return comparison.mismatch is not None or comparison.has_nonfinite


def _check_diff_image(diff_image: Path, inputs: tuple[Path, Path]) -> None:
    from fuseproof.harness.media.files import printable

    shown = printable(diff_image)
    if diff_image.suffix.lower() != ".png":
        raise UsageError(f"The diff image {shown} is not named .png.", next_step="name a file that ends in .png")
    if not diff_image.parent.is_dir():
        raise UsageError(
            f"The diff image's folder {printable(diff_image.parent)} does not exist.", next_step="create it first"
        )
    if diff_image.is_dir():
        raise UsageError(f"The diff image {shown} is a folder.", next_step="name a file that ends in .png")
    check_file_name(diff_image, "--diff-image")
    for path in inputs:
        is_input = path.exists() and diff_image.exists() and diff_image.samefile(path)
        if is_input or (path.is_dir() and diff_image.parent.samefile(path)):
            raise UsageError(
                f"The diff image {shown} would overwrite or join what is compared ({printable(path)}).",
                next_step="write it elsewhere",
            )


def _write_diff_image(report: MediaReport, options: CompareMediaOptions) -> DiffImage | None:
    if options.diff_image is None:
        return None
    from fuseproof.harness.media.clip_comparison import ClipComparison
    from fuseproof.harness.media.comparing import shown_picture
    from fuseproof.harness.media.comparison import write_png
    from fuseproof.harness.media.diff import difference_image

    drawable = [pair for pair in report.pairs if pair.comparison and pair.comparison.mismatch is None]
    if not drawable:
        click.echo("warning: no diff image was written: no pair agrees in size, channels and bit depth", err=True)
        return None
    worst = max(drawable, key=lambda pair: pair.badness())
    comparison = worst.comparison
    frame = (comparison.worst_frame or 1) if isinstance(comparison, ClipComparison) else None
    pictures = shown_picture(worst.path_a, frame), shown_picture(worst.path_b, frame)
    data_range = comparison.data_range if comparison else None
    pixels, amplification = difference_image(*pictures, data_range=data_range)
    write_png(options.diff_image, pixels)
    return DiffImage(options.diff_image, worst.name, amplification, frame)


def _print_warnings(report: MediaReport, data_range: float | None) -> None:
    from fuseproof.harness.media.files import printable

    warnings = list(report.warnings)
    for pair in report.pairs:
        prefix = f"{printable(pair.name)}: " if len(report.pairs) > 1 else ""
        warnings += [prefix + warning for warning in (pair.comparison.warnings if pair.comparison else ())]
    used_ranges = {pair.comparison.data_range for pair in report.pairs if pair.comparison}
    if data_range is not None and data_range not in used_ranges:
        warnings.append(f"--data-range {data_range:g} was not used: integer pictures have their own")
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)


def _plain_text(report: MediaReport, options: CompareMediaOptions, drawn: DiffImage | None) -> str:
    from fuseproof.cli.media_text import report_text
    from fuseproof.harness.media.files import printable

    lines = [report_text(report)]
    if drawn is not None:
        of_pair = f" of {printable(drawn.pair)}" if len(report.pairs) > 1 else ""
        of_pair += "" if drawn.frame is None else f" of frame {drawn.frame}"
        factor = f"difference amplified {drawn.amplification:,} times"
        lines.append(f"diff image{of_pair}: {printable(drawn.path)} (A | B | {factor})")
    if options.contract is not None:
        violations = report.violations(options.contract)
        is_judged = "not judged on unreadable files" if report.errors else "holds"
        lines.append(f"contract {options.contract}: {'BROKEN' if violations else is_judged}")
        lines += [f"  {violation}" for violation in violations]
    return "\n".join(lines)


def _json_text(report: MediaReport, options: CompareMediaOptions, drawn: DiffImage | None) -> str:
    document = report.to_json()
    document["contract"] = None
    if options.contract is not None:
        violations = report.violations(options.contract)
        document["contract"] = {
            "text": str(options.contract),
            "holds": not violations and not report.errors,
            "violations": violations,
        }
    document["diff_image"] = None
    if drawn is not None:
        from fuseproof.harness.media.files import printable

        document["diff_image"] = {
            "path": printable(drawn.path),
            "pair": printable(drawn.pair),
            "amplification": drawn.amplification,
            "frame": drawn.frame,
        }
    return json.dumps(document, indent=2, allow_nan=False)
