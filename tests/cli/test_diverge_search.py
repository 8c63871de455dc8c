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

    def ask(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        letters = self.runs[min(self.starts, len(self.runs)) - 1]
        facts = {"seconds": 1.0, "peak_mib": 100.0}
        if job["pass"] == "latents":
            self.asked.append("latents")
            for number, letter in enumerate(letters):
                torch.save(torch.tensor([float(ord(letter)), 0.0]), latents_file(Path(job["folder"]), number))
            return facts | {"boundaries": _ends(letters), "result_sha256": self.result, "sites": self.sites}
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
            "calls": [call(f"{ord(digest):x}", region, **self.calls)],
            "disagreements": [
                {"site": "own", "label": LABEL, "forward": 1, "key": "k", "mismatch": "m", "difference": None}
            ],
            "facts": {LABEL: {"weights": {}, "settings": {}}},
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
    assert "step 3 of 3: the first difference" == next(iter(lines_of(result)))
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
    assert "the baseline does not repeat its own bits" in next(iter(lines_of(result)))


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
