"""Are the arms' outputs the same? Determinism within each arm first, then equality across arms at three levels.

Levels, shallow to deep: the file's bytes, the decoded pixels, the raw array before encoding. The deepest level that
every run recorded decides; SSIM and PSNR are computed only where pixels differ, and never decide equality. Identical
outputs that are constant, non-finite or the same for every prompt prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from fuseproof.harness.analysis.caveats import no_quality_evidence_text
from fuseproof.harness.analysis.clip_sentences import raw_frame_texts
from fuseproof.harness.analysis.output_pairs import ComparedPair, compare_pairs
from fuseproof.harness.analysis.runs import ARM_WORDS, ARMS, CellRuns, Run
from fuseproof.harness.campaign.records import SlotOutput
from fuseproof.harness.media.decoding import VIDEO_SUFFIXES
from fuseproof.harness.statistics.reasons import Reason
from fuseproof.schedules.contracts import Contract, parse_contract
from fuseproof.schedules.order import ArmLetter

Level = Literal["file", "pixels", "raw"]
Status = Literal["identical", "pixels identical", "different", "none"]


def raw_identity(output: SlotOutput) -> str | None:
    """The raw array's hash with those of its frames: where one says equal and the other not, outputs are not equal."""
    if output.raw_sha256 is None or not output.frames_sha256:
        return output.raw_sha256
    return " ".join((output.raw_sha256, *output.frames_sha256))


LEVELS: tuple[tuple[Level, Callable[[SlotOutput], str | None]], ...] = (
    ("file", lambda output: output.file_sha256),
    ("pixels", lambda output: output.pixels_sha256),
    ("raw", raw_identity),
)
LEVEL_TITLES: dict[Level, str] = {"file": "file bytes", "pixels": "decoded pixels", "raw": "raw arrays"}
LOSSY_SUFFIXES = frozenset({".jpg", ".jpeg", ".gif"}) | VIDEO_SUFFIXES


@dataclass(frozen=True)
class ArmOutputs:
    """How an arm agrees with itself. ``distinct`` is the number of different outputs of its most varying request."""

    arm: ArmLetter
    runs: int
    distinct: int

    @property
    def is_deterministic(self) -> bool:
        return self.distinct <= 1


@dataclass(frozen=True)
class LevelCount:
    """How many outputs equal the first baseline output of their request at one level, by arm; None: not recorded."""

    level: Level
    baseline_equal: int
    baseline_total: int
    candidate_equal: int
    candidate_total: int

    @property
    def is_equal(self) -> bool:
        return self.baseline_equal == self.baseline_total and self.candidate_equal == self.candidate_total


@dataclass(frozen=True)
class OutputCheck:
    """The outcome for one cell. ``violations`` are the ways in which the contract is broken, the worst case named."""

    contract: str
    status: Status
    decided_by: Level | None
    determinism: tuple[ArmOutputs, ...]
    levels: tuple[LevelCount, ...]
    pairs: tuple[ComparedPair, ...]
    """Worst first."""
    omitted_pairs: int
    degenerate: tuple[str, ...]
    violations: tuple[str, ...]
    warnings: tuple[Reason, ...]
    hashes: tuple[str, ...]
    """The first baseline run's hash of every request, at the deciding level."""
    no_evidence: str | None = None
    """Why closeness says nothing about quality here."""

    @property
    def keeps_contract(self) -> bool:
        return not self.violations

    @property
    def accepts_anything(self) -> bool:
        """Whether the contract holds whatever the pictures are: no PSNR of two pictures of one size is below 0 dB."""
        contract = parse_contract(self.contract)
        return contract.kind == "close" and contract.ssim_minimum is None and contract.psnr_minimum_db == 0

    @property
    def worst(self) -> ComparedPair | None:
        return self.pairs[0] if self.pairs else None

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return {
            "contract": self.contract,
            "status": self.status,
            "decided_by": self.decided_by,
            "determinism": [asdict(arm) | {"is_deterministic": arm.is_deterministic} for arm in self.determinism],
            "levels": [asdict(level) for level in self.levels],
            "pairs": [pair.to_json() for pair in self.pairs],
            "omitted_pairs": self.omitted_pairs,
            "degenerate": list(self.degenerate),
            "violations": list(self.violations),
            "keeps_contract": self.keeps_contract,
            "warnings": [asdict(warning) for warning in self.warnings],
            "hashes": list(self.hashes),
            "no_evidence": self.no_evidence,
        }


