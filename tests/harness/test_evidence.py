"""From a dump to the numbers of a slot."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fuseproof.harness.campaign.evidence import EvidenceError, check_ending, collect, collect_dump, log_tail
from fuseproof.harness.campaign.processes import ProcessEnd
from fuseproof.harness.campaign.records import SlotMemory, SlotTimes
from tests.harness.clip_samples import raw_clip, saved
from tests.harness.fake_arm import write_png

SGLANG = {
    "total_duration_ms": 8000.0,
    "steps": [{"name": "DenoisingStage", "duration_ms": 7000.0}],
    "denoise_steps_ms": [{"step": 0, "duration_ms": 3500.0}, {"step": 1, "duration_ms": 3500.0}],
    "memory_checkpoints": {
        "load_peak": {"peak_allocated_mb": 30.0, "peak_reserved_mb": 31.0},
        "after_forward": {"peak_allocated_mb": 40.0, "peak_reserved_mb": 50.0, "peak_host_anon_mb": 0.0},
    },
    "meta": {"prompt": "a lamp", "model": "org/name"},
}
TWO_REQUESTS = {
    "timers": {"worker_ms": 300.0, "denoise_ms": 200.0, "client_ms": 320.0, "save_ms": 20.0},
    "config": {"warmup_mode": "request", "warmup_steps": 1},
    "requests": [
        {"work": {"transformer_calls": 8, "transformer_tokens": 100}, "denoise_steps_ms": [{}, {}]},
        {"work": {"transformer_calls": 8, "transformer_tokens": 150}, "denoise_steps_ms": [{}, {}]},
    ],
}


def slot(folder: Path, **changes: Any) -> Path:
    (folder / "outputs").mkdir()
    dump = folder / "perf.json"
    dump.write_text(json.dumps({"timestamp": datetime.now(UTC).isoformat(), **SGLANG, **changes}))
    return dump


def test_an_sglang_dump_gives_what_it_has(tmp_path: Path) -> None:
    dump = collect_dump(slot(tmp_path), datetime.now(UTC))
    found = collect(dump, tmp_path / "outputs", expects_outputs=False)
    assert SlotTimes(worker_s=8.0, denoise_s=7.0) == found.times
    expected = SlotMemory(peak_allocated_mib=40.0, peak_reserved_mib=50.0, load_peak_mib=30.0)
    assert expected == found.memory
    assert {"requests": 1, "denoise_steps": 2, "warmup_mode": None, "warmup_steps": None} == found.work
    assert ((), None) == (found.outputs, found.fastpaths)


def test_times_and_work_are_sums_over_the_requests(tmp_path: Path) -> None:
    found = collect(collect_dump(slot(tmp_path, **TWO_REQUESTS), datetime.now(UTC)), tmp_path / "outputs", False)
    assert (0.3, 0.2, 0.32, 0.02) == tuple(
        pytest.approx(getattr(found.times, f"{name}_s")) for name in ("worker", "denoise", "client", "save")
    )
    work = {"requests": 2, "denoise_steps": 4, "transformer_calls": 16, "transformer_tokens": 250}
    assert work | {"warmup_mode": "request", "warmup_steps": 1} == found.work


def test_what_the_dump_says_of_its_outputs_is_taken_over_and_checked(tmp_path: Path) -> None:
    stated = {"path": "outputs/image.png", "raw_sha256": "a" * 64, "latents_sha256": "b" * 64, "degenerate": "constant"}
    dump = slot(tmp_path, outputs=[stated])
    write_png(tmp_path / "outputs" / "image.png", 9, 8)
    (output,) = collect(collect_dump(dump, datetime.now(UTC)), tmp_path / "outputs", True).outputs
    assert ("a" * 64, "b" * 64, "constant") == (output.raw_sha256, output.latents_sha256, output.degenerate)
    assert "a" * 64 == output.deepest_sha256


@pytest.mark.parametrize(
    ("outputs", "code", "named"),
    [
        pytest.param([{"path": "outputs/other.png"}], "BAD_OUTPUT", "other.png", id="missing-file"),
        pytest.param([{"path": "../elsewhere.png"}], "BAD_OUTPUT", "elsewhere.png", id="outside-the-slot"),
        pytest.param(
            [{"path": "outputs/image.png", "file_sha256": "0" * 64}], "BAD_OUTPUT", "image.png", id="another-hash"
        ),
    ],
)
def test_outputs_that_contradict_the_dump(tmp_path: Path, outputs: Any, code: str, named: str) -> None:
    dump = slot(tmp_path, outputs=outputs)
    write_png(tmp_path / "outputs" / "image.png", 9, 8)
    with pytest.raises(EvidenceError) as caught:
        collect(collect_dump(dump, datetime.now(UTC)), tmp_path / "outputs", True)
    assert code == caught.value.code
    assert named in caught.value.reason


def test_other_files_are_kept_with_their_hash(tmp_path: Path) -> None:
    dump = slot(tmp_path)
    (tmp_path / "outputs" / "scene.glb").write_bytes(b"mesh")
    (output,) = collect(collect_dump(dump, datetime.now(UTC)), tmp_path / "outputs", True).outputs
    assert ("outputs/scene.glb", None, None) == (output.path, output.pixels_sha256, output.width)


def test_a_video_is_kept_with_the_hashes_of_its_frames(tmp_path: Path) -> None:
    raw = raw_clip()
    stated = {"path": "outputs/clip.mp4", "raw_sha256": "a" * 64, "frames_sha256": ["b" * 64] * 4, "frames": 4}
    dump = slot(tmp_path, outputs=[stated])
    saved(tmp_path / "outputs" / "clip.mp4", raw)
    (output,) = collect(collect_dump(dump, datetime.now(UTC)), tmp_path / "outputs", True).outputs
    assert (16, 16, 4, 16.0, "a" * 64) == (
        *(output.width, output.height, output.frames, output.fps),
        output.raw_sha256,
    )
    assert ("b" * 64,) * 4 == output.frames_sha256


@pytest.mark.parametrize(
    ("named", "stated"),
    [
        ("holds 4 frames, and the dump states 5 frames", {"frames": 5}),
        ("holds 4 frames, and the dump states 3 raw frames with a hash", {"frames_sha256": ["b" * 64] * 3}),
        ("are no SHA-256", {"frames_sha256": ["b"] * 4}),
        ("is not the file whose hash the dump holds", {"file_sha256": "c" * 64}),
    ],
)
def test_a_video_that_contradicts_its_dump_is_a_bad_output(named: str, stated: dict[str, Any], tmp_path: Path) -> None:
    dump = slot(tmp_path, outputs=[{"path": "outputs/clip.mp4"} | stated])
    saved(tmp_path / "outputs" / "clip.mp4", raw_clip())
    with pytest.raises(EvidenceError) as caught:
        collect(collect_dump(dump, datetime.now(UTC)), tmp_path / "outputs", True)
    assert "BAD_OUTPUT" == caught.value.code
    assert named in caught.value.reason


@pytest.mark.parametrize(
    ("end", "log", "code"),
    [
        pytest.param(ProcessEnd("exit", 0), "CUDA out of memory, retried", None, id="a-log-alone-proves-nothing"),
        pytest.param(ProcessEnd("exit", 1), "MemoryError", "OOM", id="python-memory-error"),
        pytest.param(ProcessEnd("exit", 1), "std::bad_alloc", "OOM", id="bad-alloc"),
        pytest.param(ProcessEnd("exit", -9, oom_kills=1), "", "OOM", id="kernel-oom-killer"),
        pytest.param(ProcessEnd("exit", -9), "", "KILLED", id="kill-9"),
        pytest.param(ProcessEnd("exit", -11), "", "KILLED", id="segmentation-fault"),
        pytest.param(ProcessEnd("exit", 2), "usage", "EXIT", id="usage"),
        pytest.param(ProcessEnd("timeout", -15), "out of memory", "TIMEOUT", id="timeout-first"),
        pytest.param(ProcessEnd("interrupted", -2), "", "INTERRUPTED", id="interrupted"),
    ],
)
def test_endings(end: ProcessEnd, log: str, code: str | None) -> None:
    if code is None:
        check_ending(end, log, 1.0)
        return
    with pytest.raises(EvidenceError) as caught:
        check_ending(end, log, 1.0)
    assert code == caught.value.code


@pytest.mark.parametrize(
    ("returncode", "log", "code"),
    [
        pytest.param(2, "", "USAGE", id="its flags are wrong"),
        pytest.param(6, "graphs: rejected: OutOfMemoryError", "INVALID_RUN", id="its measurement proves nothing"),
        pytest.param(1, "CUDA out of memory", "OOM", id="out of memory"),
        pytest.param(1, "", "EXIT", id="anything else"),
    ],
)
def test_endings_of_generate(returncode: int, log: str, code: str) -> None:
    with pytest.raises(EvidenceError) as caught:
        check_ending(ProcessEnd("exit", returncode), log, 1.0, is_generate=True)
    assert code == caught.value.code


def test_the_log_tail_is_printable_relative_and_short(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(50)]
    noise = f"\x1b[31mred\x1b[0m {tmp_path}/slots/x\x07\r\n" + "y" * 5000
    (tmp_path / "stderr.log").write_text("\n".join([*lines, noise]))
    found = log_tail(tmp_path / "stderr.log", tmp_path / "stdout.log", tmp_path)
    assert 20 == len(found)
    assert ("red slots/x", "y" * 400) == found[-2:]


def test_stdout_stands_in_for_an_empty_stderr(tmp_path: Path) -> None:
    (tmp_path / "stderr.log").write_text("\n")
    (tmp_path / "stdout.log").write_text("why\n")
    assert ("why",) == log_tail(tmp_path / "stderr.log", tmp_path / "stdout.log", tmp_path)


def deep(levels: int) -> Any:
    return {"x": deep(levels - 1)} if levels else 1


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        pytest.param("which is in the future", {"timestamp": "2099-01-02T03:04:05+00:00"}, id="written-in-the-future"),
        pytest.param("work.calls is 'abc', not a count", {"requests": [{"work": {"calls": "abc"}}]}, id="work-text"),
        pytest.param("work.calls is [1], not a count", {"requests": [{"work": {"calls": [1]}}]}, id="work-list"),
        pytest.param("impossible path", {"outputs": [{"path": "a\0b"}]}, id="null-byte-in-a-path"),
        pytest.param("impossible path", {"outputs": [{"path": "~nosuchuser/x"}]}, id="unknown-home"),
        pytest.param("no table of sites", {"fastpaths": {"sites": {"x": None}}}, id="site-null"),
        pytest.param("nested more than", {"fastpaths": {"y": deep(40)}}, id="nested-deep"),
        pytest.param("calls_fused is 'many'", {"fastpaths": {"sites": {"x": {"calls_fused": "many"}}}}, id="calls"),
    ],
)
def test_a_lying_dump_makes_the_slot_invalid_and_nothing_else(tmp_path: Path, expected: str, changes: Any) -> None:
    path = slot(tmp_path, **changes)
    with pytest.raises(EvidenceError) as caught:
        collect(collect_dump(path, datetime.now(UTC)), tmp_path / "outputs", expects_outputs=False)
    assert "BAD_DUMP" == caught.value.code
    assert expected in caught.value.reason


def test_secrets_and_half_characters_do_not_pass_from_the_dump_into_the_record(tmp_path: Path) -> None:
    secret = "hf_" + "a1B2" * 9
    path = slot(
        tmp_path, fastpaths={"requested": secret, "sites": {f"x{secret}": {"reason": f"with {secret}"}, "\ud800": {}}}
    )
    fastpaths = collect(collect_dump(path, datetime.now(UTC)), tmp_path / "outputs", False).fastpaths
    text = json.dumps(fastpaths, ensure_ascii=False)
    assert secret not in text
    assert text.encode("utf-8")


@pytest.mark.parametrize("kind", ["fifo", "link", "device"])
def test_a_dump_or_log_that_is_no_file_of_its_own_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    make = {
        "fifo": os.mkfifo,
        "link": lambda path: path.symlink_to(slot(tmp_path)),
        "device": lambda path: path.symlink_to("/dev/zero"),
    }[kind]
    odd, log = tmp_path / "odd.json", tmp_path / "stderr.log"
    make(odd)
    with pytest.raises(EvidenceError, match="no regular file"):
        collect_dump(odd, datetime.now(UTC))
    log.symlink_to("/dev/zero")
    assert () == log_tail(log, tmp_path / "stdout.log", tmp_path)


@pytest.mark.parametrize("kind", ["folder", "file", "outside", "fifo"])
def test_an_output_borrowed_through_a_link_is_refused(tmp_path: Path, kind: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_png(other / "image.png", 7, 8)
    (tmp_path / "mine").mkdir()
    path = slot(tmp_path / "mine")
    outputs = path.parent / "outputs"
    if kind == "folder":
        outputs.rmdir()
        outputs.symlink_to(other)
    elif kind == "fifo":
        os.mkfifo(outputs / "image.png")
    else:
        (outputs / "image.png").symlink_to(other / "image.png" if kind == "file" else "/etc/passwd")
    with pytest.raises(EvidenceError, match="link") as caught:
        collect(collect_dump(path, datetime.now(UTC)), outputs, expects_outputs=True)
    assert "BAD_OUTPUT" == caught.value.code
