"""Arms of ``fuseproof diverge`` inside the test's own process, loaded once for each set of flags."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from fuseproof.cli.diverge_arm import opened_arm
from fuseproof.cli.diverge_processes import LETTERS, ArmProcesses
from fuseproof.pipelines.divergence.passes import ArmPasses


@dataclass
class Asked:
    """An arm that answers at once, through the same JSON as a process does."""

    passes: ArmPasses
    log: list[str]

    def ask(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        self.log.append(f"{job['pass']} {job.get('first')}..{job.get('last')}")
        return json.loads(json.dumps(self.passes.answer(json.loads(json.dumps(job)))))


@dataclass
class ArmsHere:
    """Stands for :meth:`ArmProcesses.start`. ``changed`` may do something to an arm before it is first asked."""

    changed: Mapping[str, Callable[[ArmPasses], object]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    _opened: dict[tuple[str, ...], ArmPasses] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)

    @property
    def start(self) -> Callable[..., AbstractContextManager[Asked]]:
        """What takes the method's place: a function, which becomes one."""
        here = self

        def start(processes: ArmProcesses, role: str, more: Sequence[str]) -> AbstractContextManager[Asked]:
            return here._start(processes, role, more)

        return start

    @contextmanager
    def _start(self, processes: ArmProcesses, role: str, more: Sequence[str]) -> Iterator[Asked]:
        plan = processes.plan
        key = (plan.arm(LETTERS[role]).flags, plan.cells[0].flags, role if role in self.changed else "", *more)
        if key not in self._opened:
            self._opened[key] = self._stack.enter_context(opened_arm((*processes.words(role), *more)))
            self.changed.get(role, lambda _: None)(self._opened[key])
        self.log.append(f"start {role} {' '.join(more)}".rstrip())
        yield Asked(self._opened[key], self.log)

    def close(self) -> None:
        self._stack.close()
