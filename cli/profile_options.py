"""The flags of ``fuseproof profile`` that are its own; every other word is one of ``generate``'s, or a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fuseproof.cli.option_fields import PathText, flag, switch, whole
from fuseproof.errors import UsageError
from fuseproof.harness.profiles.places import expanded

PROMPT_FLAGS = ("--prompt", "--prompt-path", "--config")
DEFAULT_PROMPT = ("--prompt", "a red circle above a blue square")
NO_PICTURE = ("--no-save-output",)
MOST_STEPS = 1000
DEFAULT_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """The flags as parsed, with the ``words`` that are left. Building one checks every rule between them."""

    before: str | None = flag(
        "--before",
        metavar="FLAGS|PROFILE",
        description="Flags of `generate`, in quotes, or a profile or its folder: what --after is compared with.",
    )
    after: str | None = flag("--after", metavar="FLAGS|PROFILE", description="The same for the other side.")
    flags: str | None = flag(
        "--flags",
        metavar="FLAGS",
        description="With --before and --after: flags of `generate` that both share: model, prompt, size, steps, seed.",
    )
    timings: tuple[str, ...] = flag(
        "--timings",
        type=PathText(),
        multiple=True,
        metavar="CAMPAIGN|BEFORE AFTER",
        description="With --before and --after: a campaign's folder, or the perf dumps of two timed runs, to hold the "
        "predicted gain against the measured one. Profiled times are never used for it.",
    )
    output_path: str | None = flag(
        "--output-path",
        "-o",
        type=PathText(),
        metavar="FOLDER",
        description="Where the files go, a folder without a profile. "
        "[default: outputs/profile, or outputs/profile-2 ...]",
    )
    steps: int | None = whole(
        "--steps",
        "--num-profiled-timesteps",
        minimum=1,
        maximum=MOST_STEPS,
        description="Complete denoise steps to profile, the first one of the request left out. [default: 3]",
    )
    profile_all_stages: bool = switch(
        "--profile-all-stages", description="Profile the other stages, too: text encoding, decoding, ..."
    )
    json: str | None = flag(
        "--json",
        type=PathText(),
        metavar="FILE",
        description="Write the profile, or the comparison, there; - is stdout.",
    )
    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.before is None) != (self.after is None):
            missing = "--after" if self.after is None else "--before"
            raise UsageError(
                f"{missing} is missing: a comparison has two sides.", next_step=f'Add {missing} "FLAGS" or a profile.'
            )
        for name, value in (("--flags", self.flags), ("--timings", self.timings)):
            if value and not self.compares:
                raise UsageError(f"{name} only means something with --before and --after.", next_step="Drop it.")
        if self.output_path is not None and not self.output_path.strip():
            raise UsageError(
                f"--output-path is {self.output_path!r}; it must name a folder.", next_step="Name it, or drop it."
            )
        if self.compares and self.words and not self._ends_timings:
            raise UsageError(
                f"{self.words[0]!r} stands outside --before and --after.",
                next_step='Put flags of `generate` that both sides share into --flags "...".',
            )
        if not self.compares and len(self.words) > 1 and not self.words[0].startswith("-"):
            raise UsageError(
                f"{self.words[1]!r} stands behind {self.words[0]!r}: one profile is shown at a time, and no flag of "
                "`generate` changes it.",
                next_step="Give the profile alone; compare two with --before A --after B.",
            )
        if self.rendered is not None:
            self.refuse_capture_flags()

    def refuse_capture_flags(self) -> None:
        """Raise for flags that only say how to profile, where profiles exist already."""
        for name, is_given in (("--steps", self.steps is not None), ("--profile-all-stages", self.profile_all_stages)):
            if is_given:
                raise UsageError(f"{name} has no effect on profiles that exist already.", next_step="Drop it.")

    @property
    def profiled_steps(self) -> int:
        """How many denoise steps to profile."""
        return DEFAULT_STEPS if self.steps is None else self.steps

    @property
    def compares(self) -> bool:
        """Whether two profiles are compared."""
        return self.before is not None and self.after is not None

    @property
    def rendered(self) -> Path | None:
        """The existing profile to render; None where a request is profiled."""
        if self.compares or len(self.words) != 1 or self.words[0].startswith("-"):
            return None
        return expanded(self.words[0])

    @property
    def timing_files(self) -> tuple[Path, ...]:
        """What ``--timings`` names; the second dump may stand behind it as a word."""
        return tuple(map(Path, (*self.timings, *(self.words if self._ends_timings else ()))))

    @property
    def _ends_timings(self) -> bool:
        return len(self.timings) == 1 and len(self.words) == 1 and not self.words[0].startswith("-")


def request_words(words: Sequence[str]) -> tuple[str, ...]:
    """Flags of ``generate`` that save no picture, with a prompt where none of them brings one."""
    has_prompt = any(word.partition("=")[0] in PROMPT_FLAGS for word in words)
    return (*words, *(() if has_prompt else DEFAULT_PROMPT), *NO_PICTURE)
