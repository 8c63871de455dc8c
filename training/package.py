"""``python -m training.package``: puts trained checkpoints into the package, with their model cards.

One checkpoint, or all three: Edit shares the weights of LongCat-Image, the Turbo has a low-rank difference from them.
Refuses what the evaluations did not accept, what they did not judge, and more than a package may hold. The folder
--destination is replaced as a whole, and the list of hashes beside it; where anything fails, both stay as they were.
Nothing calls it by itself.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fuseproof.errors import FuseproofError
from fuseproof.pipelines.checkpoint_marker import MARKER
from fuseproof.pipelines.packaged_models import SHA256
from training.cards import CARD_FILE, TRAIN_IT, card
from training.destination import DESTINATION, refuse_destination, replaced
from training.folders import LARGEST_PACKAGE_BYTES
from training.options import is_checkpoint, is_number, read_object, told
from training.parts import BASE, EDIT, NAMES, TRAINING, TURBO, mark_trained, seal_part, weight_bytes, whole
from training.subsets import SUBSETS

NEEDED_PROMPTS = 200
NEEDED_ACCURACY = 0.85
NEEDED_PSNR_DB = 28.0
NEEDED_EDIT_COUNT = 100
NEEDED_EDITS = {EDIT: 0.80, TURBO: 0.70}
"""The share of edits that must be met; our own bar, as the accuracy of drawing is."""
BESIDE_THE_MODEL = (CARD_FILE, MARKER, TRAINING)
"""Files of a checkpoint's folder that decide no picture; packaging writes some of them anew."""
OVERLAP = re.compile(r"0\.[0-9]{2}")
"""How an evaluation writes the least overlap of outlines."""
SUFFIXES = (".json", ".safetensors", ".jinja", ".txt", ".md")
"""Of the files that a checkpoint is made of."""


