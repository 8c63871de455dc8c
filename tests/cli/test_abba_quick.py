"""``fuseproof abba --quick`` through the command line, with a model that is a stand-in and times that are told."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fuseproof.cli.main import main
from fuseproof.errors import FuseproofError
from tests.cli.desk import SMALL, Desk
from tests.cli.fake_loaded import FakeLoaded, install

REQUEST = f"--prompt panda {' '.join(SMALL)}"
ARMS = ("--baseline=--fastpaths=off", "--candidate=--fastpaths=auto", f"--flags={REQUEST}")
A, B = "off", "auto"
SLOT = ["give back", "open {}", "warm up", "settle", "run", "close"]


@dataclass
class QuickDesk:
    """The program on a model that is loaded once."""

    desk: Desk
    loaded: FakeLoaded
    temporary: Path
    out: str = ""
    err: str = ""

    def run(self, *arguments: str) -> int:
        code = main(["abba", "--quick", "--allow-busy", *arguments])
        captured = self.desk.capsys.readouterr()
        self.out, self.err = captured.out, captured.err
        return code

    def json(self, *arguments: str) -> dict[str, Any]:
        self.run(*arguments, "--json")
        values: dict[str, Any] = json.loads(self.out, parse_constant=pytest.fail)
        return values


@pytest.fixture
def quick(desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> QuickDesk:
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return QuickDesk(desk, install(monkeypatch), temporary)


def test_one_load_and_a_fresh_session_for_every_slot(quick: QuickDesk) -> None:
    assert 0 == quick.run(*ARMS), quick.err
    order = [B, A, A, B, B, A, B, A, A, B]  # discarded warm-ups, A-B-B-A, mirrored
    expected = [step.format(arm) for arm in order for step in SLOT]
    assert [*expected, "give back"] == quick.loaded.events
    assert 1 == len(quick.loaded.loads)


def test_what_it_prints_and_what_it_never_says(quick: QuickDesk) -> None:
    quick.loaded.worker_ms = {A: [999, 1000, 1001, 1000, 1001], B: [900, 901, 899, 900, 901]}
    assert 0 == quick.run(*ARMS)
    head, numbers = quick.out.splitlines()[:2], quick.out
    assert head[0].startswith("EXPLORATORY, no verdict:")
    assert "1 model load (0.8 s)" in head[1]
    assert re.search(
        r"Worker E2E: reduction 10\.0\d %, 95 % interval \[9\.\d\d, 10\.\d\d\] %, spread F 0\.\d\d %", numbers
    )
    assert "Outputs: identical (8 of 8 equal in raw arrays)" in numbers
    assert "Arms differ only in: --fastpaths (off against auto)." in numbers
    kept_out = "candidate 1250 ms in 5 warm-ups (first sights 150 ms, of which JIT 100 ms)"
    assert f"Kept out of the times: baseline 1250 ms in 5 warm-ups; {kept_out}." in numbers
    assert "no evidence" in " ".join(numbers.split())
    assert "next: fuseproof abba --allow-busy --baseline=--fastpaths=off" in quick.out and "--quick" not in quick.out
    assert [] == re.findall(r"faster|slower|INCONCLUSIVE|SAME", quick.out + quick.err, re.IGNORECASE)


def test_without_arms_it_is_headed_by_those_of_the_plan(quick: QuickDesk) -> None:
    assert 0 == quick.run(f"--flags={REQUEST}", "--blocks=1")
    assert "EXPLORATORY, no verdict: fast paths off against fast paths auto" == quick.out.splitlines()[0]


def test_a_dry_run_shows_what_would_run_and_loads_nothing(quick: QuickDesk) -> None:
    assert 0 == quick.run(*ARMS, "--dry-run", "--candidate-name=fused")
    lines = quick.out.splitlines()
    assert "EXPLORATORY, no verdict: baseline against fused" == lines[0]
    assert {"cell request (outputs: exact), 10 slots:", "  candidate (fused):", "    --fastpaths=auto"} <= {*lines}
    assert "  order: B A discarded, then ABBA BAAB" in lines
    values = quick.json(*ARMS, "--dry-run", "--blocks=1")
    assert ("fuseproof.quick-dry-run/1", 1, ["--fastpaths (off against auto)"]) == tuple(
        values[key] for key in ("schema", "loads", "treatment")
    )
    assert ["B", "A", "A", "B", "B", "A"] == [slot["arm"] for slot in values["cells"][0]["slots"]]
    assert ([], []) == (quick.loaded.events, quick.desk.files())
    assert 2 == quick.run("--baseline=", "--candidate=--dtype bfloat16", f"--flags={REQUEST}", "--dry-run")


def test_it_leaves_nothing_that_could_pass_for_a_campaign(quick: QuickDesk) -> None:
    assert 0 == quick.run(*ARMS, "--blocks=1")
    assert [] == quick.desk.files()
    assert [] == [path.name for path in quick.temporary.iterdir() if not path.name.startswith("fuseproof-locks-")]


def test_the_restart_with_a_fixed_hash_seed_leaves_no_folder(quick: QuickDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[str]] = []

    def replaced(program: str, words: list[str]) -> None:
        found.append([path.name for path in quick.temporary.iterdir()])
        raise SystemExit(0)

    arguments = ["abba", "--quick", *ARMS]
    monkeypatch.delenv("PYTHONHASHSEED")
    monkeypatch.setenv("FUSEPROOF_HASH_SEED_FIXED", "")
    monkeypatch.setattr("sys.argv", ["fuseproof", *arguments])
    monkeypatch.setattr("os.execv", replaced)
    main(arguments)
    assert [[]] == found


def test_json_is_strict_and_calls_itself_no_evidence(quick: QuickDesk) -> None:
    quick.loaded.worker_ms = {A: [1000.0], B: [900.0]}
    values = quick.json(*ARMS, "--blocks=1")
    assert ("fuseproof.quick/1", False, "complete", 0) == tuple(
        values[key] for key in ("schema", "is_evidence", "status", "exit_code")
    )
    (cell,) = values["cells"]
    assert ["A1", "B1", "B2", "A2"] == [run["label"] for run in cell["runs"]]
    assert pytest.approx(0.1) == cell["metrics"][0]["comparison"]["reduction"]
    assert "identical" == cell["outputs"]["status"]
    assert [] == re.findall(r'"word"|FASTER|SLOWER', quick.out)
    assert quick.loaded.load_ms == values["loads_ms"][0]


def test_device_memory_is_told_by_arm_and_host_memory_is_not(quick: QuickDesk) -> None:
    quick.run(*ARMS, "--blocks=1")
    assert "Memory: not known; arms that share a process share its host memory." in quick.out
    quick.loaded.peaks_mb = {A: 2048.0, B: 1024.0}
    quick.run(*ARMS, "--blocks=1")
    assert "1.00 GiB less" in quick.out and "host" not in quick.out.split("Memory:")[1].splitlines()[0]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        pytest.param(["--candidate=--dtype bfloat16"], "--dtype", id="dtype"),
        pytest.param(["--candidate=--model-path embedded:longcat-image-edit"], "--model-path", id="model"),
        pytest.param(["--candidate=--device cuda:1"], "--device", id="device"),
        pytest.param(["--candidate=--backend diffusers"], "--backend", id="backend"),
        pytest.param(["--candidate=--attention-backend flash"], "--attention-backend", id="attention"),
        pytest.param(["--candidate=--warmup-steps 2"], "--warmup-steps", id="warm-up"),
        pytest.param(["--candidate-ref=HEAD"], "ref of its own (HEAD)", id="ref"),
        pytest.param(["--baseline=", "--candidate-command=python3 {perf_dump}"], "command of its own", id="command"),
    ],
)
def test_what_one_process_cannot_switch_is_refused_with_what_it_can(
    quick: QuickDesk, arguments: list[str], named: str
) -> None:
    assert 2 == quick.run(f"--flags={REQUEST}", *arguments)
    assert named in quick.err and "--fastpaths, --fastpaths-from, --certificate, --gate, --quality" in quick.err
    assert ([], "") == (quick.loaded.events, quick.out)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        pytest.param(["--output=c"], "--output has no effect with --quick", id="output"),
        pytest.param(["--resume=c"], "--resume has no effect", id="resume"),
        pytest.param(["--require=faster"], "--require has no effect", id="require"),
        pytest.param(["--qualify=worker>=1%"], "--qualify has no effect", id="qualify"),
        pytest.param(["--retries=2"], "--retries has no effect", id="retries"),
        pytest.param(["--timeout=9"], "--timeout has no effect", id="timeout"),
        pytest.param(["--gpus=0"], "--gpus has no effect", id="gpus"),
        pytest.param(["--model-cache-root=x"], "--model-cache-root has no effect", id="model-cache"),
        pytest.param(["--candidate=--enable-torch-compile"], "--enable-torch-compile cannot be had", id="compile"),
        pytest.param(["--candidate=--sed=1"], "generate would refuse", id="unknown-flag"),
        pytest.param(["--candidate=--width=100", "--dry-run"], "generate would refuse these flags: Long", id="size"),
        pytest.param(
            ["--candidate=--fastpaths=rms"], "generate would refuse these flags: --fastpaths names", id="site"
        ),
        pytest.param(["--candidate=--fastpaths=off"], "same command", id="same-arms"),
    ],
)
def test_usage_errors_load_nothing(quick: QuickDesk, arguments: list[str], named: str) -> None:
    candidate = [] if any(word.startswith("--candidate") for word in arguments) else ["--candidate=--fastpaths=auto"]
    assert 2 == quick.run("--baseline=--fastpaths=off", *candidate, f"--flags={REQUEST}", *arguments)
    assert named in quick.err and "Traceback" not in quick.err
    assert ([], "") == (quick.loaded.events, quick.out)


def test_unequal_requests_are_said_before_anything_is_loaded(quick: QuickDesk) -> None:
    assert 6 == quick.run(f"--flags={REQUEST}", "--candidate=--num-inference-steps 4")
    assert "unequal work: the arms' requests differ in num_inference_steps (2 against 4)" in quick.err
    assert [] == quick.loaded.events


def test_unequal_work_has_no_ratio(quick: QuickDesk) -> None:
    quick.loaded.tokens = {B: 50}
    assert 6 == quick.run(*ARMS, "--blocks=1")
    assert "INVALID, no ratio: UNEQUAL_WORK" in quick.out and "reduction" not in quick.out
    assert "transformer tokens" in quick.err
    assert [] == quick.json(*ARMS, "--blocks=1")["cells"][0]["metrics"]


def test_other_pictures_break_the_contract(quick: QuickDesk) -> None:
    quick.loaded.grey = {B: 0.25}
    assert 4 == quick.run(*ARMS, "--blocks=1")
    assert "contract exact is not met" in quick.out and "SSIM" in quick.out
    assert 0 == quick.run(*ARMS, "--blocks=1", "--contract=close:psnr>=5")
    assert "contract close:psnr>=5 holds" in quick.out


def test_a_candidate_that_fails_is_named_and_what_is_known_is_printed(quick: QuickDesk) -> None:
    quick.loaded.raises = {2 + 4 + 1: FuseproofError("out of memory on cuda:0", next_step="Use a smaller size.")}
    assert 1 == quick.run(*ARMS)
    assert "error: Cell request, slot B1 (candidate): out of memory on cuda:0" in quick.err
    assert "request: 1 of 2 blocks (ABBA)" in quick.out and "Worker E2E: reduction" in quick.out
    assert ["run", "close", "give back"] == quick.loaded.events[-3:]
    quick.loaded.requests = 0
    values = quick.json(*ARMS)
    assert ("failed", 1) == (values["status"], values["exit_code"]) and "out of memory" in values["failure"]


def test_ctrl_c_prints_the_whole_blocks(quick: QuickDesk) -> None:
    quick.loaded.raises = {2 + 4 + 3: KeyboardInterrupt()}
    assert 130 == quick.run(*ARMS)
    assert "request: 1 of 2 blocks (ABBA)" in quick.out and "the run was interrupted" in quick.out
    assert ["run", "close", "give back"] == quick.loaded.events[-3:]
    quick.loaded.requests, quick.loaded.raises = 0, {1: KeyboardInterrupt()}
    assert 130 == quick.run(*ARMS)
    assert "no whole block ran, so there is no number" in quick.out


def test_first_sights_never_enter_a_time(quick: QuickDesk) -> None:
    """Flags that ask for no warm-up get one all the same."""
    assert 0 == quick.run(*ARMS, "--blocks=1")
    assert 6 == quick.loaded.events.count("warm up")


def test_graphs_may_differ_and_must_then_be_there(quick: QuickDesk) -> None:
    graphs = ("--baseline=", "--candidate=--enable-breakable-cuda-graph", f"--flags={REQUEST} --fastpaths=auto")
    assert 6 == quick.run(*graphs, "--blocks=1")
    assert "MISSING_GRAPH" in quick.err and "asked for CUDA graphs: captured none" in quick.err
    assert "differ in" not in quick.err and "UNEQUAL_WORK" not in quick.err


def test_aa_shows_the_noise_of_one_process(quick: QuickDesk) -> None:
    assert 0 == quick.run("--aa", f"--flags={REQUEST}", "--blocks=1")
    assert "Arms differ only in: nothing (A/A)." in quick.out


def test_required_fastpaths_are_looked_for_in_every_slot(quick: QuickDesk) -> None:
    assert 0 == quick.run(*ARMS, "--blocks=1", "--require-fastpaths")
    swapped = ("--baseline=--fastpaths=auto", "--candidate=--fastpaths=off", f"--flags={REQUEST}")
    assert 6 == quick.run(*swapped, "--blocks=1", "--require-fastpaths")
    assert "--require-fastpaths: the candidate's fast paths did not run" in quick.err


LEAK = """
import torch
from fuseproof.fastpaths import UserSite

