"""``before-after.json``, ``.md`` and ``.html``: the comparison of two profiles, with both beside it.

The folder is whole by itself: the profiles are kept as ``before/profile.json`` and ``after/profile.json``, so that the
comparison can be shown and rendered again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.atomic_files import write_text_atomically
from fuseproof.harness.perf.fields import Fields, read_json_object
from fuseproof.harness.profiles.comparison import SCHEMA, ProfileComparison, compare_profiles
from fuseproof.harness.profiles.comparison_build import EVERYTHING, MARKDOWN, build_comparison
from fuseproof.harness.profiles.html import render_page
from fuseproof.harness.profiles.places import is_folder
from fuseproof.harness.profiles.profile import Profile
from fuseproof.harness.profiles.reading import PROFILE_FILE, read_profile
from fuseproof.harness.profiles.timings import Timings, timings_of
from fuseproof.harness.profiles.writing import as_json
from fuseproof.harness.report.markdown import render_document

STEM = "before-after"
COMPARISON_FILE = f"{STEM}.json"
SIDES = ("before", "after")
AGAIN = "Compare the two profiles again: `fuseproof profile --before A --after B -o FOLDER`."


def write_comparison(
    folder: Path, comparison: ProfileComparison, timings: Timings | None, values: Mapping[str, Any]
) -> None:
    """Write the three files, and each profile that does not lie there already; ``values`` are the comparison's as
    strict JSON.
    """
    for side, profile in zip(SIDES, (comparison.before, comparison.after), strict=True):
        refuse_other_side(folder, side, profile)
        kept = folder / side / PROFILE_FILE
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_text_atomically(kept, as_json(profile.raw))
    write_text_atomically(folder / COMPARISON_FILE, as_json(values))
    write_rendered_comparison(folder, comparison, timings)


def write_rendered_comparison(folder: Path, comparison: ProfileComparison, timings: Timings | None) -> None:
    """Write ``before-after.md`` and ``before-after.html``."""
    write_text_atomically(folder / f"{STEM}.md", render_document(build_comparison(comparison, timings, MARKDOWN)))
    write_text_atomically(folder / f"{STEM}.html", render_page(build_comparison(comparison, timings, EVERYTHING)))


def refuse_other_side(folder: Path, side: str, profile: Profile) -> None:
    """Raise where another profile lies in the place of this one, which a comparison would be taken for that of."""
    kept = folder / side / PROFILE_FILE
    if kept.exists() and read_profile(kept).raw != profile.raw:
        raise UsageError(f"--output-path {folder} holds another {side}/{PROFILE_FILE}.", next_step="Choose another.")


def comparison_folder(path: Path) -> Path | None:
    """The folder of the comparison that ``path`` names, itself or by its ``before-after.json``; None of a profile."""
    if is_folder(path):
        return path if (path / COMPARISON_FILE).exists() and not (path / PROFILE_FILE).exists() else None
    return path.parent if path.name == COMPARISON_FILE else None


def read_comparison(folder: Path) -> tuple[ProfileComparison, Timings | None]:
    """The comparison in ``folder`` again, from its two profiles and the times that were told with it.

    Raises :class:`FuseproofError` where one of the three is missing, of another version, or cannot be.
    """
    path = folder / COMPARISON_FILE
    fields = Fields(read_json_object(path, next_step=AGAIN), path, next_step=AGAIN)
    schema = fields.optional_text("schema")
    if schema != SCHEMA:
        raise FuseproofError(f"{path} has schema {str(schema)[:60]!r}, expected {SCHEMA!r}.", next_step=AGAIN)
    for side in SIDES:
        if not (folder / side / PROFILE_FILE).exists():
            raise FuseproofError(
                f"{folder / side / PROFILE_FILE} does not exist, and {path} is shown from it.", next_step=AGAIN
            )
    before, after = (read_profile(folder / side) for side in SIDES)
    timings = None if fields.values.get("timings") is None else timings_of(fields.child("timings"))
    return compare_profiles(before, after), timings
