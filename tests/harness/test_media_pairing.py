"""Which pictures of two folders belong together."""

from __future__ import annotations

import pytest

from fuseproof.harness.media.pairing import match_names

EARLY, LATE = "20261130-074400", "20261130-074426"


@pytest.mark.parametrize(
    ("a", "b", "names", "note"),
    [
        pytest.param({"x.png"}, {"x.png"}, {"x.png": "x.png"}, None, id="equal"),
        pytest.param(
            {f"cat_{EARLY}_1.png", f"dog_{LATE}_2.png"},
            {f"cat_{LATE}_1.png", f"dog_{EARLY}_2.png"},
            {f"cat_{EARLY}_1.png": f"cat_{LATE}_1.png", f"dog_{LATE}_2.png": f"dog_{EARLY}_2.png"},
            "paired by file name without the time in it: cat_",
            id="times",
        ),
        pytest.param(
            {f"cat_{EARLY}_1.png"}, {f"cat_{LATE}_9.png"}, {f"cat_{EARLY}_1.png": f"cat_{LATE}_9.png"},
            "need not be the same pictures", id="order",
        ),
        pytest.param({f"cat_{EARLY}_1.png"}, {f"cat_{LATE}_8.png", f"cat_{LATE}_9.png"}, {}, None, id="unequal counts"),
        pytest.param({f"cat_{EARLY}.png", f"cat_{LATE}.png"}, {"dog.png"}, {}, None, id="no time"),
        pytest.param({f"c_{EARLY}.png", f"c_{LATE}.png"}, {f"c_{EARLY}.png"}, {f"c_{EARLY}.png": f"c_{EARLY}.png"},
                     None, id="equal names first"),
        pytest.param(set(), set(), {}, None, id="empty"),
    ],
)  # fmt: skip
def test_names(a: set[str], b: set[str], names: dict[str, str], note: str | None) -> None:
    matched = match_names(a, b)
    assert names == matched.names
    assert (note is None) == (matched.notes() == ())
    assert note is None or note in matched.notes()[0]


def test_names_that_are_one_without_their_times_are_not_guessed() -> None:
    twice = {f"cat_{EARLY}.png", f"cat_{LATE}.png"}
    later = {"cat_20270101-000000.png", "cat_20270101-000001.png"}
    assert "in the order of their times" in match_names(twice, later).notes()[0]