def check_outputs(cell: CellRuns, directory: Path) -> OutputCheck:
    """Compare the outputs of a cell's counting runs; ``directory`` is the campaign folder.

    Files are only read where hashes differ. An output that cannot be read breaks the contract and names file and
    reason; the other pairs are still compared.
    """
    contract = parse_contract(cell.cell.contract)
    levels = _level_counts(cell)
    if not levels:
        return _nothing_to_compare(cell, contract)
    decisive = levels[-1]
    determinism = tuple(_determinism(cell, arm, decisive.level) for arm in ARMS)
    has_equal_pixels = _level(levels, "pixels").is_equal
    pairs, omitted = ((), 0) if has_equal_pixels else compare_pairs(cell, directory, contract)
    degenerate = _degenerate(cell, decisive.level)
    return OutputCheck(
        contract=str(contract),
        status=_status(levels),
        decided_by=decisive.level,
        determinism=determinism,
        levels=levels,
        pairs=pairs,
        omitted_pairs=omitted,
        degenerate=degenerate,
        violations=(*_violations(cell, contract, levels, determinism, pairs), *degenerate),
        warnings=_nondeterminism(determinism),
        hashes=tuple(_hash(output, decisive.level).split()[0] for output in cell.of_arm("A")[0].record.outputs),
        no_evidence=no_quality_evidence_text(cell),
    )


def _nothing_to_compare(cell: CellRuns, contract: Contract) -> OutputCheck:
    detail = "the arms wrote no outputs, so nothing is known about their equality"
    advice = Reason("NO_OUTPUTS", detail, "Let the arms save their outputs ({output_dir}).")
    warnings = (advice,) if cell.runs else ()
    return OutputCheck(str(contract), "none", None, (), (), (), 0, (), (), warnings, ())


def _level_counts(cell: CellRuns) -> tuple[LevelCount, ...]:
    """The levels at which every output of every run has a hash, shallow to deep; empty without outputs."""
    runs = cell.runs
    if not runs or not all(run.record.outputs for run in runs) or not cell.of_arm("A"):
        return ()
    reference = cell.of_arm("A")[0].record.outputs
    counts = []
    for level, read in LEVELS:
        if any(read(output) is None for run in runs for output in run.record.outputs):
            continue
        wanted = [read(output) for output in reference]
        equal = {arm: sum(_equal_count(run, wanted, read) for run in cell.of_arm(arm)) for arm in ARMS}
        total = {arm: sum(len(run.record.outputs) for run in cell.of_arm(arm)) for arm in ARMS}
        counts.append(LevelCount(level, equal["A"], total["A"], equal["B"], total["B"]))
    return tuple(counts)


def _equal_count(run: Run, wanted: Sequence[str | None], read: Callable[[SlotOutput], str | None]) -> int:
    return sum(read(output) == hash_ for output, hash_ in zip(run.record.outputs, wanted, strict=False))


def _level(levels: Sequence[LevelCount], wanted: Level) -> LevelCount:
    """The counts of a level, or of the deepest one above it."""
    found = [count for count in levels if count.level == wanted]
    return found[0] if found else levels[0]


def _status(levels: Sequence[LevelCount]) -> Status:
    if levels[-1].is_equal:
        return "identical"
    return "pixels identical" if levels[-1].level == "raw" and _level(levels, "pixels").is_equal else "different"


