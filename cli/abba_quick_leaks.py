"""``--fastpaths-from`` in a process that the arms share: a file that changes more than its sites is refused."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fuseproof.cli.abba_quick_rules import FRESH_PROCESSES
from fuseproof.cli.fastpath_choices import read_user_sites
from fuseproof.errors import InvalidMeasurementError
from fuseproof.harness.number_format import shortened

if TYPE_CHECKING:
    from fuseproof.cli.generate_options import GenerateOptions
    from fuseproof.cli.generation import Job
    from fuseproof.fastpaths.shared_code import SharedCode
    from fuseproof.pipelines.family import Family
    from fuseproof.pipelines.loaded import LoadedPipeline


@dataclass
class LeakGuard:
    """Holds the process to what it was before the first file was executed; without a file it does nothing.

    ``files`` are those that were executed.
    """

    files: list[str] = field(default_factory=list)
    _shared: SharedCode | None = None

    def with_own_sites(self, job: Job, options: GenerateOptions) -> Job:
        """``job`` with the flags of ``options``, whose file of sites, if it names one, is executed now.

        Raises :class:`InvalidMeasurementError` (exit code 6) where it changes what the other arm runs too.
        """
        if options.fastpaths_from is None:
            return dataclasses.replace(job, options=options)
        if self._shared is None:
            self._shared = _shared_code(job.family)
        self.files.append(options.fastpaths_from)
        sites = read_user_sites(options)
        self.refuse_changes()
        return dataclasses.replace(job, options=options, user_sites=sites)

    def watch(self, loaded: LoadedPipeline) -> None:
        """Hold the models that were loaded to what they are now, too."""
        if self._shared is not None:
            self._shared.watch(loaded.pipe)

    def forget_model(self) -> None:
        """Let go of the models."""
        if self._shared is not None:
            self._shared.watch(None)

    def refuse_changes(self) -> None:
        """Raise :class:`InvalidMeasurementError` (exit code 6) naming what is not as it was before the files."""
        if self._shared is None:
            return
        for file in dict.fromkeys(self.files):
            changed = self._shared.changed(Path(file).expanduser())
            if changed is not None:
                raise InvalidMeasurementError(
                    f"{changed} was changed for the whole process, which also runs --fastpaths-from "
                    f"{shortened(' and '.join(dict.fromkeys(self.files)), 200)}: both arms would have the change, and "
                    "equal outputs would prove nothing.",
                    next_step=FRESH_PROCESSES,
                )


def _shared_code(family: Family) -> SharedCode:
    """What the process shares once the family's own code is loaded: what is loaded later could not be compared."""
    load_code(family)
    from fuseproof.fastpaths.shared_code import SharedCode

    return SharedCode()


def load_code(family: Family) -> None:
    """Import what loading and running ``family`` imports, without a weight, and what wraps torch's own functions.

    The compiler does that at the first mention of ``torch.compile``, which any file may make.
    """
    from fuseproof.pipelines.libraries import silence_libraries

    silence_libraries()
    import diffusers
    import torch

    import fuseproof.pipelines.loaded
    import fuseproof.pipelines.session  # noqa: F401

    getattr(diffusers, family.pipeline_class)
    torch.compile(_nothing, backend="eager")


def _nothing() -> None:
    """What is handed to the compiler and never called."""
