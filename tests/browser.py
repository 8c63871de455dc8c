"""A sample report seen in a real browser: ``python -m tests.browser FOLDER`` (``make test-browser`` runs it).

Headless Chromium draws ``report.html`` in both themes and at the width of a phone, without a network, and the pictures
stay in FOLDER for a person to look at. What is checked: every picture has the size asked for and is not blank, the dark
one is darker than the light one, the browser refused and missed nothing, and the arrow keys move the edge between two
pictures that lie over each other, which stand side by side where scripts are off. Without a Chromium nothing is
checked, and the exit status is 1: an absent browser is never a pass.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from fuseproof.harness.report import write_report
from fuseproof.schedules.order import arms_in_order, orientation
from tests.browser_keys import swipe_troubles
from tests.harness.campaign_builder import CampaignBuilder, Run

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TIMEOUT_S = 120
FEWEST_COLOURS = 16
DARK_QUERY = "@media (prefers-color-scheme: dark)"
TROUBLE = re.compile(r".*(?:Refused to|violates the following Content Security Policy|net::ERR_).*")
TIMES = ((10.0, 9.5, 9.51, 10.02), (9.52, 10.01, 10.03, 9.5))


@dataclass(frozen=True)
class View:
    """One picture: the theme, and the window in CSS pixels."""

    name: str
    is_dark: bool
    width: int
    height: int


VIEWS = (
    View("light", is_dark=False, width=1280, height=6000),
    View("dark", is_dark=True, width=1280, height=6000),
    View("phone", is_dark=False, width=500, height=6000),
)


def find_browser() -> str | None:
    """The first Chromium on the path."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def sample_report(folder: Path) -> Path:
    """``report.html`` of a campaign of two cells, with a warm-up slot and a failed run in it."""
    builder = CampaignBuilder(folder / "campaign", cells=("panda", "owl"), blocks=3, status="failed")
    builder.warmup(Run(worker_s=12.0))
    builder.blocks(TIMES, cell="owl", denoise_s=5.0, client_s=11.0)
    for number, row in enumerate(TIMES, start=1):
        arms = arms_in_order(orientation(number - 1, "mirrored"))
        runs = [
            Run(worker_s=worker_s, denoise_s=5.0, client_s=11.0, pictures=(1, 3) if arm == "A" else (2, 3))
            for arm, worker_s in zip(arms, row, strict=True)
        ]
        builder.block(runs, cell="panda", block=number)
    builder.block([Run(state="invalid", reason_code="EXIT", reason="it exited with 1")], block=3)
    write_report(builder.write())
    return builder.directory / "report.html"


def command(browser: str, page: Path, picture: Path, view: View, profile: Path) -> list[str]:
    """How Chromium is asked for one picture; as root it has no sandbox to run in."""
    root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return [
        browser,
        "--headless",
        "--disable-gpu",
        "--hide-scrollbars",
        "--no-first-run",
        "--enable-logging=stderr",
        "--force-device-scale-factor=1",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={profile}",
        f"--window-size={view.width},{view.height}",
        f"--screenshot={picture}",
        *root,
        page.as_uri(),
    ]


def _plain(browser: str, profile: Path) -> list[str]:
    """The command without what makes one picture of one page."""
    words = command(browser, Path("/"), Path("/"), View("swipe", is_dark=False, width=1000, height=760), profile)
    return [word for word in words if not word.startswith(("--screenshot=", "file:"))]


def take(browser: str, page: Path, folder: Path, views: Sequence[View]) -> list[str]:
    """Draw every view into ``folder``; one sentence for everything that is wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    troubles: list[str] = []
    brightness: dict[str, float] = {}
    for view in views:
        picture = (folder / f"{view.name}.png").resolve()
        picture.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            shown = _in_theme(page, view, Path(scratch))
            told = _run(command(browser, shown, picture, view, Path(scratch) / "profile"))
        troubles += [f"{view.name}: {line}" for line in told]
        troubles += [f"{view.name}: {text}" for text in _faults(picture, view)]
        if picture.is_file():
            brightness[view.name] = float(np.asarray(Image.open(picture).convert("L")).mean())
    if brightness.get("dark", 0.0) >= brightness.get("light", 255.0):
        troubles.append("the dark theme is not darker than the light one")
    return troubles


def _in_theme(page: Path, view: View, scratch: Path) -> Path:
    """A copy whose media query always holds, or never: headless browsers differ in how a theme is asked for."""
    html = page.read_text(encoding="utf-8")
    if DARK_QUERY not in html:
        raise SystemExit(f"{page} has no {DARK_QUERY}")
    copy = scratch / page.name
    copy.write_text(html.replace(DARK_QUERY, "@media all" if view.is_dark else "@media not all"), encoding="utf-8")
    return copy


def _run(words: list[str]) -> list[str]:
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return [f"no picture within {TIMEOUT_S} s"]
    found = [line.strip() for line in done.stderr.splitlines() if TROUBLE.fullmatch(line)]
    return found if done.returncode == 0 else [f"the browser exited with {done.returncode}", *found]


def _faults(picture: Path, view: View) -> list[str]:
    if not picture.is_file():
        return ["no picture was written"]
    with Image.open(picture) as image:
        if image.size != (view.width, view.height):
            return [f"the picture has {image.size[0]}x{image.size[1]} pixels, not {view.width}x{view.height}"]
        colours = image.convert("RGB").getcolors(maxcolors=image.size[0] * image.size[1]) or []
    if len(colours) < FEWEST_COLOURS:
        return [f"the picture is blank: {len(colours)} colours"]
    return []


def main(folder: Path, views: Sequence[View] = VIEWS) -> int:
    browser = find_browser()
    if browser is None:
        sys.stderr.write(f"test-browser: nothing was checked: no Chromium here, none of {', '.join(BROWSERS)}\n")
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        page = sample_report(Path(scratch))
        troubles = take(browser, page, folder, views)
        troubles += swipe_troubles(_plain(browser, Path(scratch) / "profile"), page.as_uri(), folder)
    sys.stderr.write("".join(f"test-browser: {trouble}\n" for trouble in troubles))
    if not troubles:
        sys.stdout.write(f"{len(views)} pictures by {browser}, to look at: {folder}\n")
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
