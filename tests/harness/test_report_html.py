"""``report.html`` for people: no network, usable by keyboard, readable in both themes, with its figures."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fuseproof.harness.report import render_html, render_markdown
from tests.harness.campaign_builder import CampaignBuilder, Run
from tests.harness.test_report_claims import analysed

FASTER = ((10.0, 9.5, 9.51, 10.02), (9.52, 10.01, 10.03, 9.5))
HOSTILE = '"><script>alert(1)</script> http://e.example/x.png'


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the style sheet."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.style = ""
        self._tag = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        self.found.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.style += data if self._tag == "style" else ""

    def all(self, tag: str, **attributes: str) -> list[dict[str, str]]:
        """The attributes of each ``tag`` that has these."""
        return [own for name, own in self.found if name == tag and all(own.get(k) == v for k, v in attributes.items())]


def page(builder: CampaignBuilder) -> Elements:
    return Elements(render_html(analysed(builder)))


def usual(folder: Path) -> CampaignBuilder:
    return CampaignBuilder(folder / "campaign").blocks(FASTER, denoise_s=5.0)


@pytest.mark.parametrize("prompt", ["a red panda", HOSTILE])
def test_nothing_is_fetched_from_a_network(tmp_path: Path, prompt: str) -> None:
    elements = page(CampaignBuilder(tmp_path / "campaign").blocks(FASTER, prompts=(prompt,)))
    assert not {"script", "link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in elements.found}
    fetched = [
        own[name]
        for _, own in elements.found
        for name in ("src", "href", "srcset", "xlink:href", "poster", "data", "action", "style")
        if name in own
    ]
    assert 2 == len(fetched), "the picture that stands for all, and the contact sheet"
    assert all(source.startswith("data:image/png;base64,") for source in fetched)
    assert not re.search(r"@import|url\(|//", elements.style)
    (policy,) = elements.all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert "default-src 'none'" in policy["content"]
    assert "http" not in policy["content"]


def test_every_picture_and_figure_has_words(tmp_path: Path) -> None:
    elements = page(usual(tmp_path))
    pictures = [own["alt"] for own in elements.all("img")]
    assert ["identical", "panda, contact sheet"] == [alt.partition(":")[0] for alt in pictures]
    assert all(alt.partition(": ")[2].strip() for alt in pictures), "which output it is"
    figures = elements.all("svg")
    assert figures and all(own["role"] == "img" and own["aria-label"] for own in figures)


def test_whatever_scrolls_or_folds_is_reached_by_keyboard(tmp_path: Path) -> None:
    elements = page(usual(tmp_path))
    tables = elements.all("table")
    regions = elements.all("div", **{"class": "wide", "tabindex": "0", "role": "region"})
    assert len(tables) == len(regions)
    assert all(own["aria-label"].startswith("Table: ") for own in regions)
    assert len(elements.all("details")) == len(elements.all("summary"))
    assert elements.all("th") == elements.all("th", scope="col")
    assert ":focus-visible" in elements.style
    assert not re.search(r"outline:\s*(none|0)", elements.style)
    assert [{"lang": "en"}] == elements.all("html")
    assert [{}] == elements.all("main")
    assert not [own for _, own in elements.found if own.get("tabindex", "0") != "0" or "onclick" in own]


def themes(style: str) -> dict[str, dict[str, str]]:
    """The colour variables of both themes."""
    light, _, rest = style.partition("@media (prefers-color-scheme: dark)")
    found = {"light": light, "dark": rest.partition("}")[0]}
    return {name: dict(re.findall(r"--([a-z]+): (#[0-9a-f]+);", text)) for name, text in found.items()}


def luminance(colour: str) -> float:
    """Relative luminance by WCAG 2 of ``#rgb`` or ``#rrggbb``."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    channels = [int(digits[index : index + 2], 16) / 255 for index in (0, 2, 4)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_themes_have_every_colour_and_enough_contrast(tmp_path: Path, theme: str) -> None:
    found = themes(page(usual(tmp_path)).style)
    colours = found[theme]
    assert found["light"].keys() == found["dark"].keys()
    assert contrast(colours["text"], colours["back"]) >= 7.0
    for name in ("a", "b"):
        assert contrast(colours[name], colours["back"]) >= 3.0, name
    assert len({colours["back"] for colours in found.values()}) == 2


