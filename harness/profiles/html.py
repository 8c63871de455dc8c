"""``profile.html``: one file without any other, with the flame view above the tables of the profile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, FileSystemLoader
from markupsafe import Markup

from fuseproof.harness.profiles.build import EVERYTHING, build_document
from fuseproof.harness.profiles.flame import LEVELS, Flame, flame
from fuseproof.harness.profiles.flame_script import FLAME_SCRIPT
from fuseproof.harness.profiles.profile import CLASSES, Profile
from fuseproof.harness.profiles.tables import class_title
from fuseproof.harness.report.document import Document
from fuseproof.harness.report.html import hash_source
from fuseproof.harness.report.templates import environment

TEMPLATE = "profile.html.j2"


def render_html(profile: Profile) -> str:
    """The profile as one HTML file; its only script is allowed by its hash, and nothing is loaded."""
    views = (flame(profile, is_folded=True), flame(profile, is_folded=False))
    present = {frame.kernel_class for view in views for frame in view.frames}
    classes = {name: class_title(name) for name in CLASSES if name in present}
    return render_page(build_document(profile, EVERYTHING), views, classes)


def render_page(document: Document, views: tuple[Flame, ...] = (), classes: Mapping[str, str] | None = None) -> str:
    """Any document of this package as HTML; ``views`` are a folded and an unfolded flame view, or none."""
    script = FLAME_SCRIPT if views else ""
    text = (
        _environment()
        .get_template(TEMPLATE)
        .render(
            document=document,
            views=views,
            levels=LEVELS,
            classes=classes or {},
            script=Markup(script),
            script_source=hash_source(script),
        )
    )
    return text + "\n"


def _environment() -> Environment:
    """The report's templates with this folder's before them."""
    shared = environment(is_html=True)
    assert shared.loader is not None
    own = FileSystemLoader(Path(__file__).parent, encoding="utf-8")
    return shared.overlay(loader=ChoiceLoader([own, shared.loader]))