original = torch.nn.Linear.forward


def slower(self, x):
    return original(self, x)


{change}
SITES = [UserSite("my_norm", fused=lambda module, x: x, modules="transformer_blocks.*.norm2")]
"""
OWN = ("--baseline=--fastpaths=auto", f"--flags={REQUEST}", "--candidate=--fastpaths=auto --fastpaths-from mine.py")
CHANGE = "torch.nn.Linear.forward = slower"


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> Any:
    """torch's Linear, put back after the test; the libraries that a real model needs are not loaded for it."""
    import torch

    from fuseproof.cli import abba_quick_leaks

    monkeypatch.setattr(torch.nn.Linear, "forward", torch.nn.Linear.forward)
    monkeypatch.setattr(abba_quick_leaks, "load_code", lambda family: None)
    return torch.nn.Linear


def test_a_file_of_sites_that_changes_torch_for_both_arms_is_refused_before_loading(
    quick: QuickDesk, untouched: Any
) -> None:
    (quick.desk.folder / "mine.py").write_text(LEAK.format(change=CHANGE), encoding="utf-8")
    assert 6 == quick.run(*OWN)
    assert "torch.nn.modules.linear.Linear.forward was changed for the whole process" in quick.err
    assert "--fastpaths-from mine.py: both arms would have the change" in quick.err
    assert "Leave out --quick" in quick.err
    assert [] == quick.loaded.loads and "holds" not in quick.out


