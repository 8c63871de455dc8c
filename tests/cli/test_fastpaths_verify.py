"""``fastpaths verify`` and ``fastpaths bench``: what they say without a card, and what they do in the interpreter."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import torch

from fuseproof.cli import (
    fastpaths_bench_counters,
    fastpaths_certificate,
    fastpaths_checks,
    fastpaths_requests,
    fastpaths_rows,
    fastpaths_verify,
)
from fuseproof.cli.fastpaths_bench import Shape, _printed
from fuseproof.cli.fastpaths_bench_rows import head_lines, line_of
from fuseproof.cli.fastpaths_rows import VerifyRows
from fuseproof.cli.main import main
from fuseproof.errors import FuseproofError
from fuseproof.fastpaths.benchmarking import Measured, Timing
from fuseproof.fastpaths.captures import captured, to_bytes
from fuseproof.fastpaths.certificates import Certificate, place_here, read_certificate, reject_reason, to_json
from fuseproof.fastpaths.kernels.launching import is_interpreted
from fuseproof.fastpaths.user_sites import load_user_sites
from fuseproof.fastpaths.verification import Outcome, State
from fuseproof.harness.machine import cuda_driver
from fuseproof.pipelines import fastpath_workloads
from fuseproof.pipelines.model_cache import CACHE_VARIABLE

CPU = torch.device("cpu")
WRONG = """\
from fuseproof.fastpaths import UserSite

