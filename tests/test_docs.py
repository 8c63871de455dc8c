"""Links in the docs lead somewhere, and the files that the docs name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# A report kept as evidence links to pictures that stayed in its campaign folder.
KEPT_REPORTS = set((ROOT / "docs" / "evidence").glob("*/report.md"))
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")} - KEPT_REPORTS)
ROOMS = "cli|fastpaths|harness|pipelines|schedules|tests|fuseproof|docs"
LINK = re.compile(r"\[[^\]]*\]\((?!https?://|mailto:)([^)\s#]*)(#[^)\s]*)?\)")
NAMED_FILE = re.compile(rf"(?<![\w/.])((?:{ROOMS})/[\w./-]*\.(?:py|md|toml))\b")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub forms them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def relative(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), f"{relative(page)} links to {target}, which does not exist"
        assert not anchor or anchor[1:] in anchors(linked), f"{relative(page)}: {target} has no heading {anchor}"


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_named_files_exist(page: Path) -> None:
    names = set(NAMED_FILE.findall(LINK.sub("", page.read_text(encoding="utf-8"))))
    assert [] == sorted(name for name in names if not (ROOT / name).exists())


def test_every_decision_is_listed_and_numbered_without_gaps() -> None:
    folder = ROOT / "docs" / "decisions"
    names = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [f"{number:04}" for number in range(1, len(names) + 1)] == [name[:4] for name in names]
    index = (folder / "README.md").read_text(encoding="utf-8")
    assert [] == [name for name in names if f"({name})" not in index]
