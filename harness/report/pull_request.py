"""``pull-request.md``: the report as a body to paste, its pictures under flat names that any host can serve."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.analysis.campaign import CampaignAnalysis
from fuseproof.harness.escape import markdown_text
from fuseproof.harness.report.document import (
    Code,
    Document,
    Figure,
    Paragraph,
    Part,
    PicturePair,
    Pictures,
    Section,
    Table,
)
from fuseproof.harness.report.figure_files import NO_FIGURES, Figures, figure_names
from fuseproof.harness.report.markdown import render_markdown
from fuseproof.harness.report.privacy import clean_text

BODY_FILE = "pull-request.md"
ASSETS_FOLDER = "assets"
LONGEST_BODY = 65_536
"""Characters of a GitHub pull request."""
SHOWN_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif"})
"""What GitHub shows in a body; other outputs are named."""
_URL = re.compile(r"https?://[A-Za-z0-9._~:/@%+,=-]+")


def checked_base_url(url: str) -> str:
    """``url`` with one slash at its end; :class:`UsageError` for anything but a plain http or https URL."""
    host, _, path = url.partition("://")[2].partition("/")
    problem = (
        "an http:// or https:// URL of a folder was expected" if not (_URL.fullmatch(url) and host.strip(".:"))
        else "it holds a user name or a password" if "@" in host
        else "its path leads upwards" if ".." in path.split("/")
        else None
    )  # fmt: skip
    if problem is not None:
        shown = re.sub(r"//[^/]*@", "//[redacted]@", url)
        raise UsageError(
            f"--asset-base-url is {shown!r}; {problem}.",
            next_step="Give the folder that will hold the pictures, such as https://example.org/evidence/42",
        )
    return url.rstrip("/") + "/"


def picture_assets(analysis: CampaignAnalysis, figures: Figures = NO_FIGURES) -> dict[str, str]:
    """Flat asset names by path relative to the campaign folder, of every output of every slot and every figure."""
    outputs = {
        f"{record.directory}/{output.path}": _asset_name(record.id, index, output.path)
        for record in analysis.campaign.slots()
        for index, output in enumerate(record.outputs, start=1)
    }
    return outputs | {path: PurePosixPath(path).name for path in figures.files}


def _asset_name(slot_id: str, number: int, path: str) -> str:
    """``panda/01-2-B`` and its first output: ``panda-01-2-B-1.png``."""
    suffix = re.sub(r"[^a-z0-9.]", "", PurePosixPath(path).suffix.lower())
    return f"{slot_id.replace('/', '-')}-{number}{suffix}"


def render_body(
    analysis: CampaignAnalysis,
    archive_name: str,
    base_url: str | None,
    unverified: str | None = None,
    figures: Figures = NO_FIGURES,
    folder: str | None = None,
    *,
    is_light: bool = False,
) -> tuple[str, list[str]]:
    """The body, and the paths of the pictures that it shows or names, in order; ``folder`` is what unpacking makes.

    Without ``base_url`` a table names the assets in the place of pictures, so that no image is broken. ``unverified``
    is why the folder did not pass verification: the first line says so. ``figures`` are shown with a ``base_url`` only.
    ``is_light``: the archive has no pictures, so that none is named as one of it.
    Raises :class:`FuseproofError` for a body that no pull request can hold.
    """
    assets = picture_assets(analysis, figures)
    shown: dict[str, None] = {}

    def revise(document: Document) -> Document:
        shown.clear()
        whole = _without_pictures(document) if is_light else document
        revised: Document = _with_assets(whole, assets, base_url, shown)
        evidence = _evidence_section(
            archive_name, folder or analysis.directory.resolve().name, _measured_with(analysis), is_light=is_light
        )
        return dataclasses.replace(revised, sections=(*revised.sections, evidence))

    is_shown = base_url is not None
    named = () if is_shown or is_light else figure_names(analysis.directory, figures)
    text = render_markdown(analysis, revise, figures if is_shown else NO_FIGURES, named)
    if unverified is not None:
        text = f"> **NOT VERIFIED.** {markdown_text(clean_text(unverified))}\n\n{text}"
    if len(text) > LONGEST_BODY:
        raise FuseproofError(
            f"The body has {len(text):,} characters, and a pull request holds {LONGEST_BODY:,}.",
            next_step="Link to the archive instead, or pack a campaign with fewer cells.",
        )
    return text, list(shown)


def _evidence_section(archive_name: str, folder: str, measured_with: str, *, is_light: bool) -> Section:
    what = "The campaign without its outputs is in " if is_light else "The whole campaign is in "
    recomputed = (
        ", which recomputes every time and number above from the raw runs; hashes and metrics of the outputs, which "
        "were left out, stay as they were recorded."
        if is_light
        else ", which recomputes every metric and number above, and the hash of everything that was kept."
    )
    text = (
        what,
        Code(archive_name),
        ": unpack it and run ",
        Code(f"fuseproof verify {shlex.quote(folder)}"),
        f"{recomputed} It needs neither torch nor a GPU.",
    )
    about = (
        "fuseproof runs baseline and candidate in fresh processes in A-B-B-A order, and judges times by their "
        "intervals and outputs by their hashes. Measured with the Python package ",
        Code(measured_with),
        ".",
    )
    return Section("Evidence", (Paragraph(text), Paragraph(about)))


def _measured_with(analysis: CampaignAnalysis) -> str:
    """``fuseproof 0.1.0, commit 0123456789ab``: the version, and the commit where the campaign recorded one."""
    own = analysis.campaign.environment.get("fuseproof")
    commit = own.get("commit") if isinstance(own, Mapping) else None
    known = f", commit {commit[:12]}" if isinstance(commit, str) and commit else ""
    changed = ", with changes" if known and isinstance(own, Mapping) and own.get("is_dirty") else ""
    return f"fuseproof {analysis.campaign.fuseproof_version}{known}{changed}"


def _without_pictures(node: Any) -> Any:
    """A copy of a document without its pictures."""
    if isinstance(node, tuple):
        return tuple(_without_pictures(entry) for entry in node if not isinstance(entry, Pictures | Figure))
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        changes = {field.name: _without_pictures(getattr(node, field.name)) for field in dataclasses.fields(node)}
        return dataclasses.replace(node, **changes)
    return node


def _with_assets(node: Any, assets: Mapping[str, str], base_url: str | None, shown: dict[str, None]) -> Any:
    """A copy of a document in which every picture is an asset; ``shown`` collects the paths."""
    if isinstance(node, Pictures):
        for pair in node.pairs:
            shown.update(dict.fromkeys((pair.baseline, pair.candidate)))
        pairs = tuple(PicturePair(pair.title, assets[pair.baseline], assets[pair.candidate]) for pair in node.pairs)
        return _named(pairs) if base_url is None or not all(map(_is_shown, pairs)) else Pictures(pairs, base_url)
    if isinstance(node, Figure) and base_url is not None:
        shown[node.path] = None
        return dataclasses.replace(node, path=assets[node.path], base_url=base_url)
    if isinstance(node, tuple):
        return tuple(_with_assets(entry, assets, base_url, shown) for entry in node)
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        changes = {
            field.name: _with_assets(getattr(node, field.name), assets, base_url, shown)
            for field in dataclasses.fields(node)
        }
        return dataclasses.replace(node, **changes)
    return node


def _is_shown(pair: PicturePair) -> bool:
    return all(PurePosixPath(name).suffix in SHOWN_SUFFIXES for name in (pair.baseline, pair.candidate))


def _named(pairs: tuple[PicturePair, ...]) -> Part:
    rows = tuple((pair.title, _named_asset(pair.baseline), _named_asset(pair.candidate)) for pair in pairs)
    return Table(("In the archive", "Baseline", "Candidate"), rows)


def _named_asset(name: str) -> Code:
    return Code(f"{ASSETS_FOLDER}/{name}")