def weights_sha256(checkpoint: Path) -> str:
    """One hash over every weight file of a whole checkpoint: what an evaluation judged, and what is packaged."""
    digest = hashlib.sha256()
    for path in sorted(checkpoint.rglob("*.safetensors")):
        digest.update(path.relative_to(checkpoint).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def checkpoint_sha256(checkpoint: Path) -> str:
    """One hash over every file of a whole checkpoint that decides a picture: weights, configurations, tokenizer.

    Hidden files are left out: nothing reads them, and they are not packaged.
    """
    digest = hashlib.sha256()
    files = {path.relative_to(checkpoint).as_posix(): path for path in checkpoint.rglob("*") if path.is_file()}
    for name in sorted(files):
        if name not in BESIDE_THE_MODEL and not _is_hidden(name):
            content = files[name].read_bytes()
            digest.update(name.encode() + b"\0" + len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in Path(name).parts)


def faults_of_summary(name: str, summary: Mapping[str, Any]) -> list[str]:
    """What is wrong with the summary of an evaluation: keys that are missing, and values that cannot be."""
    counted = "prompts" if name == BASE else "edits"
    met, total, guidance = (summary.get(key) for key in ("met", counted, "guidance"))

    def is_count(value: Any, least: int) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= least

    def is_hash(value: object) -> bool:
        return isinstance(value, str) and SHA256.fullmatch(value) is not None

    is_met = is_count(met, 0) and is_count(total, 1) and summary["met"] <= summary[counted]
    claims: dict[str, tuple[bool, str]] = {
        "met": (is_met, f"a whole number from 0 to {counted}"),
        counted: (is_count(total, 1), "a whole number from 1 on"),
        "psnr_db": (is_number(summary.get("psnr_db")), "a finite number"),
        "steps": (is_count(summary.get("steps"), 1), "a whole number from 1 on"),
        "guidance": (is_number(guidance) and summary["guidance"] >= 0, "a finite number from 0 on"),
        "held_out": (isinstance(summary.get("held_out"), bool), "true or false"),
        "subset": (isinstance(summary.get("subset"), str) and summary["subset"] in SUBSETS, " or ".join(SUBSETS)),
        "weights_sha256": (is_hash(summary.get("weights_sha256")), "a SHA-256"),
    }
    if "checkpoint_sha256" in summary:
        claims["checkpoint_sha256"] = (is_hash(summary["checkpoint_sha256"]), "a SHA-256")
    if "met_by_overlap" in summary:
        strict = summary["met_by_overlap"]
        are_counts = isinstance(strict, dict) and all(
            OVERLAP.fullmatch(least) is not None and is_count(number, 0) and is_met and number <= summary[counted]
            for least, number in strict.items()
        )
        claims["met_by_overlap"] = (are_counts, f'counts up to {counted} by the least overlap, as in {{"0.80": 161}}')
    faults = []
    for key, (is_right, allowed) in claims.items():
        if key not in summary:
            faults.append(f"{key} is missing")
        elif not is_right:
            faults.append(f"{key} is {str(summary[key])[:40]!r}, and not {allowed}")
    return faults


def reasons_against(name: str, result: Mapping[str, Any]) -> list[str]:
    """Why a checkpoint with this evaluation (its summary) may not be packaged; empty where it may."""
    counted = "prompts" if name == BASE else "edits"
    least, share = (NEEDED_PROMPTS, NEEDED_ACCURACY) if name == BASE else (NEEDED_EDIT_COUNT, NEEDED_EDITS[name])
    reasons = []
    accuracy = result["met"] / result[counted]
    if result[counted] < least:
        reasons.append(f"{result[counted]} {counted} were drawn, {least} are needed")
    if not result["held_out"]:
        reasons.append(f"the {counted} were not held out")
    if accuracy < share:
        reasons.append(f"{100 * accuracy:.1f} % of the {counted} are met, {100 * share:.0f} % are needed")
    if name == BASE and result["psnr_db"] < NEEDED_PSNR_DB:
        reasons.append(f"the VAE's PSNR is {result['psnr_db']:.1f} dB, {NEEDED_PSNR_DB:.0f} dB are needed")
    return reasons


def reasons_against_all(models: Path, results: Mapping[str, Mapping[str, Any]], subset: str) -> list[str]:
    """Why the checkpoints that ``results`` names, all in ``models``, may not be packaged together."""
    reasons = [reason for name in results for reason in _reasons_against_folder(models / name)]
    if reasons:
        return reasons
    for name, result in results.items():
        about = "" if name == BASE else f"{name}: "
        reasons += [about + reason for reason in reasons_against(name, result)]
        if result["subset"] != subset:
            reasons.append(f"{about}the evaluation drew the scenes {result['subset']!r}, not {subset!r}")
        try:
            with whole(models / name) as checkpoint:
                reasons += [about + reason for reason in _reasons_against_hashes(checkpoint, result)]
        except FuseproofError as error:
            reasons.append(error.message)
    stored = weight_bytes(models, tuple(results))
    if stored > LARGEST_PACKAGE_BYTES:
        reasons.append(f"the weights are {stored} bytes, {LARGEST_PACKAGE_BYTES} are the most")
    return reasons


def _reasons_against_folder(folder: Path) -> list[str]:
    """Why ``folder`` is nothing that could be packaged: it is missing, no checkpoint, or holds what does not belong."""
    if not folder.is_dir():
        return [f"there is no checkpoint folder {folder}"]
    if not is_checkpoint(folder):
        return [f"{folder} has no model_index.json, so it is no checkpoint"]
    foreign = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_symlink()
        or _is_hidden(path.relative_to(folder).as_posix())
        or (not path.is_dir() and path.suffix not in SUFFIXES)
    )
    reasons = []
    if foreign:
        shown = ", ".join(foreign[:4]) + (f" and {len(foreign) - 4} more" if len(foreign) > 4 else "")
        reasons.append(
            f"{folder} holds what does not belong to a checkpoint: {shown}; only files of {', '.join(SUFFIXES)} are "
            "packaged, and no links: move the others away"
        )
    try:
        progress = read_object(folder / TRAINING, "which says how long it was trained", TRAIN_IT)
    except FuseproofError as error:
        return [*reasons, error.message.removesuffix(".")]
    if not is_number(progress.get("step")):
        reasons.append(f"{folder / TRAINING} says step {progress.get('step')!r}; a number was expected")
    return reasons


def _reasons_against_hashes(checkpoint: Path, result: Mapping[str, Any]) -> list[str]:
    found, judged = weights_sha256(checkpoint), result["weights_sha256"]
    if found != judged:
        return [f"the evaluation judged weights {judged[:12]}, not {found[:12]}"]
    found, judged = checkpoint_sha256(checkpoint), result.get("checkpoint_sha256")
    if judged is not None and found != judged:
        return [f"the weights are those that were judged; the other files are not ({judged[:12]}, not {found[:12]})"]
    return []