def _hash(output: SlotOutput, level: Level) -> str:
    return dict(LEVELS)[level](output) or output.file_sha256


def _determinism(cell: CellRuns, arm: ArmLetter, level: Level) -> ArmOutputs:
    runs = cell.of_arm(arm)
    by_request = zip(*([_hash(output, level) for output in run.record.outputs] for run in runs), strict=False)
    return ArmOutputs(arm, len(runs), max((len(set(hashes)) for hashes in by_request), default=0))


def _nondeterminism(determinism: Sequence[ArmOutputs]) -> tuple[Reason, ...]:
    baseline, candidate = determinism
    if baseline.is_deterministic and not candidate.is_deterministic:
        detail = (
            f"only the candidate is non-deterministic: {candidate.distinct} different outputs in {candidate.runs} runs "
            "of the same request, one in the baseline"
        )
        step = "Look for a race, an atomic sum or an autotuned choice in the candidate before looking at its speed."
        return (Reason("CANDIDATE_NONDETERMINISM", detail, step),)
    if not baseline.is_deterministic:
        both = "" if candidate.is_deterministic else ", and so is the candidate"
        detail = (
            f"the baseline is non-deterministic ({baseline.distinct} different outputs in {baseline.runs} runs){both}"
        )
        step = "Equality cannot be shown against such a baseline: make it deterministic, or use a close contract."
        return (Reason("BASELINE_NONDETERMINISM", detail, step),)
    return ()


def _degenerate(cell: CellRuns, level: Level) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for run in cell.runs:
        outputs = run.record.outputs
        word = ARM_WORDS[run.record.arm]
        for index, output in enumerate(outputs):
            if output.degenerate:
                found[f"{word} output {index + 1} is degenerate ({output.degenerate}): agreement proves nothing"] = None
        if len(outputs) > 1 and len(set(_prompts(run))) > 1 and len({_hash(output, level) for output in outputs}) == 1:
            found[f"the {word} gives the same output for every prompt: agreement proves nothing"] = None
    return tuple(found)


def _prompts(run: Run) -> tuple[str, ...]:
    return run.dump.prompts if run.dump else ()


def _violations(
    cell: CellRuns,
    contract: Contract,
    levels: Sequence[LevelCount],
    determinism: Sequence[ArmOutputs],
    pairs: Sequence[ComparedPair],
) -> Iterable[str]:
    if contract.kind == "close":
        return _named(cell, [pair for pair in pairs if pair.violations])
    found = []
    for arm in determinism:
        if not arm.is_deterministic:
            word = ARM_WORDS[arm.arm]
            found.append(f"{word} runs differ among themselves ({arm.distinct} different outputs in {arm.runs} runs)")
    if not levels[-1].is_equal:
        found.append(_not_exact(levels[-1]))
        found += raw_frame_texts(cell) if levels[-1].level == "raw" else ()
        found += _named(cell, pairs[:1])
    suffixes = {PurePosixPath(output.path).suffix.lower() for run in cell.runs for output in run.record.outputs}
    if levels[-1].level != "raw" and suffixes & LOSSY_SUFFIXES:
        found.append(
            f"{', '.join(sorted(suffixes & LOSSY_SUFFIXES))} is a lossy container, so exactness cannot be shown"
        )
    return found


def _not_exact(count: LevelCount) -> str:
    differing = count.baseline_total + count.candidate_total - count.baseline_equal - count.candidate_equal
    total = count.baseline_total + count.candidate_total
    return f"{differing} of {total} outputs differ from the first baseline output in their {LEVEL_TITLES[count.level]}"


def _named(cell: CellRuns, pairs: Sequence[ComparedPair]) -> list[str]:
    """Violations with the output they belong to: the worst case is always named."""
    return [
        f"output {pair.request + 1} ({pair.baseline} against {pair.candidate}): {violation}"
        for pair in pairs
        for violation in pair.violations
    ]
