"""No dump of an earlier run may be mistaken for the result of a run that failed, and no file of others be lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuseproof.cli.earlier_dump import earlier_dump_set_aside
from fuseproof.errors import FuseproofError, UsageError

OLD = '{"total_duration_ms": 1}'
NEW = '{"total_duration_ms": 2}'


def contents(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FuseproofError("x"), {"p.json.previous": OLD}),
        (KeyboardInterrupt(), {"p.json.previous": OLD}),
        (UsageError("x"), {"p.json": OLD}),
    ],
    ids=["failed", "interrupted", "usage"],
)
def test_after_an_error(tmp_path: Path, error: BaseException, expected: dict[str, str]) -> None:
    path = tmp_path / "p.json"
    path.write_text(OLD)
    kept: list[Path] = []
    with pytest.raises(type(error)), earlier_dump_set_aside(path, kept.append):
        assert not path.exists()
        raise error
    assert expected == contents(tmp_path)
    assert [tmp_path / name for name in expected if name.endswith(".previous")] == kept


@pytest.mark.parametrize("earlier", [None, OLD, ""], ids=["none", "a-dump", "empty"])
def test_after_success_only_the_new_dump_stands(tmp_path: Path, earlier: str | None) -> None:
    path = tmp_path / "p.json"
    if earlier is not None:
        path.write_text(earlier)
    with earlier_dump_set_aside(path, lambda _: None):
        path.write_text(NEW)
    assert {"p.json": NEW} == contents(tmp_path)


@pytest.mark.parametrize("fails", [True, False])
def test_an_earlier_previous_is_never_overwritten(tmp_path: Path, fails: bool) -> None:
    taken = {"p.json.previous": "mine", "p.json.previous-2": "mine too"}
    for name, text in {"p.json": OLD, **taken}.items():
        (tmp_path / name).write_text(text)
    kept: list[Path] = []
    try:
        with earlier_dump_set_aside(tmp_path / "p.json", kept.append):
            if fails:
                raise FuseproofError("x")
            (tmp_path / "p.json").write_text(NEW)
    except FuseproofError:
        assert {"p.json.previous-3": OLD, **taken} == contents(tmp_path)
        assert [tmp_path / "p.json.previous-3"] == kept
    else:
        assert {"p.json": NEW, **taken} == contents(tmp_path)


def test_a_file_put_in_place_of_the_earlier_dump_is_left_alone(tmp_path: Path) -> None:
    path, aside = tmp_path / "p.json", tmp_path / "p.json.previous"
    path.write_text(OLD)
    with earlier_dump_set_aside(path, lambda _: None):
        (tmp_path / "other").write_text("theirs")
        (tmp_path / "other").replace(aside)
    assert {"p.json.previous": "theirs"} == contents(tmp_path)


def test_a_usage_error_does_not_replace_what_appeared_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(OLD)
    kept: list[Path] = []
    with pytest.raises(UsageError), earlier_dump_set_aside(path, kept.append):
        path.write_text("theirs")
        raise UsageError("x")
    assert {"p.json": "theirs", "p.json.previous": OLD} == contents(tmp_path)
    assert [tmp_path / "p.json.previous"] == kept


@pytest.mark.parametrize("text", ["notes", "{", "[1]", '{"width": 64}'])
def test_a_file_that_is_no_dump_is_refused_untouched(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.json").write_text(text)
    with (
        pytest.raises(UsageError, match="is not a perf dump"),
        earlier_dump_set_aside(tmp_path / "p.json", lambda _: None),
    ):
        pytest.fail("nothing may run")
    assert {"p.json": text} == contents(tmp_path)


def test_a_link_stays_and_its_target_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text(OLD)
    (tmp_path / "p.json").symlink_to("real.json")
    kept: list[Path] = []
    with pytest.raises(FuseproofError), earlier_dump_set_aside(tmp_path / "p.json", kept.append):
        raise FuseproofError("x")
    assert [tmp_path.resolve() / "real.json.previous"] == kept
    assert (tmp_path / "p.json").is_symlink()


def test_without_a_dump_path_nothing_happens() -> None:
    with earlier_dump_set_aside(None, lambda _: None):
        pass
