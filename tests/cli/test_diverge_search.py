"""Which passes ``fuseproof diverge`` asks of which arm, with arms that only pretend."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from fuseproof.cli.diverge_processes import ArmProcess
from fuseproof.cli.diverge_search import Place, Search
from fuseproof.cli.diverge_text import as_json, lines_of
from fuseproof.errors import FuseproofError
from fuseproof.pipelines.divergence.passes import latents_file

LABEL = "transformer.blocks.0"


def fact(name: str, digest: str) -> dict[str, Any]:
    return {"name": name, "shape": [1, 2], "dtype": "float32", "ordered": digest, "unordered": digest}


def call(digest: str, region: str, **more: Any) -> dict[str, Any]:
    facts = {"label": LABEL, "kind": "module", "type": "Linear", "region": region, "forward": 1, "number": 1}
    place = {"entered": 1, "left": 2, "parent": None, "gates": []}
    return {**facts, **place, "inputs": [fact("input", "1")], "outputs": [fact("output", digest)], **more}


@dataclass
class Pretending:
    """An arm whose latents are one letter a boundary; each start takes the next of its ``runs``, the last one again."""

    runs: list[str]
    result: str = "r"
    asked: list[str] = field(default_factory=list)
    starts: int = 0
    sites: Mapping[str, Any] = field(default_factory=dict)
    calls: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    inside: Sequence[Mapping[str, Any]] = ()

    def ask(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        letters = self.runs[min(self.starts, len(self.runs)) - 1]
        facts = {"seconds": 1.0, "peak_mib": 100.0}
        if job["pass"] == "latents":
            self.asked.append("latents")
            for number, letter in enumerate(letters):
                torch.save(torch.tensor([float(ord(letter)), 0.0]), latents_file(Path(job["folder"]), number))
            return (
                facts
                | {"boundaries": _ends(letters), "result_sha256": self.result}
                | {
                    "sites": self.sites,
                    "config": self.config,
                }
            )
        last = job["last"]
        self.asked.append(f"{'tensors' if 'wanted' in job else 'calls'} {job['first']}..{last}")
        region = "after the loop" if last == len(letters) else f"step {last}"
        if "wanted" in job:
            key = tuple(job["wanted"][0])
            value = torch.tensor([1.0, float(ord(letters[min(last, len(letters) - 1)]))])
            torch.save({key: {"inputs": [("input", torch.ones(2))], "outputs": [("output", value)]}}, job["file"])
        digest = letters[last] if last < len(letters) else self.result
        return facts | {
            "boundaries": _ends(letters[: last + 1]),
            "calls": [call(f"{ord(digest):x}", region, **self.calls), *self.inside],
            "disagreements": [
                {"site": "own", "label": LABEL, "forward": 1, "key": "k", "mismatch": "m", "difference": None}
            ],
            "facts": {LABEL: {"weights": {}, "settings": self.settings}},
        }


def _ends(letters: str) -> list[dict[str, Any]]:
    return [{"digest": letter, "shape": [2], "dtype": "float32"} for letter in letters]


def searched(tmp_path: Path, baseline: Pretending, candidate: Pretending, graphs: Sequence[str] = ()) -> Search:
    arms, started = {"baseline": baseline, "candidate": candidate}, []

    @contextmanager
    def start(role: str, more: Sequence[str]) -> Iterator[Pretending]:
        started.append(" ".join((role, *more)))
        arms[role].starts += 1
        yield arms[role]

    search = Search(start, tmp_path, frozenset(graphs))
    search.run()
    search.started = started  # type: ignore[attr-defined]
    return search


def test_nothing_more_is_run_where_nothing_differs(tmp_path: Path) -> None:
    search = searched(tmp_path, arm := Pretending(["aaa"]), Pretending(["aaa"]))
    assert ("same", ["latents"], 2.0) == (search.result.kind, arm.asked, search.result.requests_worth)


def test_a_late_step_is_looked_at_alone(tmp_path: Path) -> None:
    one, other = Pretending(["aaaa"]), Pretending(["aaab"])
    result = searched(tmp_path, one, other).result
    assert ["latents", "calls 2..3", "tensors 2..3"] == one.asked == other.asked
    assert ("difference", 3, LABEL) == (result.kind, result.place.step, result.finding.cause.label)
    assert [True, True, True, False] == [step.differing_share == 0 for step in result.growth]
    assert "step 3 of 3: the first difference" == list(lines_of(result))[1]
    assert 4 == as_json(result, 4)["exit_code"]


@pytest.mark.parametrize(
    ("expected", "boundary", "name"),
    [((-1, 0), 0, "before the loop"), ((-1, 1), 1, "step 1"), ((1, 2), 2, "step 2"), ((4, 5), 5, "after the loop")],
)
def test_places(expected: tuple[int, int], boundary: int, name: str) -> None:
    place = Place.before(boundary, 4)
    assert (*expected, name) == (place.first, place.last, place.name)


def test_a_decoded_result_that_differs_alone_lies_after_the_loop(tmp_path: Path) -> None:
    one, other = Pretending(["aaa"]), Pretending(["aaa"], result="s")
    result = searched(tmp_path, one, other).result
    assert ("after the loop", None) == (result.place.name, result.place.step)
    assert "calls 2..3" in one.asked


def test_an_arm_is_held_against_itself_where_its_replay_has_other_bits(tmp_path: Path) -> None:
    other = Pretending(["abb", "acc", "add"])
    one = Pretending(["aaa", "aee", "aff"])
    result = searched(tmp_path, one, other).result
    assert ("nondeterministic", "baseline") == (result.kind, result.arm)
    assert "the baseline does not repeat its own bits" in list(lines_of(result))[1]


def test_graphs_are_left_out_of_the_later_passes_and_may_be_the_answer(tmp_path: Path) -> None:
    search = searched(tmp_path, Pretending(["aaa"]), Pretending(["abb", "aaa"]), ["candidate"])
    assert ["baseline", "candidate", "candidate --enable-breakable-cuda-graph=false", "baseline"] == search.started
    assert ("graphs", "candidate") == (search.result.kind, search.result.arm)
    assert any("CUDA graphs give other bits than its own eager run" in line for line in lines_of(search.result))
    found = searched(tmp_path / "again", Pretending(["aaa"]), Pretending(["abb"]), ["candidate"])
    assert ("difference", LABEL) == (found.result.kind, found.result.finding.cause.label)


def test_a_rewritten_block_is_asked_for_its_kernels(tmp_path: Path) -> None:
    sites = {"own": {"calls_fused": 3}}
    search = searched(tmp_path, Pretending(["aa"]), Pretending(["ab"], sites=sites, calls={"kind": "site"}))
    assert "candidate --gate observe" == search.started[-1]
    assert "own" == search.result.observed["candidate"]["site"]
    plain = searched(tmp_path / "again", Pretending(["aa"]), Pretending(["ab"], sites=sites))
    assert "observe" not in plain.started[-1]


def test_a_site_in_a_module_of_a_block_that_the_other_arm_rewrote_is_named(tmp_path: Path) -> None:
    """The baseline's block calls none of its modules; the candidate's does, and a site of one's own sits on one."""
    gate = {"site": "nanny", "mode": "off", "ran": "fused", "state": "unchecked", "key": None, "reason": None}
    inner = call("2", "step 1", label=f"{LABEL}.norm1", entered=2, left=3, parent=1, gates=[gate])
    one = Pretending(["aa"], calls={"kind": "site", "left": 4})
    other = Pretending(["ab"], sites={"nanny": {"calls_fused": 3}}, calls={"left": 4}, inside=[inner])
    search = searched(tmp_path, one, other)
    assert {"baseline": [], "candidate": ["nanny"]} == as_json(search.result, 4)["suspects"]
    assert "  ran fused inside it in the candidate, with no like in the other arm: nanny" in lines_of(search.result)
    assert "candidate --gate observe" == search.started[-1]
    again = Pretending(["aa"], sites={"nanny": {"calls_fused": 3}}, calls={"left": 4}, inside=[inner])
    other.starts = 0
    plain = searched(tmp_path / "again", again, other)
    assert ((), ()) == plain.result.finding.suspects, "both arms made that call, with equal outputs"


