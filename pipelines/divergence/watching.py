"""Watching every call of a pipeline's modules from outside, so that what runs is what runs unwatched.

A mounted model is compared whole at every call, and one hook on a module makes its fast paths decline: the difference
that is looked for would go away. So nothing is hung on the model. Python's own profiler (``sys.setprofile``) tells of
every function that begins and ends, and those that matter here are few: a module's call, a gate, a gated operation, and
what steps the latents. Their tensors are digested where they lie (:mod:`digests`); none is kept, unless it is asked for
by name.

Code that torch.compile has compiled, and a CUDA graph that is replayed, call no Python: of these the call around them
is seen, or none.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

from fuseproof.pipelines.divergence.calls import BEFORE_LOOP, in_hexadecimal
from fuseproof.pipelines.divergence.digests import digest, values_of
from fuseproof.pipelines.divergence.key_words import key_words
from fuseproof.pipelines.divergence.nested_tensors import argument_tensors, named_tensors, result_tensors
from fuseproof.pipelines.divergence.step_settings import step_settings
from fuseproof.pipelines.divergence.subject import Subject

MODULE, OPERATION, GATE, DECLINED, TRIAL, DISAGREED, FUNCTION = (
    "module", "operation", "gate", "declined", "trial", "disagreed", "function",
)  # fmt: skip
SCHEDULER_STEP = "scheduler.step"
LOOP_FUNCTIONS = (
    ("fuseproof.pipelines.guided_step", "GuidedStep", "__call__", "guidance and step"),
    ("fuseproof.pipelines.flow_unipc", "FlowUniPC", "__call__", "solver step"),
)
"""What native loops step with, where this commit has it."""
GATES = (
    ("fuseproof.fastpaths.operations", "GatedOperation", "__call__", OPERATION),
    ("fuseproof.fastpaths.gates", "Gate", "run", GATE),
    ("fuseproof.fastpaths.gates", "Gate", "decline", DECLINED),
    ("fuseproof.fastpaths.gates", "Gate", "_first_sight", TRIAL),
    ("fuseproof.fastpaths.gates", "Gate", "_disagree", DISAGREED),
)
BLOCKS_SUFFIX = "_blocks"
"""Sites whose gate runs once for every block of the denoiser, in their order."""

Key = tuple[str, str, int, int]


@dataclass
class _Open:
    """A call that has begun. ``facts`` are None for what is only passed through (a gate of the call around it)."""

    frame: FrameType
    kind: str
    facts: dict[str, Any] | None
    owner: Any = None
    counted: tuple[int, int] = (0, 0)


@dataclass
class CallWatch:
    """Notes the calls of ``subject`` between :meth:`start` and :meth:`stop`.

    ``wanted`` are the calls whose tensors are copied to the host, into ``kept``; nothing is digested then. Where one of
    them steps the latents, ``settings`` has what else decided that step.
    ``disagreements`` are the fused results that an observing gate found to differ from its reference's, in their order.
    """

    subject: Subject
    wanted: frozenset[Key] = frozenset()
    region: str = BEFORE_LOOP
    kept: dict[Key, dict[str, list[tuple[str, torch.Tensor]]]] = field(default_factory=dict)
    settings: dict[Key, dict[str, str]] = field(default_factory=dict)
    disagreements: list[dict[str, Any]] = field(default_factory=list)
    is_on: bool = False
    _earlier: Any = None
    _calls: list[dict[str, Any]] = field(default_factory=list)
    _digests: list[torch.Tensor] = field(default_factory=list)
    _known: dict[int, tuple[Callable[[], torch.Tensor | None], int | None, int]] = field(default_factory=dict)
    _open: list[_Open] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)
    _forward: int = 0
    _trials: int = 0
    _moments: int = 0

    def __post_init__(self) -> None:
        self._codes = _codes_of(self.subject)

    def start(self) -> None:
        """From here on, and in this thread, every call is noted; :meth:`stop` ends it, also after an error."""
        if not self.is_on:
            self._earlier, self.is_on = sys.getprofile(), True
            sys.setprofile(self._event)

    def stop(self) -> None:
        """Put back the profiler that was there. Doing it twice is harmless."""
        if self.is_on:
            sys.setprofile(self._earlier)
            self.is_on = False
            self._open.clear()

    def begin_region(self, name: str) -> None:
        """Calls belong to region ``name`` from here on: what is before the loop, a step, what is after it.

        Where the denoiser's first call is what told that the loop begins, that call belongs to it as well.
        """
        self.region, self._forward, self._numbers = name, 0, {}
        for opened in self._open:
            facts = opened.facts
            if facts is not None and facts["label"] == self.subject.denoiser_name:
                self._forward = self._numbers[facts["label"]] = 1
                facts |= {"region": name, "forward": 1, "number": 1}

    def calls(self) -> list[dict[str, Any]]:
        """All calls that have ended, JSON-ready, in the order in which they began. Waits for the device."""
        values = [[in_hexadecimal(number) for number in pair] for pair in values_of(self._digests)]

        def written(facts: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
            if facts is None:
                return None
            none = [None, None]
            pairs = [none if one["digest"] is None else values[one["digest"]] for one in facts]
            return [
                {**{key: one[key] for key in ("name", "shape", "dtype")}, "ordered": pair[0], "unordered": pair[1]}
                for one, pair in zip(facts, pairs, strict=True)
            ]

        return [
            {**call, "inputs": written(call["inputs"]), "outputs": written(call["outputs"])}
            for call in self._calls
            if call["left"] is not None
        ]

    def _event(self, frame: FrameType, event: str, result: Any) -> None:
        what = self._codes.get(frame.f_code)
        if what is None:
            return
        if event == "call":
            self._enter(what, frame)
        elif event == "return" and self._open and self._open[-1].frame is frame:
            self._leave(self._open.pop(), result)

    def _enter(self, what: tuple[str, str], frame: FrameType) -> None:
        kind, label = what
        if kind in (OPERATION, GATE, TRIAL):
            self._known.clear()  # a kernel may write where torch does not count it
        if kind == DISAGREED:
            self._note_disagreement(frame)
            return
        names = frame.f_locals
        owner: Any = names.get("self")
        if kind == TRIAL:
            self._trials += 1
            self._open.append(_Open(frame, kind, None))
            return
        if self._trials:
            return
        opened = _Open(frame, kind, None, owner)
        if kind == MODULE:
            opened.facts = self._module_facts(owner, names)
        elif kind == OPERATION:
            inputs = argument_tensors(owner.fused_form, names["arguments"], {})
            opened.facts = self._facts(f"{self._around()} › {owner.name}", "operation", owner.name, inputs)
        elif kind == FUNCTION and (owner in (None, self.subject.scheduler) or label != SCHEDULER_STEP):
            inputs = [pair for name, value in names.items() if name != "self" for pair in named_tensors(value, name)]
            opened.facts = self._facts(label, "function", type(owner).__name__, inputs)
            if _key_of(opened.facts) in self.wanted:
                self.settings[_key_of(opened.facts)] = step_settings(owner or self.subject.scheduler, frame)
        elif kind in (GATE, DECLINED):
            opened.counted = (owner.calls_fused, owner.calls_eager)
            if kind == GATE:
                opened.facts = self._site_facts(owner, names)
        self._open.append(opened)

    def _leave(self, closed: _Open, result: Any) -> None:
        if closed.kind in (OPERATION, GATE, TRIAL):
            self._known.clear()
        if closed.kind == TRIAL:
            self._trials -= 1
            return
        if closed.kind in (GATE, DECLINED):
            self._note_gate(closed)
        facts = closed.facts
        if facts is None:
            return
        tensors = result_tensors(result)
        facts["outputs"] = [self._fact(name, tensor) for name, tensor in tensors]
        facts["left"] = self._moment()
        self._keep(facts, "outputs", tensors)

    def _module_facts(self, module: nn.Module, names: Mapping[str, Any]) -> dict[str, Any] | None:
        label = self.subject.names.get(id(module))
        if label is None:
            return None
        if module is self.subject.denoiser:
            self._forward += 1
            self._numbers = {}
        inputs = argument_tensors(type(module).forward, names["args"], names["kwargs"])
        return self._facts(label, "module", type(module).__name__, inputs)

    def _site_facts(self, gate: Any, names: Mapping[str, Any]) -> dict[str, Any] | None:
        """The result of a gate, unless the call around it is the same one: that is then the one to look at."""
        around = self._innermost()
        if around is not None and around["label"] != self.subject.denoiser_name and not self._is_block(around):
            return None
        label, written = self._site_label(gate.site), [(f"written[{n}]", t) for n, t in enumerate(names["writes"])]
        return self._facts(label, "site", gate.site, written or None)

    def _site_label(self, site: str) -> str:
        if site.endswith(BLOCKS_SUFFIX):
            at_work = f"site {site}"
            number = self._numbers[at_work] = self._numbers.get(at_work, 0) + 1
            if number <= len(self.subject.blocks):
                return self.subject.blocks[number - 1]
        return f"{self._around()} › {site}"

    def _is_block(self, facts: Mapping[str, Any]) -> bool:
        return facts["kind"] == "site" and facts["label"] in self.subject.blocks

    def _facts(
        self, label: str, kind: str, type_name: str, inputs: list[tuple[str, torch.Tensor]] | None
    ) -> dict[str, Any]:
        number = self._numbers[label] = self._numbers.get(label, 0) + 1
        around = self._innermost()
        facts: dict[str, Any] = {
            "label": label,
            "kind": kind,
            "type": type_name,
            "region": self.region,
            "forward": self._forward,
            "number": number,
            "entered": self._moment(),
            "left": None,
            "parent": None if around is None else around["entered"],
            "inputs": None if inputs is None else [self._fact(name, tensor) for name, tensor in inputs],
            "outputs": [],
            "gates": [],
        }
        self._calls.append(facts)
        self._keep(facts, "inputs", inputs or [])
        return facts

    def _fact(self, name: str, tensor: torch.Tensor) -> dict[str, Any]:
        dtype = str(tensor.dtype).removeprefix("torch.")
        return {"name": name, "shape": list(tensor.shape), "dtype": dtype, "digest": self._digest_place(tensor)}

    def _digest_place(self, tensor: torch.Tensor) -> int | None:
        """Where its digest is among all; one call's output is often the next one's input, and digested once."""
        if self.wanted:
            return None
        version = None if tensor.is_inference() else tensor._version
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor and version is not None and known[1] == version:
            return known[2]
        found = digest(tensor)
        if found is None:
            return None
        self._digests.append(found)
        place = len(self._digests) - 1
        self._known[id(tensor)] = (weakref.ref(tensor), version, place)
        return place

    def _keep(self, facts: Mapping[str, Any], what: str, tensors: list[tuple[str, torch.Tensor]]) -> None:
        key = _key_of(facts)
        if key in self.wanted:
            copies = [(name, tensor.detach().cpu().clone()) for name, tensor in tensors]
            self.kept.setdefault(key, {})[what] = copies

    def _note_gate(self, closed: _Open) -> None:
        """Which site the call around this gate went through, under which key, and what came of it."""
        around, gate = closed.facts or self._innermost(), closed.owner
        if around is None:
            return
        fused, eager = gate.calls_fused - closed.counted[0], gate.calls_eager - closed.counted[1]
        names = closed.frame.f_locals
        note = {"site": gate.site, "mode": str(gate.mode), "ran": "fused" if fused and not eager else "eager"}
        if closed.kind == GATE:
            key = names["key"]
            rejection = gate.rejections.get(key)
            state = "rejected" if rejection is not None else "unchecked" if note["mode"] == "off" else "verified"
            state = "observed" if note["mode"] == "observe" else state
            reason = None if rejection is None else rejection.reason
            note |= {"state": state, "key": self._key_words(gate.site, key), "reason": reason}
        else:
            note |= {"state": "declined", "key": None, "reason": str(names.get("reason"))}
        around["gates"].append(note)

    def _note_disagreement(self, frame: FrameType) -> None:
        names = frame.f_locals
        gate, around = names["self"], self._innermost()
        note: dict[str, Any] = {
            "site": gate.site,
            "key": self._key_words(gate.site, names["key"]),
            "region": self.region,
            "forward": self._forward,
            "label": self._around() if around is None else around["label"],
            "mismatch": names["mismatch"],
            "difference": None,
        }
        if names["mismatch"] is None:
            bits = importlib.import_module("fuseproof.fastpaths.bits")
            note["difference"] = bits.bit_difference(names["candidate"], names["expected"]).to_json()
        self.disagreements.append(note)

    def _key_words(self, site: str, key: Any) -> str:
        """``key`` in words; one that begins with the name of the operation around it holds that one's arguments."""
        around = next((one.owner for one in reversed(self._open) if one.kind == OPERATION), None)
        is_of_operation = around is not None and isinstance(key, tuple) and key[:1] == (around.name,)
        form = around.fused_form if around is not None and is_of_operation else None
        return key_words(site, key, form, of_blocks=site.endswith(BLOCKS_SUFFIX))

    def _innermost(self) -> dict[str, Any] | None:
        return next((one.facts for one in reversed(self._open) if one.facts is not None), None)

    def _around(self) -> str:
        around = self._innermost()
        return "the loop" if around is None else str(around["label"])

    def _moment(self) -> int:
        self._moments += 1
        return self._moments


def _codes_of(subject: Subject) -> dict[CodeType, tuple[str, str]]:
    """The code objects to listen for: what this commit lacks is left out."""
    codes = {nn.Module.__call__.__code__: (MODULE, "")}
    known = {place[:3]: (place[3], "") for place in GATES} | {
        place[:3]: (FUNCTION, place[3]) for place in LOOP_FUNCTIONS
    }
    for place, what in known.items():
        function = _method(*place)
        if function is not None:
            codes[function.__code__] = what
    for holder in (type(subject.scheduler), subject.scheduler):
        step = getattr(inspect.unwrap(getattr(holder, "step", None)), "__code__", None)  # type: ignore[arg-type]
        if step is not None:
            codes[step] = (FUNCTION, SCHEDULER_STEP)
    return codes


def _method(module: str, owner: str, method: str) -> Callable[..., Any] | None:
    try:
        found = getattr(importlib.import_module(module), owner, None)
    except ImportError:
        return None
    return getattr(found, method, None)


def _key_of(facts: Mapping[str, Any]) -> Key:
    return facts["region"], facts["label"], facts["forward"], facts["number"]
