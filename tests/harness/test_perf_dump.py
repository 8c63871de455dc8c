"""Reading and writing perf dumps: real files, the denoise naming rule, and every kind of unusable file."""

from __future__ import annotations

import codecs
import json
import os
from pathlib import Path
from typing import Any

import pytest

from fuseproof.errors import FuseproofError
from fuseproof.harness.atomic_files import special_kind, write_text_atomically
from fuseproof.harness.perf.dump import read_perf_dump, write_perf_dump
from tests.harness.perf_dump_files import ABSENT, KLEIN, LONGLIVE2, dump_values, stage_list, step_list, write_dump


def message_of(path: Path) -> str:
    with pytest.raises(FuseproofError) as caught:
        read_perf_dump(path)
    assert caught.value.exit_code == 1
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("path", [*LONGLIVE2, *KLEIN], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_real_dumps_read(path: Path) -> None:
    dump = read_perf_dump(path)
    assert dump.denoise_source == "stages"
    assert len(dump.denoise_steps_ms) == (8 if "longlive2" in path.parts else 50)
    assert dump.worker_ms == dump.total_ms
    assert dump.request_count == 1
    assert dump.client_ms is None
    assert len(dump.prompts) == 1


def test_a_real_dump_keeps_its_numbers() -> None:
    dump = read_perf_dump(LONGLIVE2[0])
    assert dump.total_ms == 5613.361400028225
    assert dump.denoise_ms == 1502.477561996784
    assert list(dump.stages)[:2] == ["InputValidationStage", "LongLive2TextEncodingStage"]
    assert dump.memory["after_forward"]["peak_reserved_mb"] == 61074.0
    assert dump.commit_hash == "993d1fccbaafe3e79d91567d2fc1d665cc94fa50"
    assert dump.prompts == ("The cat starts walking slowly towards the camera.",)
    assert dump.label == "i2v-r1-a1.json"


DENOISE_CASES = {
    "one stage": ((("Cosmos3DenoisingStage", 5.0), ("DecodingStage", 1.0)), (9.0,), 5.0, "stages"),
    "stage and refinement": ((("LTX2AVDenoisingStage", 5.0), ("LTX2RefinementStage", 2.0)), (), 7.0, "stages"),
    "before-stage excluded": (
        (("QwenImageLayeredBeforeDenoisingStage", 4.0), ("QwenImageLayeredDenoisingStage", 5.0)),
        (),
        5.0,
        "stages",
    ),
    "only a before-stage": ((("QwenImageLayeredBeforeDenoisingStage", 4.0),), (2.0, 3.0), 5.0, "steps"),
    "no name, steps": ((("SenseNovaU1GenerationStage", 6.0),), (2.0, 3.0), 5.0, "steps"),
    "no name, no steps": ((("SenseNovaU1GenerationStage", 6.0),), (), None, None),
    "old per-step entries": ((("denoising_step_0", 2.0), ("denoising_step_1", 3.0)), (), 5.0, "steps"),
    "the same stage twice": ((("DenoisingStage", 2.0), ("DenoisingStage", 3.0)), (), 5.0, "stages"),
}


@pytest.mark.parametrize(("stages", "steps", "denoise_ms", "source"), DENOISE_CASES.values(), ids=DENOISE_CASES.keys())
def test_denoise_time_by_the_naming_rule(
    tmp_path: Path, stages: Any, steps: Any, denoise_ms: float | None, source: str | None
) -> None:
    path = write_dump(tmp_path / "d.json", steps=stage_list(*stages), denoise_steps_ms=step_list(*steps))
    dump = read_perf_dump(path)
    assert (denoise_ms, source) == (dump.denoise_ms, dump.denoise_source)


def test_equal_stage_names_are_summed_in_first_recorded_order(tmp_path: Path) -> None:
    steps = stage_list(("Zoë|stage", 1.0), ("Alpha", 2.0), ("Zoë|stage", 3.0), ("denoising_step_0", 9.0))
    dump = read_perf_dump(write_dump(tmp_path / "d.json", steps=steps))
    assert list(dump.stages.items()) == [("Zoë|stage", 4.0), ("Alpha", 2.0)]
    assert len(dump.stage_entries) == 4


ACCEPTED = {
    "commit N/A": {"commit_hash": "N/A"},
    "commit missing": {"commit_hash": ABSENT},
    "meta missing": {"meta": ABSENT},
    "meta null": {"meta": None},
    "prompt as text": {"meta": {"prompt": "a lamp", "model": "org/name"}},
    "unknown keys": {"novel": {"deep": [1, float("nan")]}, "memory_checkpoints": {"x": {"note": "text"}}},
    "no memory": {"memory_checkpoints": ABSENT},
    "null sections": {"steps": None, "denoise_steps_ms": None, "config": None, "requests": None},
    "integer time": {"total_duration_ms": 1000},
}


@pytest.mark.parametrize("changes", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_sparse_and_unfamiliar_dumps_are_accepted(tmp_path: Path, changes: dict[str, Any]) -> None:
    dump = read_perf_dump(write_dump(tmp_path / "d.json", **changes))
    assert dump.total_ms == 1000.0
    assert dump.prompts in {("a lamp",), ()}
    assert dump.commit_hash in {"a" * 40, None}


@pytest.mark.parametrize(
    "encoded",
    [codecs.BOM_UTF8 + json.dumps(dump_values()).encode(), json.dumps(dump_values()).encode("utf-16")],
    ids=["utf-8", "utf-16"],
)
def test_a_byte_order_mark_is_accepted(tmp_path: Path, encoded: bytes) -> None:
    path = tmp_path / "bom.json"
    path.write_bytes(encoded)
    assert read_perf_dump(path).total_ms == 1000.0


UNUSABLE_FILES = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\t", "is empty"),
    "list": (b"[1, 2]", "holds a list, expected a JSON object"),
    "number": (b"3", "holds a number"),
    "truncated": (json.dumps(dump_values()).encode()[:200], "ends too early, at line 1, column"),
    "syntax": (b'{"a": 1,\n "b" 2}', "is not valid JSON: Expecting ':' delimiter at line 2, column 6"),
    "binary": (b"\x89PNG\r\n\x1a\n\x00", "is not text: byte 0x89 at offset 0"),
    "html": (b"<!doctype html>", "is not valid JSON"),
    "deep": (b"[" * 100_000, "is not usable JSON: nested too deeply"),
    "endless number": (b'{"total_duration_ms": ' + b"9" * 5000 + b"}", "is not usable JSON"),
}


@pytest.mark.parametrize(("content", "cause"), UNUSABLE_FILES.values(), ids=UNUSABLE_FILES.keys())
def test_an_unusable_file_is_named_with_its_cause(tmp_path: Path, content: bytes, cause: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    assert cause in message_of(path)


def test_a_missing_file_and_a_directory_are_named(tmp_path: Path) -> None:
    assert "does not exist" in message_of(tmp_path / "missing.json")
    assert "is a directory" in message_of(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    path = write_dump(tmp_path / "d.json")
    path.chmod(0)
    assert "cannot be read: Permission denied" in message_of(path)


BAD_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "total missing": ({"total_duration_ms": ABSENT}, "has no total_duration_ms"),
    "total zero": ({"total_duration_ms": 0}, "total_duration_ms is 0, expected milliseconds"),
    "total negative": ({"total_duration_ms": -1}, "total_duration_ms is -1, expected milliseconds"),
    "total NaN": ({"total_duration_ms": float("nan")}, "total_duration_ms is nan, expected a finite number"),
    "total infinite": ({"total_duration_ms": float("inf")}, "total_duration_ms is inf, expected a finite number"),
    "total text": ({"total_duration_ms": "12"}, 'total_duration_ms is "12", expected a number'),
    "total null": ({"total_duration_ms": None}, "total_duration_ms is null, expected a number"),
    "total boolean": ({"total_duration_ms": True}, "total_duration_ms is true, expected a number"),
    "total beyond floats": ({"total_duration_ms": 10**400}, "total_duration_ms is inf"),
    "total in the wrong unit": ({"total_duration_ms": 1e300}, "total_duration_ms is 1e+300, expected milliseconds"),
    "stage without time": ({"steps": [{"name": "X"}]}, "has no steps[0].duration_ms"),
    "stage without name": ({"steps": [{"duration_ms": 1.0}]}, "has no steps[0].name"),
    "stage negative": ({"steps": stage_list(("X", 1.0), ("Y", -2.0))}, "steps[1].duration_ms is -2"),
    "stage NaN": ({"steps": stage_list(("X", float("nan")))}, "steps[0].duration_ms is nan"),
    "stages no list": ({"steps": {"X": 1}}, "steps is an object, expected a list"),
    "stage no object": ({"steps": ["X"]}, "steps[0] is a string, expected an object"),
    "step text": ({"denoise_steps_ms": [{"step": 0, "duration_ms": "1"}]}, "denoise_steps_ms[0].duration_ms"),
    "memory text": (
        {"memory_checkpoints": {"after_forward": {"peak_reserved_mb": "x"}}},
        "memory_checkpoints.after_forward.peak_reserved_mb",
    ),
    "timer zero": ({"timers": {"worker_ms": 0}}, "timers.worker_ms is 0"),
    "config a list": ({"config": []}, "config is a list, expected an object"),
    "other schema": ({"schema": "fuseproof.slot/1"}, "has schema 'fuseproof.slot/1', expected 'fuseproof.perf/1'"),
}


@pytest.mark.parametrize(("changes", "cause"), BAD_FIELDS.values(), ids=BAD_FIELDS.keys())
def test_a_bad_field_is_named_with_its_value(tmp_path: Path, changes: dict[str, Any], cause: str) -> None:
    assert cause in message_of(write_dump(tmp_path / "bad.json", **changes))


@pytest.mark.parametrize(
    ("expected", "commit"),
    [("993d1fcc", "993d1fccbaafe3e7"), ("993d1fcc+dirty", "993d1fccbaafe3e7+dirty"), ("unknown", "N/A"), ("v1", "v1")],
)
def test_a_short_commit_keeps_its_dirt(tmp_path: Path, expected: str, commit: str) -> None:
    assert expected == read_perf_dump(write_dump(tmp_path / "d.json", commit_hash=commit)).short_commit


def two_requests() -> dict[str, Any]:
    requests = [
        {"index": 0, "worker_ms": 1000.0, "steps": stage_list(("DenoisingStage", 900.0), ("DecodingStage", 50.0))},
        {"index": 1, "worker_ms": 700.0, "steps": stage_list(("DenoisingStage", 600.0), ("DecodingStage", 40.0))},
    ]
    timers = {"worker_ms": 1700.0, "denoise_ms": 1500.0, "client_ms": 1800.0, "save_ms": 60.0, "unattributed_ms": -1.0}
    return {"schema": "fuseproof.perf/1", "requests": requests, "timers": timers}


def test_a_run_is_the_sum_of_its_requests(tmp_path: Path) -> None:
    dump = read_perf_dump(write_dump(tmp_path / "ours.json", **two_requests()))
    assert dump.total_ms == 1000.0
    assert (dump.request_count, dump.worker_ms, dump.run_denoise_ms, dump.client_ms) == (2, 1700.0, 1500.0, 1800.0)
    assert dump.run_stages == {"DenoisingStage": 1500.0, "DecodingStage": 90.0}
    assert dump.request_worker_ms == (1000.0, 700.0)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "perf.json"
    values = dump_values(meta={"prompt": ["a 🐼 \udcff"], "model": "m"})
    write_perf_dump(path, values)
    assert read_perf_dump(path).raw == values
    assert [path] == list(path.parent.iterdir())


def test_non_finite_numbers_are_not_written(tmp_path: Path) -> None:
    path = tmp_path / "perf.json"
    with pytest.raises(FuseproofError, match="not strict JSON") as caught:
        write_perf_dump(path, dump_values(total_duration_ms=float("nan")))
    assert str(path) in caught.value.message
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "perf.json"
    path.write_text("old", encoding="utf-8")

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(FuseproofError, match=r"Cannot write .*perf\.json: No space left on device"):
        write_perf_dump(path, dump_values())
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_perf_dump(tmp_path / "perf.json", dump_values())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_or_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    for target in (tmp_path / "folder", tmp_path / "file" / "perf.json"):
        with pytest.raises(FuseproofError, match="Cannot write") as caught:
            write_perf_dump(target, dump_values())
        assert str(target) in caught.value.message
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "folder"]


def test_a_pipe_is_refused_at_once_by_reader_and_writer(tmp_path: Path) -> None:
    pipe = tmp_path / "p.json"
    os.mkfifo(pipe)
    with pytest.raises(FuseproofError, match="pipe or a device"):
        read_perf_dump(pipe)
    with pytest.raises(FuseproofError, match="it is a named pipe, and a regular file was expected"):
        write_text_atomically(pipe, "x")
    assert "a named pipe" == special_kind(pipe)
    assert [pipe] == list(tmp_path.iterdir())


def test_a_device_is_never_replaced(tmp_path: Path) -> None:
    link = tmp_path / "p.json"
    link.symlink_to(os.devnull)
    for path in (Path(os.devnull), link):
        with pytest.raises(FuseproofError, match="it is a device"):
            write_text_atomically(path, "x")
        with pytest.raises(FuseproofError, match="pipe or a device"):
            read_perf_dump(path)
    assert "a device" == special_kind(Path(os.devnull))
    assert link.is_symlink()


@pytest.mark.parametrize("exists", [True, False], ids=["whole", "dangling"])
def test_a_link_stays_and_its_target_is_written(tmp_path: Path, exists: bool) -> None:
    target, link = tmp_path / "real" / "p.json", tmp_path / "link.json"
    target.parent.mkdir()
    if exists:
        target.write_text("old")
    link.symlink_to("real/p.json")
    write_text_atomically(link, "new")
    assert (True, "new", [target]) == (link.is_symlink(), target.read_text(), list(target.parent.iterdir()))


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"], ids=["too-long", "nul"])
def test_an_impossible_name_is_a_sentence(tmp_path: Path, name: str) -> None:
    with pytest.raises(FuseproofError, match="Cannot write"):
        write_text_atomically(tmp_path / name, "x")


def test_links_in_a_circle_are_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(FuseproofError, match="Cannot write"):
        write_text_atomically(tmp_path / "a", "x")