def test_other_seeds_end_the_search_behind_pass_1(tmp_path: Path) -> None:
    one, other = Pretending(["aaa"], config={"seed": 42, "width": 64}), Pretending(["bbb"], config={"seed": 43})
    result = searched(tmp_path, one, other).result
    assert (["latents"], ["latents"]) == (one.asked, other.asked)
    lines = list(lines_of(result))
    assert [
        "arms (baseline against candidate): --seed 42 against 43",
        "before the loop: the first difference",
    ] == lines[:2]
    assert "first latents: drawn by other flags (--seed 42 against 43)" in lines[2]
    found = as_json(result, 4)
    assert ("difference", "noise", {"--seed": ["42", "43"]}) == (found["result"], found["cause"], found["flags"])


def test_other_seeds_are_no_reason_to_stop_where_the_first_latents_agree(tmp_path: Path) -> None:
    one, other = Pretending(["aaa"], config={"seed": 42}), Pretending(["abb"], config={"seed": 43})
    assert LABEL == searched(tmp_path, one, other).result.finding.cause.label
    assert ["latents", "calls -1..1", "tensors 0..1"] == other.asked


def test_a_setting_below_the_call_is_named_as_the_likely_cause(tmp_path: Path) -> None:
    name = "attn.processor._attention_backend"
    one, other = (Pretending([ends], settings={name: to}) for ends, to in (("aa", "native"), ("ab", "_native_math")))
    lines = list(lines_of(searched(tmp_path, one, other).result))
    assert "arms: no flag differs" == lines[0]
    assert f"  setting {name}: native against _native_math, the likely cause" in lines