def test_a_file_of_sites_that_changes_torch_later_ends_the_run(quick: QuickDesk, untouched: Any) -> None:
    (quick.desk.folder / "mine.py").write_text(LEAK.format(change=""), encoding="utf-8")

    def change(number: int, arm: str) -> None:
        if number == 5:  # block 1 B2, after both warm-ups
            untouched.forward = lambda self, x: x

    quick.loaded.on_request = change
    assert 6 == quick.run(*OWN)
    assert "slot B2 (candidate): torch.nn.modules.linear.Linear.forward was changed" in quick.err
    assert "0 of 2 blocks" in quick.out and "holds" not in quick.out and "reduction" not in quick.out


def test_a_file_of_sites_that_keeps_to_itself_is_compared(quick: QuickDesk, untouched: Any) -> None:
    (quick.desk.folder / "mine.py").write_text(LEAK.format(change=""), encoding="utf-8")
    assert 0 == quick.run(*OWN, "--blocks=1"), quick.err
    assert "contract exact holds" in quick.out


def test_a_baseline_that_asked_for_fast_paths_and_ran_none_is_said(quick: QuickDesk) -> None:
    quick.loaded.idle = {"auto"}
    quick.run("--baseline=--fastpaths=auto", "--candidate=--fastpaths=modulation", f"--flags={REQUEST}")
    assert "Fused calls: 0 in the baseline" in quick.out
    assert "warning: BASELINE_NOT_FUSED: the baseline asked for fast paths (auto) and made no fused call" in quick.out


