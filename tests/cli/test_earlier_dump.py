"""No dump of an earlier run may be mistaken for the result of a run that failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuseproof.cli.earlier_dump import earlier_dump_set_aside
from fuseproof.errors import FuseproofError, UsageError


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FuseproofError("x"), {"p.json.previous": "old"}),
        (KeyboardInterrupt(), {"p.json.previous": "old"}),
        (UsageError("x"), {"p.json": "old"}),
    ],
    ids=["failed", "interrupted", "usage"],
)
def test_after_an_error(tmp_path: Path, error: BaseException, expected: dict[str, str]) -> None:
    path = tmp_path / "p.json"
    path.write_text("old")
    kept: list[Path] = []
    with pytest.raises(type(error)), earlier_dump_set_aside(path, kept.append):
        assert not path.exists()
        raise error
    assert expected == {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert [tmp_path / name for name in expected if name.endswith(".previous")] == kept


@pytest.mark.parametrize("has_earlier", [True, False])
def test_after_success_only_the_new_dump_stands(tmp_path: Path, has_earlier: bool) -> None:
    path = tmp_path / "p.json"
    if has_earlier:
        path.write_text("old")
    with earlier_dump_set_aside(path, lambda _: None):
        path.write_text("new")
    assert {"p.json": "new"} == {file.name: file.read_text() for file in tmp_path.iterdir()}


def test_without_a_dump_path_nothing_happens() -> None:
    with earlier_dump_set_aside(None, lambda _: None):
        pass