def test_progress_says_what_each_loading_and_each_pass_took(tmp_path: Path) -> None:
    said: list[str] = []

    @contextmanager
    def start(role: str, more: Sequence[str]) -> Iterator[Pretending]:
        arm = Pretending(["aaa"])
        arm.starts = 1
        yield arm

    result = Search(start, tmp_path, say=said.append).run()
    assert ["baseline: loading and warming up", "baseline: that took 0.0 s"] == said[:2]
    assert "baseline: that took 1.0 s" == said[3]
    *_, cost = lines_of(result)
    assert cost.startswith("2 runs of the request, whole or in part, took 2.0 s, 2.0 times a whole one (pass 1 is two")


def test_steps_that_are_left_out_are_said_to_be(tmp_path: Path) -> None:
    lines = list(lines_of(searched(tmp_path, Pretending(["a" * 9]), Pretending(["a" + "b" * 8])).result))
    (latents,) = (line for line in lines if line.startswith("latents"))
    assert "6 of the 8 steps that differ, evenly spaced, --json has every one" in latents


@pytest.fixture(autouse=True)
def folders(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()


def process(program: str, tmp_path: Path) -> ArmProcess:
    command = [sys.executable, "-c", program]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    log = tmp_path / "log"
    with log.open("w") as stderr:
        return ArmProcess("candidate", subprocess.Popen(command, stderr=stderr, **pipes), log)


def test_an_arm_that_dies_is_told_with_its_last_words(tmp_path: Path) -> None:
    arm = process("import sys; sys.exit('out of luck')", tmp_path)
    with pytest.raises(FuseproofError, match=r"The candidate ended with status 1 before it answered: out of luck\."):
        arm.ask({"pass": "latents"})
    arm.end()


def test_an_arms_own_error_keeps_its_exit_code(tmp_path: Path) -> None:
    answer = '{"error": "no such model.", "next_step": "Look.", "exit_code": 2}'
    arm = process(f"print('{answer}')", tmp_path)
    with pytest.raises(FuseproofError, match=r"The candidate: no such model\.") as caught:
        arm.read()
    assert (2, "Look.") == (caught.value.exit_code, caught.value.next_step)
    arm.kill()
    assert arm.process.returncode is not None
