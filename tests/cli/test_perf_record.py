"""The perf dump: sglang's keys for request 0, sums in timers, everything strict JSON and readable again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from fuseproof.cli.perf_record import OutputRecord, RequestRecord, RunRecord, assemble, recorded_path
from fuseproof.harness.perf.dump import read_perf_dump, write_perf_dump

OUTPUT = OutputRecord(
    path=Path("outputs/a.png"),
    file_sha256="f" * 64,
    pixels_sha256="e" * 64,
    raw_sha256="d" * 64,
    latents_sha256="c" * 64,
    width=64,
    height=48,
    nonfinite=0,
    degenerate=None,
)
FIRST = RequestRecord(
    prompt="a \N{PANDA FACE} | `x`",
    rewritten_prompt=None,
    seed=2**64 - 1,
    stages=(("TextEncodingStage", 10.0), ("DenoisingStage", 80.0), ("DecodingStage", 5.0)),
    denoise_steps_ms=(50.0, 30.0),
    worker_ms=100.0,
    save_ms=3.0,
    client_ms=104.0,
    work={"transformer_calls": 4, "transformer_tokens": 2080},
    output=OUTPUT,
)
SECOND = dataclasses.replace(FIRST, prompt="b", worker_ms=200.0, client_ms=210.0, rewritten_prompt="b, in detail")
RUN = RunRecord(
    model="embedded:longcat-image",
    config={"seed": 1, "negative_prompt": None, "warmup_resolutions": ["64x64"]},
    environment={"fuseproof": {"commit": "abc", "is_dirty": False}},
    load_ms=500.0,
    warmup_ms=0.0,
    compile_ms=7.0,
    memory={"runtime_peak": {"peak_host_rss_mb": 321.5}},
    fastpaths={"requested": "auto", "sites": {}},
    graphs={"captured": 0},
    warnings=("careful",),
)


def dump_of(*requests: RequestRecord, run: RunRecord = RUN, folder: Path = Path()) -> dict[str, Any]:
    return assemble(requests or (FIRST,), run, folder)


def test_the_keys_are_those_of_the_format() -> None:
    expected = [
        *("schema", "timestamp", "request_id", "commit_hash", "tag", "total_duration_ms", "steps", "denoise_steps_ms"),
        *(
            "memory_checkpoints",
            "meta",
            "config",
            "environment",
            "timers",
            "requests",
            "outputs",
            "fastpaths",
            "graphs",
        ),
        "warnings",
    ]
    assert expected == list(dump_of())


def test_top_level_speaks_of_request_0_and_timers_sum() -> None:
    dump = dump_of(FIRST, SECOND)
    assert 100.0 == dump["total_duration_ms"]
    assert {"name": "DenoisingStage", "duration_ms": 80.0} == dump["steps"][1]
    assert [{"step": 0, "duration_ms": 50.0}, {"step": 1, "duration_ms": 30.0}] == dump["denoise_steps_ms"]
    assert {
        "load_ms": 500.0,
        "warmup_ms": 0.0,
        "compile_ms": 7.0,
        "worker_ms": 300.0,
        "denoise_ms": 160.0,
        "save_ms": 6.0,
        "client_ms": 314.0,
        "unattributed_ms": 110.0,
    } == dump["timers"]
    assert {"prompt": [FIRST.prompt, "b"], "model": "embedded:longcat-image"} == dump["meta"]


def test_a_request_entry_holds_its_own_numbers() -> None:
    first, second = dump_of(FIRST, SECOND)["requests"]
    assert (0, 2**64 - 1, 80.0, 5.0) == (first["index"], first["seed"], first["denoise_ms"], first["unattributed_ms"])
    assert {"transformer_calls": 4, "transformer_tokens": 2080} == first["work"]
    assert "rewritten_prompt" not in first
    assert "b, in detail" == second["rewritten_prompt"]


@pytest.mark.parametrize(
    ("stages", "steps", "expected"),
    [
        ((("DenoisingStage", 80.0), ("DenoisingStage", 1.0)), (), 81.0),
        ((("XBeforeDenoisingStage", 9.0),), (1.0, 2.0), 3.0),
        ((), (), None),
    ],
)
def test_denoise_follows_the_naming_rule(
    stages: tuple[tuple[str, float], ...], steps: tuple[float, ...], expected: float | None
) -> None:
    record = dataclasses.replace(FIRST, stages=stages, denoise_steps_ms=steps)
    assert expected == record.denoise_ms
    assert expected == dump_of(record)["timers"]["denoise_ms"]


def test_it_reads_back_as_a_perf_dump(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    write_perf_dump(path, dump_of(FIRST, SECOND, folder=tmp_path))
    read = read_perf_dump(path)
    assert (100.0, 80.0, 300.0, 314.0) == (read.total_ms, read.denoise_ms, read.worker_ms, read.client_ms)
    assert {"runtime_peak": {"peak_host_rss_mb": 321.5}} == read.memory
    assert (FIRST.prompt, "b") == read.prompts


@pytest.mark.parametrize(
    ("checkout", "expected"),
    [
        ({"commit": "abc", "is_dirty": False}, "abc"),
        ({"commit": "abc", "is_dirty": True}, "abc+dirty"),
        ({"commit": None}, "N/A"),
        (None, "N/A"),
    ],
)
def test_commit_hash(checkout: dict[str, Any] | None, expected: str) -> None:
    run = dataclasses.replace(RUN, environment={"fuseproof": checkout})
    assert expected == dump_of(run=run)["commit_hash"]


def test_no_token_and_no_home_folder_is_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "anna"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrstuv")
    secret = f"{home}/models with hf_abcdefghijklmnopqrstuv"
    run = dataclasses.replace(
        RUN, model=secret, config={"model_path": secret}, environment={"x": [secret]}, warnings=(secret,)
    )
    record = dataclasses.replace(FIRST, output=dataclasses.replace(OUTPUT, path=home / "outputs" / "a.png"))
    text = json.dumps(dump_of(record, run=run, folder=Path("/elsewhere")))
    assert "anna" not in text
    assert "hf_abc" not in text
    assert "~/outputs/a.png" in text


def test_output_paths_are_relative_to_the_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "outputs/a.png" == recorded_path(Path("outputs/a.png"), tmp_path)
    assert "../outputs/a.png" == recorded_path(Path("outputs/a.png"), Path("dumps"))
    assert "a.png" == recorded_path(tmp_path / "x" / "a.png", tmp_path / "x")


def test_an_image_that_was_not_written_has_no_path() -> None:
    record = dataclasses.replace(FIRST, output=dataclasses.replace(OUTPUT, path=None, file_sha256=None))
    entry = dump_of(record)["outputs"][0]
    assert (None, None, "d" * 64) == (entry["path"], entry["file_sha256"], entry["raw_sha256"])
    assert (0, 1, None, 0, None) == tuple(entry[key] for key in ("request", "frames", "fps", "nonfinite", "degenerate"))