@pytest.mark.parametrize(
    ("arguments", "blocks"),
    [
        pytest.param(["--blocks=1"], "", id="one"),
        pytest.param(["--blocks", "1"], "", id="one-as-two-words"),
        pytest.param(["--blocks=3"], "--blocks=3", id="enough"),
        pytest.param(["--blocks=3", "--blocks=1"], "", id="said-twice"),
    ],
)
def test_the_next_command_can_give_a_word(quick: QuickDesk, arguments: list[str], blocks: str) -> None:
    quick.run(*ARMS, *arguments)
    (line,) = [line for line in quick.out.splitlines() if line.startswith("  next: ")]
    assert blocks == " ".join(re.findall(r"--blocks\S*", line))
    assert "quick" not in line


def test_a_plan_of_one_block_is_given_a_second_one(quick: QuickDesk) -> None:
    plan = (
        'name = "one"\nblocks = 1\n'
        '[arms.baseline]\nname = "off"\nflags = "--fastpaths=off"\n'
        '[arms.candidate]\nname = "on"\nflags = "--fastpaths=auto"\n'
        f'[[cells]]\nname = "panda"\nflags = "{REQUEST}"\n'
    )
    (quick.desk.folder / "plan.toml").write_text(plan, encoding="utf-8")
    assert 0 == quick.run("plan.toml"), quick.err
    assert "next: fuseproof abba --allow-busy plan.toml --blocks=2  (" in quick.out


