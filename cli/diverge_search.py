"""The search of ``fuseproof diverge``: which passes are asked of which arm, and what their answers amount to.

Every arm runs in a process of its own, one after the other, so that no two models share a device. The order:

1. baseline: pass ``latents``; candidate: pass ``latents``, then ``calls`` of the first step that differs;
2. baseline again, in a fresh process: ``calls`` of that step, then the tensors of the call that was found;
3. candidate again, in a fresh process: the same tensors; and, where a fast path has to be told from its neighbours,
   once more under ``--gate observe``.

Each ``calls`` pass repeats its arm from the request's beginning, so an arm that does not repeat its own bits shows by
itself; it is then held against itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fuseproof.cli.diverge_flags import Config, Setting, differences, noise_differences, other_steps
from fuseproof.errors import UsageError
from fuseproof.pipelines.divergence.calls import AFTER_LOOP, BEFORE_LOOP, Call
from fuseproof.pipelines.divergence.comparing import Finding, Pair, compare_calls, first_difference

if TYPE_CHECKING:
    from fuseproof.pipelines.divergence.tensor_differences import Growth, TensorDifference

BASELINE, CANDIDATE = "baseline", "candidate"
ROLES = (BASELINE, CANDIDATE)
MOST_REPEATS = 4
"""How often an arm that does not repeat itself is asked for a step again, until two runs of it differ there."""
OBSERVING = ("--gate", "observe")
EAGER = ("--enable-breakable-cuda-graph=false",)

Answer = Mapping[str, Any]


class Arm(Protocol):
    """One loaded arm."""

    def ask(self, job: Mapping[str, Any]) -> Answer:
        """Carry out one pass; raises :class:`FuseproofError` for what the arm says went wrong."""


Start = Callable[[str, Sequence[str]], AbstractContextManager[Arm]]
"""Starts the arm of a role with more flags of ``generate`` behind its own."""


@dataclass(frozen=True)
class Place:
    """The part of a request between two boundaries: ``first`` -1 is its beginning, ``last`` steps + 1 its end."""

    first: int
    last: int
    steps: int

    @classmethod
    def before(cls, boundary: int, steps: int) -> Place:
        """What leads to ``boundary``; the first step is looked at together with what is before it."""
        return cls(-1 if boundary <= 1 else boundary - 1, boundary, steps)

    @property
    def name(self) -> str:
        if self.last == 0:
            return BEFORE_LOOP
        return AFTER_LOOP if self.last > self.steps else f"step {self.last}"

    @property
    def step(self) -> int | None:
        return self.last if 0 < self.last <= self.steps else None

    def job(self) -> dict[str, Any]:
        return {"pass": "calls", "first": self.first, "last": self.last, "steps": self.steps}


@dataclass
class Result:
    """What was found. ``kind``: ``same``, ``difference``, ``nondeterministic`` (``arm`` does not repeat itself) or
    ``graphs`` (``arm``'s CUDA graphs give other bits than its own eager run).

    ``flags`` are the effective flags that differ, ``commits`` the code of each arm where it is not the same,
    ``noise`` the flags that make the first latents differ, where they do: nothing behind them was looked at then.
    ``loading_s`` is what loading and warming up took, of all processes.
    """

    kind: str = "same"
    arm: str | None = None
    place: Place | None = None
    steps: int = 0
    finding: Finding | None = None
    tensors: dict[str, list[TensorDifference]] = field(default_factory=dict)
    facts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    observed: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    growth: list[Growth] = field(default_factory=list)
    arms: dict[str, Answer] = field(default_factory=dict)
    passes: list[dict[str, Any]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    flags: list[Setting] = field(default_factory=list)
    commits: dict[str, str] = field(default_factory=dict)
    noise: list[Setting] = field(default_factory=list)
    loading_s: float = 0.0

    @property
    def has_difference(self) -> bool:
        return self.kind != "same"

    @property
    def requests_worth(self) -> float | None:
        """How many whole requests the passes took the time of, loading and warming up left out."""
        whole: list[float] = [one["seconds"] for one in self.passes if one["pass"] == "latents"]
        if not whole or not sum(whole):
            return None
        return self.passes_s / (sum(whole) / len(whole))

    @property
    def passes_s(self) -> float:
        """What all passes took."""
        return float(sum(one["seconds"] for one in self.passes))


@dataclass
class Search:
    """One search. ``graphs`` are the roles whose arm replays CUDA graphs; ``say`` shows progress.

    ``configs`` are the effective flags of the roles of which they are known beforehand.
    """

    start: Start
    folder: Path
    graphs: frozenset[str] = frozenset()
    say: Callable[[str], None] = lambda _: None
    configs: Mapping[str, Config] = field(default_factory=dict)
    result: Result = field(default_factory=Result)

    def run(self) -> Result:
        """Find the first difference, or that there is none."""
        result, found = self.result, {}
        with self._started(BASELINE, ()) as arm:
            found[BASELINE] = self._latents(arm, BASELINE)
        with self._started(CANDIDATE, ()) as arm:
            found[CANDIDATE] = self._latents(arm, CANDIDATE)
            result.arms = found
            result.place = place = self._place(found)
            noise = self._compare_configs(found)
            if place is None:
                return result
            result.kind = "difference"
            if place.last == 0 and noise:
                result.noise = noise
                self._grow()
                return result
            calls = {} if CANDIDATE in self.graphs else {CANDIDATE: self._calls(arm, CANDIDATE, place)}
        self._grow()
        if not calls:
            with self._started(CANDIDATE, EAGER) as arm:
                calls[CANDIDATE] = self._calls(arm, CANDIDATE, place)
        with self._started(BASELINE, self._eager(BASELINE)) as arm:
            calls[BASELINE] = self._calls(arm, BASELINE, place)
            if self._tell_unstable(calls):
                pair = None
            else:
                result.finding = _compared(calls[BASELINE], calls[CANDIDATE])
                pair = result.finding.place
                kept = self._kept(arm, BASELINE, place, pair)
        if result.kind == "nondeterministic":
            self._within(str(result.arm), place, calls)
        elif pair is not None:
            with self._started(CANDIDATE, self._eager(CANDIDATE)) as arm:
                self._compare_tensors(pair, kept, self._kept(arm, CANDIDATE, place, pair))
        if result.kind == "difference":
            self._observe(place)
        return result

    @contextmanager
    def _started(self, role: str, more: Sequence[str]) -> Iterator[Arm]:
        self.say(f"{role}: loading and warming up")
        began = time.monotonic()
        with self.start(role, more) as arm:
            seconds = time.monotonic() - began
            self.result.loading_s += seconds
            self.say(f"{role}: that took {seconds:.1f} s")
            yield arm

    def _compare_configs(self, found: Mapping[str, Answer]) -> list[Setting]:
        """Note which effective flags differ; those that draw the first latents are returned."""
        sides = [{**self.configs.get(role, {}), **found[role].get("config", {})} for role in ROLES]
        self.result.flags = differences(*sides)
        return noise_differences(*sides)

    def _latents(self, arm: Arm, role: str) -> Answer:
        self.say(f"pass 1, {role}: the whole request, latents digested behind every step")
        folder = self.folder / role
        folder.mkdir()
        return self._noted(arm.ask({"pass": "latents", "folder": str(folder)}), "latents", role)

    def _calls(self, arm: Arm, role: str, place: Place, why: str = "every call digested") -> Answer:
        self.say(f"pass 2, {role}: {place.name}, {why}")
        return self._noted(arm.ask(place.job()), "calls", role)

    def _kept(self, arm: Arm, role: str, place: Place, pair: Pair | None, name: str = "kept") -> Path | None:
        """The file with the tensors of ``pair``'s call."""
        if pair is None:
            return None
        self.say(f"pass 3, {role}: the tensors of {pair.label}")
        file = self.folder / f"{role}-{name}.pt"
        job = place.job() | {"wanted": [list(pair.baseline.key)], "file": str(file)}
        if pair.baseline.region not in (BEFORE_LOOP, AFTER_LOOP):
            job["first"] = place.last - 1  # of a step alone: nothing is looked at before it
        answer = self._noted(arm.ask(job), "tensors", role)
        self.result.facts[role if name == "kept" else f"{role} again"] = answer["facts"].get(pair.label, {})
        return file

    def _noted(self, answer: Answer, name: str, role: str) -> Answer:
        self.result.passes.append(
            {"pass": name, "arm": role, "seconds": answer["seconds"], "peak_mib": answer["peak_mib"]}
        )
        self.say(f"{role}: that took {answer['seconds']:.1f} s")
        return answer

    def _eager(self, role: str) -> tuple[str, ...]:
        return EAGER if role in self.graphs else ()

    def _place(self, found: Mapping[str, Answer]) -> Place | None:
        ends = [found[role]["boundaries"] for role in ROLES]
        _refuse_other_work(ends)
        steps = self.result.steps = len(ends[0]) - 1
        boundary = first_difference(*ends)
        if boundary is not None:
            return Place.before(boundary, steps)
        if found[BASELINE]["result_sha256"] != found[CANDIDATE]["result_sha256"]:
            return Place(steps, steps + 1, steps)
        return None

    def _tell_unstable(self, calls: Mapping[str, Answer]) -> bool:
        """Whether an arm's second run gave other bits than its first, up to the step that was looked at."""
        for role in ROLES:
            number = first_difference(self.result.arms[role]["boundaries"], calls[role]["boundaries"])
            if number is None:
                continue
            self.result.arm, self.result.place = role, Place.before(number, self.result.steps)
            self.result.kind = "graphs" if role in self.graphs else "nondeterministic"
            return True
        return False

    def _within(self, role: str, looked_at: Place, calls: Mapping[str, Answer]) -> None:
        """Hold an arm that does not repeat itself against itself; ``calls`` are those of the place looked at before."""
        place, result = self.result.place, self.result
        assert place is not None, "an arm that does not repeat itself differs somewhere"
        with self._started(role, self._eager(role)) as arm:
            first = calls[role] if place == looked_at else self._calls(arm, role, place, "held against itself")
            for _ in range(MOST_REPEATS - 1):
                again = self._calls(arm, role, place, "held against itself")
                finding = _compared(first, again)
                if finding.place is not None:
                    result.finding = finding
                    break
            else:
                result.remarks.append(
                    f"{MOST_REPEATS} runs agree at {place.name} when they are watched: what differs is rare, or is "
                    "gone when calls are watched"
                )
                return
            pair = result.finding.place
            kept = self._kept(arm, role, place, pair)
            for number in range(MOST_REPEATS - 1):
                self._compare_tensors(pair, kept, self._kept(arm, role, place, pair, f"again-{number}"))
                if any(not one.is_equal for one in result.tensors.get("outputs", [])):
                    return

    def _compare_tensors(self, pair: Pair | None, baseline: Path | None, candidate: Path | None) -> None:
        if pair is None or baseline is None or candidate is None:
            return
        from fuseproof.pipelines.divergence.tensor_differences import compare_tensors, read_kept

        sides = [read_kept(file).get(pair.baseline.key, {}) for file in (baseline, candidate)]
        for what in ("inputs", "outputs"):
            self.result.tensors[what] = compare_tensors(*(side.get(what, ()) for side in sides))

    def _grow(self) -> None:
        from fuseproof.pipelines.divergence.tensor_differences import growth_curve

        self.result.growth = growth_curve(*(self.folder / role for role in ROLES))

    def _observe(self, place: Place) -> None:
        """Ask the gates of an arm whose fast paths ran near the difference which of them differs from its reference."""
        finding = self.result.finding
        if finding is None:
            return
        for role in ROLES:
            if not needs_observing(finding, role, self.result.arms[role]):
                continue
            with self._started(role, (*self._eager(role), *OBSERVING)) as arm:
                answer = self._calls(arm, role, place, "every fast path held against its reference")
            if answer["disagreements"]:
                self.result.observed[role] = answer["disagreements"][0]


def needs_observing(finding: Finding, role: str, answer: Answer) -> bool:
    """Whether fused calls of this arm may hide the place: in a block that an arm rewrote, or in no call at all."""
    if not any(site.get("calls_fused") for site in answer.get("sites", {}).values()):
        return False
    if finding.cause is None:
        return True
    call = finding.cause.baseline if role == BASELINE else finding.cause.candidate
    return call.kind == "site" or bool(finding.suspects[ROLES.index(role)])


def _compared(one: Answer, other: Answer) -> Finding:
    return compare_calls(*([Call.from_json(call) for call in side["calls"]] for side in (one, other)))


def _refuse_other_work(ends: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Raise :class:`UsageError` where the arms were asked for different things."""
    one, other = ends
    if len(one) != len(other):
        raise other_steps(len(one) - 1, len(other) - 1)
    layouts = [(end[0]["shape"], end[0]["dtype"]) for end in ends]
    if layouts[0] != layouts[1]:
        told = " against ".join(f"{shape} {dtype}" for shape, dtype in layouts)
        raise UsageError(
            f"the arms' latents are {told}, so their bits cannot be compared.",
            next_step="Give both the same size and --dtype.",
        )