def marks(elements: Elements) -> list[str]:
    """The classes of the strip's marks, in drawing order."""
    return [own["class"] for tag, own in elements.found if tag in ("circle", "rect") and _is_mark(tag, own)]


def _is_mark(tag: str, own: dict[str, str]) -> bool:
    return tag == "circle" or "transform" in own


def test_the_strip_shows_every_slot_and_which_do_not_count(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "campaign", blocks=2).warmup(Run(worker_s=99.0))
    busy = Run(worker_s=9.4, state="superseded", reason_code="SUPERSEDED", reason="begun again")
    untimed = Run(worker_s=None, state="invalid", reason_code="EXIT", reason="it exited with 1")
    builder.block([busy, untimed], block=1).block([Run(worker_s=s) for s in FASTER[0]], block=1, attempt=2)
    builder.block([Run(worker_s=s) for s in FASTER[1]], block=2)
    html = render_html(analysed(builder))
    elements = Elements(html)
    assert ["A out", "A out", "A", "B", "B", "A", "B", "A", "A", "B"] == marks(elements)
    assert "panda, Worker E2E (1 run without a time not drawn)" in html
    assert "99.0000 s, does not count: discarded warm-up" in html
    heights = [float(own["cy"]) for own in elements.all("circle")]
    assert min(heights) >= 6.0, "a mark beyond the scale stands at the edge, inside the picture"
    (figure,) = [own for own in elements.all("svg") if "Worker E2E" in own["aria-label"]]
    assert figure["aria-label"].endswith("times from 9.5000 s to 10.0300 s"), "the scale is that of the counting runs"


def staged(folder: Path, stages: dict[str, dict[str, float]]) -> CampaignBuilder:
    """A campaign whose dumps hold these stages (seconds) by arm."""
    builder = CampaignBuilder(folder / "campaign").blocks(FASTER)
    for path in builder.directory.glob("slots/*/*/perf.json"):
        dump = json.loads(path.read_text(encoding="utf-8"))
        own = stages[path.parent.name[-1]]
        dump["steps"] = [{"name": name, "duration_ms": 1000.0 * value} for name, value in own.items()]
        path.write_text(json.dumps(dump), encoding="utf-8")
    return builder


def bars(elements: Elements) -> list[tuple[str, float]]:
    """(arm, width) of the stage bars, in drawing order."""
    return [(own["class"], float(own["width"])) for own in elements.all("rect", height="7")]


def test_stages_are_bars_in_proportion_and_numbers_in_a_table(tmp_path: Path) -> None:
    stages: dict[str, dict[str, float]] = {
        "A": {"EncodeStage": 1.0, "DenoisingStage": 8.0},
        "B": {"EncodeStage": 1.0, "DenoisingStage": 6.0, HOSTILE: 0.5},
    }
    analysis = analysed(staged(tmp_path, stages))
    html = render_html(analysis)
    expected = [("A", 200.0), ("B", 150.0), ("A", 25.0), ("B", 25.0), ("A", 0.5), ("B", 12.5)]
    assert expected == bars(Elements(html))
    row = '<tr><td>DenoisingStage</td><td class="n">8.0000</td><td class="n">6.0000</td><td class="n">25.00 %</td>'
    assert row in html
    assert "<script" not in html
    assert "EncodeStage" not in render_markdown(analysis), "a pull request's text has no figures"


def test_many_stages_are_summed_and_none_draws_nothing(tmp_path: Path) -> None:
    many: dict[str, Any] = {f"Stage{index:02d}": float(20 - index) for index in range(14)}
    html = render_html(analysed(staged(tmp_path / "many", {"A": many, "B": many})))
    assert '<td>4 other stages</td><td class="n">34.0000</td>' in html
    none = staged(tmp_path / "none", {"A": {}, "B": {}})
    assert [] == bars(page(none))
