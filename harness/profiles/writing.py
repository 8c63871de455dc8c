"""The files of a profile: strict JSON, markdown and HTML in one folder, each written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fuseproof.errors import FuseproofError
from fuseproof.harness.atomic_files import write_text_atomically
from fuseproof.harness.profiles.build import MARKDOWN, build_document
from fuseproof.harness.profiles.html import render_html
from fuseproof.harness.profiles.profile import Profile
from fuseproof.harness.profiles.reading import PROFILE_FILE, profile_of
from fuseproof.harness.report.markdown import render_document

MARKDOWN_FILE = "profile.md"
HTML_FILE = "profile.html"
TRACE_FILE = "trace.json.gz"
FILES = (PROFILE_FILE, MARKDOWN_FILE, HTML_FILE, TRACE_FILE)


def write_profile(folder: Path, values: Mapping[str, Any]) -> Profile:
    """Write ``profile.json`` and what it renders to; the profile as read back, so that no wrong one is ever left."""
    path = folder / PROFILE_FILE
    profile = profile_of(json.loads(as_json(values)), path)
    write_text_atomically(path, as_json(values))
    write_rendered(folder, profile)
    return profile


def write_rendered(folder: Path, profile: Profile) -> None:
    """Write ``profile.md`` and ``profile.html``."""
    write_text_atomically(folder / MARKDOWN_FILE, render_markdown(profile))
    write_text_atomically(folder / HTML_FILE, render_html(profile))


def render_markdown(profile: Profile) -> str:
    """The profile as GitHub markdown."""
    return render_document(build_document(profile, MARKDOWN))


def as_json(values: Mapping[str, Any]) -> str:
    """Strict JSON text."""
    try:
        return json.dumps(values, indent=1, allow_nan=False) + "\n"
    except ValueError as error:
        raise FuseproofError(f"the profile is not strict JSON: {error}.") from error