def test_cells_of_one_model_share_its_load(quick: QuickDesk) -> None:
    Path("p.toml").write_text(
        f"""
name = "two"
blocks = 1
[arms.baseline]
name = "off"
flags = "--fastpaths=off"
[arms.candidate]
name = "auto"
flags = "--fastpaths=auto"
[[cells]]
name = "one"
flags = "{REQUEST}"
[[cells]]
name = "two"
flags = "{REQUEST} --seed 3"
[[cells]]
name = "half"
flags = "{REQUEST} --dtype bfloat16"
"""
    )
    assert 0 == quick.run("p.toml"), quick.err
    assert 2 == len(quick.loaded.loads)
    assert ["one", "two", "half"] == re.findall(r"^(\w+): 1 of 1 block", quick.out, re.MULTILINE)
    assert "2 model loads (0.8 s + 0.8 s)" in quick.out


def test_a_third_arm_is_refused(quick: QuickDesk) -> None:
    assert 2 == quick.run(*ARMS, "--candidate=--gate=off")
    assert "--quick compares two arms, and this plan has 3" in quick.err
    assert [] == quick.loaded.events


def test_a_busy_machine_is_a_remark(quick: QuickDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    from fuseproof.errors import InvalidMeasurementError
    from fuseproof.harness.campaign.readiness import Readiness

    def busy(_: Readiness) -> None:
        raise InvalidMeasurementError("Other processes use 1.9 of 2 cores.")

    monkeypatch.setattr(Readiness, "refuse_busy_machine", busy)
    assert 0 == main(["abba", "--quick", "--blocks=1", *ARMS])
    assert "this machine is not quiet, and the times show it: Other processes" in quick.desk.capsys.readouterr().err
