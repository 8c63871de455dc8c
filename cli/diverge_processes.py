"""The arms of ``fuseproof diverge`` as processes: which code runs with which flags where, and how it is asked."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fuseproof
from fuseproof.cli.abba_arms import parsed_flags, refusal
from fuseproof.cli.arm_logs import last_words
from fuseproof.cli.diverge_flags import checked_config
from fuseproof.cli.diverge_search import ROLES, Answer
from fuseproof.errors import FuseproofError, UsageError

if TYPE_CHECKING:
    from fuseproof.cli.request_checks import Checked
    from fuseproof.harness.campaign.arm_places import ArmPlace
    from fuseproof.schedules.plan import Arm, Plan

SCRIPT = Path(__file__).with_name("diverge_arm.py")
GRAPHS_FLAG = "--enable-breakable-cuda-graph"
ENDS_S = 30.0
"""How long an arm may take to end once nothing more is asked of it."""
LETTERS = dict(zip(ROLES, "AB", strict=True))


@dataclass(frozen=True)
class ArmProcesses:
    """Starts the arms of ``plan``, whose first cell holds the flags that both share. Logs go to ``folder``."""

    plan: Plan
    places: Mapping[str, ArmPlace]
    folder: Path

    @contextlib.contextmanager
    def start(self, role: str, more: Sequence[str]) -> Iterator[ArmProcess]:
        """The arm of ``role``, in a fresh process; ended when the context is left."""
        argv, overrides = self._command(role, more)
        number = len(list(self.folder.glob(f"{role}-*.log"))) + 1
        log = self.folder / f"{role}-{number}.log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **overrides},
                text=True,
                encoding="utf-8",
            )
        arm = ArmProcess(role, process, log)
        try:
            arm.read()  # that it is loaded
            yield arm
        except BaseException:
            arm.kill()  # whatever went wrong, or was interrupted: nothing that we started goes on
            raise
        arm.end()

    def words(self, role: str) -> tuple[str, ...]:
        """The arm's flags of ``generate``; nothing is ever written to the folders in them."""
        from fuseproof.harness.campaign.arms import generate_words

        return generate_words(self._arm(role), self.plan.cells[0], self.folder / "perf.json", self.folder / "outputs")

    def configs(self) -> dict[str, dict[str, Any]]:
        """The effective flags of each arm that runs this ``generate``; of another commit's its own answer tells.

        Raises :class:`UsageError` for flags that ``generate`` refuses.
        """
        found: dict[str, dict[str, Any]] = {}
        checked: Checked = {}
        for role in ROLES:
            if self._arm(role).ref is None and self._arm(role).python is None:
                parsed = parsed_flags(self.words(role))
                if isinstance(parsed, FuseproofError):
                    raise refusal(f"The {role}", parsed)
                if parsed.profile:
                    raise UsageError(
                        f"The {role} has --profile, and diverge compares bits, not times.", next_step="Drop it."
                    )
                found[role] = checked_config(role, parsed, checked)
        return found

    def commits(self) -> dict[str, str]:
        """Which code each arm runs, in words; empty where both run the same."""
        if not any(self._arm(role).ref for role in ROLES):
            return {}
        return {role: self._code(role) for role in ROLES}

    def _code(self, role: str) -> str:
        place, ref = self.places.get(LETTERS[role]), self._arm(role).ref
        if ref is None:
            return "the present code"
        return ref if place is None or place.commit is None else f"{ref} (commit {place.commit[:12]})"

    def with_graphs(self) -> frozenset[str]:
        """The roles whose flags ask for CUDA graphs."""
        return frozenset(role for role in ROLES if _asks_for_graphs(self.words(role)))

    def _arm(self, role: str) -> Arm:
        return self.plan.arm(LETTERS[role])

    def _command(self, role: str, more: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        from fuseproof.harness.campaign.arm_places import ArmPlace
        from fuseproof.harness.campaign.arms import slot_command

        place = self.places.get(LETTERS[role], ArmPlace())
        files = self.folder / "perf.json", self.folder / "outputs"
        overrides = dict(slot_command(self._arm(role), self.plan.cells[0], *files, place).overrides)
        own = str(Path(fuseproof.__file__).resolve().parents[1])  # behind the tree: for a checkout not installed
        path = overrides.get("PYTHONPATH") or os.environ.get("PYTHONPATH")
        overrides["PYTHONPATH"] = f"{path}{os.pathsep}{own}" if path else own
        return [place.python or sys.executable, "-P", str(SCRIPT), *self.words(role), *more], overrides


@dataclass
class ArmProcess:
    """One arm that runs and answers."""

    role: str
    process: subprocess.Popen[str]
    log: Path

    def ask(self, job: Mapping[str, Any]) -> Answer:
        """Send one job and wait for its answer; raises :class:`FuseproofError` with the arm's own sentence."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; reading says how
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
        return self.read()

    def read(self) -> Answer:
        """The next answer."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise FuseproofError(
                f"The {self.role} ended with status {self.process.wait()} before it answered: {last_words(self.log)}.",
                next_step="Run `fuseproof generate` with the same flags to see what becomes of it.",
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" not in answer:
            return answer
        error = FuseproofError(f"The {self.role}: {answer['error']}", next_step=answer["next_step"])
        error.exit_code = answer["exit_code"]
        raise error

    def end(self) -> None:
        """Let it end; one that does not is killed."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(ENDS_S)
        self.kill()

    def kill(self) -> None:
        """End it at once. Doing it twice is harmless."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):  # what was never read by anybody
                if stream is not None:
                    stream.close()


def _asks_for_graphs(words: Sequence[str]) -> bool:
    """The last word on the flag counts, in any of its three forms."""
    asked = False
    for index, word in enumerate(words):
        name, _, value = word.partition("=")
        if name == GRAPHS_FLAG:
            following = words[index + 1] if index + 1 < len(words) else ""
            said = value or (following if not following.startswith("-") else "")
            asked = said.lower() not in ("false", "0", "no", "off", "f", "n")
    return asked