def package(
    models: Path,
    results: Mapping[str, Mapping[str, Any]],
    destination: Path,
    subset: str = "all",
    *,
    drop_others: bool = False,
) -> list[str]:
    """Copy the checkpoints that ``results`` names, with their cards, to folders of ``destination``, which is replaced,
    and write the list of hashes beside it.

    Or say why not, and change nothing: by a list of reasons, or by a FuseproofError where it is the destination. The
    Turbo needs Edit, and Edit needs LongCat-Image, whose weights it has.
    """
    destination = destination.absolute() if destination.is_symlink() else destination.resolve()
    refuse_destination(models, tuple(results), destination, drop_others=drop_others)
    reasons = reasons_against_all(models, results, subset)
    if reasons:
        return reasons
    destination.parent.mkdir(parents=True, exist_ok=True)
    with replaced(destination) as temporary:
        for name in results:
            _copy(models / name, temporary / name)
        mark_trained(temporary / BASE)
        for name, result in results.items():
            (temporary / name / CARD_FILE).write_text(card(temporary, name, result), encoding="utf-8")
        for name in results:
            if name != BASE:
                seal_part(temporary / name)
        for path in [temporary, *temporary.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
    return []


def _copy(source: Path, destination: Path) -> None:
    """Every file of ``source``; an OSError names the one that cannot be copied."""
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        target = destination / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def summary_path(evaluation: Path, name: str) -> Path:
    """Where the evaluation of this checkpoint wrote its summary."""
    return evaluation / ("summary.json" if name == BASE else f"{name}-summary.json")


def read_summary(evaluation: Path, name: str) -> Mapping[str, Any]:
    """The summary of this checkpoint's evaluation; a FuseproofError where it is missing, or says what cannot be."""
    path, what = summary_path(evaluation, name), f"what the evaluation of {name} came to"
    program = "training.evaluate" if name == BASE else "training.evaluate_edits"
    step = f"Evaluate it with python -m {program} --output {evaluation}, or give --evaluation the folder of that."
    summary = read_object(path, what, step)
    faults = faults_of_summary(name, summary)
    if faults:
        raise FuseproofError(f"{path}, {what}, cannot be used: {'; '.join(faults)}.", next_step=step)
    return summary


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--models", type=Path, default=Path("build/training/models"), help="folder of the checkpoints")
    options.add_argument(
        "--evaluation",
        type=Path,
        default=Path("build/training/evaluation-of-models"),
        help="folder of the evaluations' summaries",
    )
    options.add_argument("--names", nargs="+", choices=NAMES, default=list(NAMES), help="the first one, two or three")
    options.add_argument("--subset", choices=tuple(SUBSETS), default="all", help="the scenes that the evaluations drew")
    replaced = "the folder that is replaced by the checkpoints of --names (default: pipelines/embedded_models)"
    options.add_argument("--destination", type=Path, default=DESTINATION, help=replaced)
    dropped = "replace it too where it holds other checkpoints than --names; they are deleted"
    options.add_argument("--drop-others", action="store_true", help=dropped)
    return options


def main(arguments: list[str] | None = None) -> int:
    """Package, or say why not; 0 or 1."""
    program = parser()
    options = program.parse_args(arguments)
    names = NAMES[: len(options.names)]
    if tuple(options.names) != names:
        program.error(f"--names {' '.join(options.names)}: {', '.join(NAMES)} are packaged in this order")
    return told(lambda: _package(options), f"interrupted; what {options.destination} holds is whole")


def _package(options: argparse.Namespace) -> int:
    results = {name: read_summary(options.evaluation, name) for name in options.names}
    destination = options.destination
    try:
        reasons = package(options.models, results, destination, options.subset, drop_others=options.drop_others)
    except OSError as error:
        raise FuseproofError(
            f"Not packaged, and {destination} is as it was: {type(error).__name__}: {error}.",
            next_step="Make room and rights there, or give --destination another place; then run it again.",
        ) from error
    if reasons:
        sys.stdout.write("".join(f"not packaged: {reason}\n" for reason in reasons))
        return 1
    for name, result in results.items():
        if "checkpoint_sha256" not in result:
            sys.stdout.write(f"{name}: the evaluation names no checkpoint_sha256: only its weights were compared\n")
    sys.stdout.write(f"{destination}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