SITES = [UserSite("mine", lambda residual, *_, **__: residual * 2, replaces="gated_residual")]
"""
without_card = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
interpreted = pytest.mark.skipif(not is_interpreted(), reason="kernels are compiled here, not interpreted")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``TRITON_INTERPRET=1`` asks for, at one small size."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(fastpath_workloads, "SMALL", fastpath_workloads.SMALL[:1])


@without_card
@pytest.mark.parametrize("command", ["verify", "bench"])
def test_without_a_card_it_is_one_sentence(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """2, not 1: nothing was found out about any bits. What works here is named."""
    assert main(["fastpaths", command]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    why, step = captured.err.splitlines()
    assert f"fastpaths {command} needs a CUDA device, and " in why
    assert ": nothing was " in why
    assert "`fuseproof fastpaths task NAME`" in step


@pytest.mark.parametrize("command", ["verify", "bench"])
@pytest.mark.parametrize("flags", [[], ["--fastpaths-from", "mine.py"]], ids=["built-in", "own"])
def test_a_machine_without_a_driver_costs_no_import(
    command: str, flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cuda_driver, "LIBRARY", "libno-such-driver.so.1")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["fastpaths", command, *flags]) == 2
    assert "NVIDIA's driver (libno-such-driver.so.1) is not here" in capsys.readouterr().err


@without_card
@pytest.mark.parametrize("command", ["verify", "bench"])
def test_a_driver_without_a_card_leaves_the_word_to_torch(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cuda_driver, "has_cuda_driver", lambda: True)
    assert main(["fastpaths", command]) == 2
    assert f"and torch {torch.__version__} sees none here: nothing was " in capsys.readouterr().err


@interpreted
@pytest.mark.usefixtures("interpreter")
def test_the_interpreter_runs_small_cases_and_certifies_nothing(
    own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fastpaths", "verify", "--model", "longcat-image", "--site", "gated_residual", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (True, None) == (document["interpreted"], document["certificate"])
    pointwise = [case for case in document["cases"] if case["kernel"] == "gated_residual"]
    assert {"equal"} == {case["state"] for case in pointwise}
    assert {"random", "every finite bf16 value", "subnormals", "ties"} <= {case["values"] for case in pointwise}
    assert 0 == document["summary"]["differs"]
    assert not own_cache.exists()


@interpreted
@pytest.mark.usefixtures("interpreter")
def test_a_mismatch_is_exit_code_1_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(WRONG, encoding="utf-8")
    arguments = ["--model", "longcat-image", "--site", "mine", "--fastpaths-from", str(file)]
    assert main(["fastpaths", "verify", *arguments]) == 1
    output = capsys.readouterr().out
    assert "is no certificate" in output
    assert "differs: random: not bit-exact" in output
    assert "mine (gated_residual)" in output


@interpreted
@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("--site 'nothing' is no fast path", ["--site", "nothing"]),
        ("--site 'packed_blocks' has no kernel", ["--site", "packed_blocks"]),
        ("generate --fastpaths linear_gelu --quality extra-high", ["--site", "linear_gelu"]),
        ("--output asks for a certificate", ["--output", "c.json"]),
        ("--from replays one captured call", ["--from", "c.safetensors", "--site", "gelu_tanh"]),
        ("is no file", ["--fastpaths-from", "missing.py"]),
    ],
)
def test_mistakes_are_one_sentence(words: str, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fastpaths", "verify", "--model", "longcat-image", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_wrong_name_costs_no_import(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(fastpaths_checks, "cases_of_models", None)
    monkeypatch.setattr(fastpaths_verify, "card", None)
    for command in ("verify", "bench"):
        assert main(["fastpaths", command, "--site", "gelu_tan"]) == 2
        assert "next: Use --site gelu_tanh" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "name", "flags"),
    [
        ("is the same file as --fastpaths-from", "mine.py", ["--fastpaths-from", "mine.py"]),
        ("exists and is no certificate", "mine.py", []),
        ("is a folder", ".", []),
    ],
)
def test_a_certificate_replaces_nothing_else(
    words: str, name: str, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(WRONG, encoding="utf-8")
    assert main(["fastpaths", "verify", "--output", name, *flags]) == 2
    assert words in capsys.readouterr().err
    assert WRONG == Path("mine.py").read_text(encoding="utf-8")


def residual_capture(folder: Path, *dropped: int) -> Path:
    """A captured call of ``gated_residual`` without the arguments at the places ``dropped``."""
    values = (torch.ones(1, 2, 8), torch.ones(1, 2, 8), torch.ones(1, 8))
    kept = tuple(value.bfloat16() for index, value in enumerate(values) if index not in dropped)
    path = folder / "call.safetensors"
    path.write_bytes(to_bytes(captured("gated_residual", "gated_residual", kept, {}, {}, {"kind": "kernel"})))
    return path


def test_where_the_certificate_or_the_counters_go_is_asked_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastpaths_certificate, "own_path", lambda device: Path("/proc/self/certificate.json"))
    with pytest.raises(FuseproofError, match="the certificate in /proc/self cannot be written"):
        fastpaths_verify._sources_before(None, None, CPU)
    monkeypatch.chdir("/proc/self")
    with pytest.raises(FuseproofError, match=r"--ncu-report in /proc/.* cannot be written"):
        fastpaths_bench_counters.report_path(None, "gelu_tanh")


@interpreted
@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize(
    ("code", "words", "dropped"), [(0, "1/1", ()), (1, "TypeError: ", (2,)), (1, "TypeError", (0, 1))]
)
def test_a_capture_that_lacks_an_argument_is_one_sentence(
    code: int, words: str, dropped: tuple[int, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fastpaths", "verify", "--from", str(residual_capture(tmp_path, *dropped))]) == code
    printed = capsys.readouterr()
    assert words in printed.out + printed.err
    assert ("the captured arguments are none that gated_residual can be called with" in printed.err) is bool(dropped)


@interpreted
@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("kind", ["folder", "pipe", "another kernel"])
def test_what_is_no_capture_is_one_sentence(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(to_bytes(captured("a", "welford", (torch.ones(2),), {}, {}, {})))
    assert main(["fastpaths", "verify", "--from", str(path)]) == 1
    err = capsys.readouterr().err
    assert "it is a" in err or "'welford', which is no kernel here" in err
    assert 2 == len(err.splitlines())


def test_rows_are_printed_when_their_last_case_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    rows = VerifyRows(is_interpreted=False, speaks=True)
    rows.add(outcome())
    rows.add(outcome(State.UNDECIDED, values="ties"))
    assert "" == capsys.readouterr().out
    rows.add(outcome(shapes="2x2"))
    assert [" 1/2  equal", "       unde"] == [line[:11] for line in capsys.readouterr().out.splitlines()]
    rows.end()
    assert "2x2" in capsys.readouterr().out


def test_a_row_of_bench_is_printed_before_the_next_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    head = {"card": {"name": "NVIDIA H200"}, "versions": {}, "seed": 0, "replays": 5, "rounds": 5}

    def measuring() -> Any:
        yield "first", Measured(outcome(State.DIFFERS), 0, None)
        assert "first" in capsys.readouterr().out
        yield "second", Measured(outcome(State.DIFFERS), 0, None)

    assert 2 == len(_printed(measuring(), head, True))
    assert "second" in capsys.readouterr().out


def test_the_rest_is_estimated_from_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 0.0, 6.0, 12.0, 18.0, 24.0])
    monkeypatch.setattr(fastpaths_rows.time, "monotonic", lambda: next(clock))
    remarks = fastpaths_rows.Remarks("calls")
    remarks.expect(4)
    for _ in range(4):
        remarks.one_done()
    assert "fuseproof: 2 of 4 calls, about 12 s left\n" == capsys.readouterr().err


def outcome(state: State = State.EQUAL, site: str = "gelu_tanh", **changes: Any) -> Outcome:
    values = {
        "site": site,
        "operation": "gelu_tanh",
        "workload": "1024x1024",
        "values": "random",
        "shapes": "1x4608x12288",
        "state": state,
        "reason": None if state is State.EQUAL else "not bit-exact: 3% of the values differ",
        "keys": frozenset({f"('{site}', 1)"}) if state is State.EQUAL else frozenset(),
        "rejected": frozenset(),
        "milliseconds": 1.0,
    }
    return Outcome(**values | changes)


def test_a_certificate_holds_keys_sources_and_launch_options(tmp_path: Path) -> None:
    made = fastpaths_certificate.certificate_of(
        [outcome(), outcome(State.DECLINES, "other")],
        {"packed_blocks": frozenset({"(0,)"})},
        None,
        CPU,
        3,
        "longcat-image",
    )
    assert {"gelu_tanh": ("('gelu_tanh', 1)",), "packed_blocks": ("(0,)",)} == made.keys
    assert {"kernels/gelu_tanh.py", "sites/longcat_image/blocks.py"} <= set(made.sources)
    assert all(option["enable_fp_fusion"] is False for option in made.launch_options["gelu_tanh"])
    path = fastpaths_certificate.write_certificate(made, str(tmp_path / "c.json"), CPU)
    assert made == read_certificate(path)


def test_a_source_that_was_written_to_meanwhile_is_not_certified() -> None:
    before = fastpaths_certificate.sources_before(None)
    fastpaths_certificate.certificate_of([outcome()], {}, None, CPU, 3, None, before)
    changed = {**before, "kernels/gelu_tanh.py": "0" * 64}
    with pytest.raises(FuseproofError, match=r"gelu_tanh\.py was written to while it was checked"):
        fastpaths_certificate.certificate_of([outcome()], {}, None, CPU, 3, None, changed)


def test_no_certificate_vouches_for_a_site_that_is_not_exact() -> None:
    quantised = outcome(site="fp8_linear", operation="row_quantize")
    made = fastpaths_certificate.certificate_of([outcome(), quantised], {}, None, CPU, 3, None)
    assert {"gelu_tanh"} == set(made.keys)


def test_the_machines_own_certificate_grows_and_shrinks(own_cache: Path) -> None:
    first = fastpaths_certificate.certificate_of([outcome()], {}, None, CPU, 0, None)
    path = fastpaths_certificate.write_certificate(first, None, CPU)
    assert own_cache / "certificates" / "cpu.json" == path
    second = fastpaths_certificate.certificate_of([outcome(site="gated_residual")], {}, None, CPU, 0, None)
    fastpaths_certificate.write_certificate(second, None, CPU)
    assert {"gelu_tanh", "gated_residual"} == set(read_certificate(path).keys)
    fastpaths_certificate.withdraw(["gelu_tanh"], CPU)
    assert {"gated_residual"} == set(read_certificate(path).keys)


def test_sites_of_ones_own_are_certified_in_a_file_that_was_named(tmp_path: Path, own_cache: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(WRONG, encoding="utf-8")
    own = load_user_sites(file)
    made = fastpaths_certificate.certificate_of([outcome(), outcome(site="mine")], {}, own, CPU, 0, None)
    named = fastpaths_certificate.write_certificate(made, str(tmp_path / "c.json"), CPU)
    assert {"gelu_tanh", "mine"} == set(read_certificate(named).keys)
    assert reject_reason(read_certificate(named), place_here(CPU), [file]) is None
    machines = read_certificate(fastpaths_certificate.write_certificate(made, None, CPU))
    assert {"gelu_tanh"} == set(machines.keys)
    assert reject_reason(machines, place_here(CPU)) is None


def test_one_that_does_not_hold_any_more_is_replaced(own_cache: Path) -> None:
    place = place_here(CPU)
    old = Certificate(place=place, sources={"kernels/gone.py": "0" * 64}, keys={"gone": ("1",)})
    path = own_cache / "certificates" / "cpu.json"
    path.parent.mkdir(parents=True)
    path.write_text(to_json(old), encoding="utf-8")
    fastpaths_certificate.write_certificate(
        fastpaths_certificate.certificate_of([outcome()], {}, None, CPU, 0, None), None, CPU
    )
    assert {"gelu_tanh"} == set(read_certificate(path).keys)


@pytest.mark.parametrize(
    ("expected", "text"),
    [((1, 4608, 3072), "1x4608x3072"), ((2, 2, 1), "2x2x1"), ((1, 256, 4, 240, 416), "1x256x4x240x416")],
)
def test_a_shape_is_samples_rows_width_or_frames(expected: tuple[int, ...], text: str) -> None:
    assert expected == Shape().convert(text, None, None)


@pytest.mark.parametrize(
    "text",
    ["", "4608", "1x4608", "0x8x8", "1x1x8", "1x-2x8", "1x2x3x4", "2x4x1x2x2", "1x4x0x2x2", "9999x9999999x999999"],
)
def test_other_shapes_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no shape BxSxD"):
        Shape().convert(text, None, None)


def test_no_speed_up_stands_beside_other_bits() -> None:
    timing = Timing(30.0, 29.0, 31.5, 15)
    measured = [
        ("1024x1024", Measured(outcome(), 3, 1000, Timing(90.0, 88.0, 95.0, 15), timing, Timing(20.0, 19.0, 21.0, 15))),
        ("1264x848", Measured(outcome(State.DIFFERS), 0, 1000)),
    ]
    document = {"card": {"name": "NVIDIA H200"}, "versions": {"torch": "2.11.0"}, "seed": 0, "replays": 5, "rounds": 3}
    (head, _), (green, red) = head_lines(document), [line_of(*row) for row in measured]
    assert "NVIDIA H200; torch 2.11.0; seed 0; 3 rounds of 5 replays" == head
    assert "90.0 (88.0-95.0)" in green
    assert "3.00x" in green
    assert "1.50x" in green
    assert "differs: not bit-exact: 3% of the values differ; no time is given for other bits" in red
    assert "x " not in red.split("differs")[1]


@pytest.mark.gpu
def test_every_kernel_is_verified_on_a_card_and_certified(own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["fastpaths", "verify", "--site", "gelu_tanh", "--site", "layernorm_modulate", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert [] == [case for case in document["cases"] if case["state"] == "differs"]
    assert code == 0
    assert 1 == len(list((own_cache / "certificates").glob("*.json")))


@pytest.mark.gpu
def test_bench_on_a_card(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fastpaths", "bench", "--site", "layernorm_modulate", "--shape", "1x512x3072", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert all(
        call["bits"] == "equal" and call["speedup"] > 1 and call["times_floor"] > 0 for call in document["calls"]
    )
    assert document["card"]["capability"]


@pytest.mark.parametrize(("expected", "model"), [(4, "longlive2"), (2, "wan2.2-ti2v-5b"), (2, "longcat-image")])
def test_a_checked_request_has_steps_that_its_model_takes(expected: int, model: str, tmp_path: Path) -> None:
    (request,) = fastpaths_requests._job(model, None, tmp_path).requests
    assert expected == request.num_inference_steps
