"""The Reproduce section: commands that run in a folder of one's own and touch nothing that was measured."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

from fuseproof.harness.analysis.campaign import CampaignAnalysis
from fuseproof.harness.analysis.runs import ARM_WORDS
from fuseproof.harness.campaign.arm_programs import programs_of
from fuseproof.harness.campaign.folder import OUTPUTS_FOLDER, PERF_FILE
from fuseproof.harness.campaign.inputs import INPUT_FLAGS, INPUTS_FOLDER, InputFile
from fuseproof.harness.campaign.records import SlotOutput, SlotRecord
from fuseproof.harness.report.arm_sources import shown_overrides, tree_line, tree_prefix, with_commits
from fuseproof.harness.report.document import CodeBlock, Details, Paragraph, Section
from fuseproof.harness.report.layout import Layout
from fuseproof.harness.report.privacy import clean_arguments

FOLDER = "reproduce"
PRIVATE_PATH = "/path/to/"
MOST_HASHES = 3
LONGEST_COMMAND = 2880
"""Characters; one that is cut cannot be repeated, so only a monster is."""
CAMPAIGN = "$CAMPAIGN"
"""Stands for this campaign's folder in the commands."""
CAMPAIGN_LINE = "# CAMPAIGN: this campaign's folder"
COPY_INPUTS = f'cp -r "$CAMPAIGN/{INPUTS_FOLDER}" .'
ARM_TEXTS = ("--baseline", "--candidate", "--flags")


def reproduce_section(analysis: CampaignAnalysis, layout: Layout) -> Section:
    """The campaign's own command, one run of each arm with the hash it should give, and how to check this folder."""
    limit = LONGEST_COMMAND
    campaign = analysis.campaign
    copies = {file.argument: file.copy for file in campaign.inputs if file.copy is not None}
    lines = [f"{CAMPAIGN_LINE}, which holds the input files", COPY_INPUTS] if copies else []
    lines += _left_out_lines(campaign.inputs)
    command = with_commits(campaign.command, campaign.lineage)
    own = clean_arguments(_from_here(_without_output(with_copies(command, copies)), lines))
    what = "the whole campaign" if campaign.origin is None else "the import, beside the files that were imported"
    lines += [f"# {what}", _line(own, {}, limit)]
    for slot in _one_slot_an_arm(analysis):
        lines += _slot_lines(slot, copies, limit)
    lines += ["# in the campaign folder", "fuseproof verify ."]
    text = "\n".join(lines)
    where = f"From a new, empty folder of your own, with {_software(analysis)} installed."
    if "SHA-256" in text:
        where += " The hashes hold for the same kind of machine and the same libraries."
    if campaign.origin is not None:
        where += " campaign.json (origin) holds the SHA-256 of every file that was imported."
    elif any(arm.command is not None for arm in analysis.plan.arms.all):
        where += " Programs of the arms' own are not part of the campaign folder: bring them."
    plan_files = [word for word in campaign.command[2:3] if word.endswith(".toml")]
    if plan_files:
        where += f" {PurePath(plan_files[0]).name} is a file of the author's; campaign.json holds what it says."
    if PRIVATE_PATH in text:
        where += f" {PRIVATE_PATH}… stands for a path of yours."
    block = CodeBlock(text, "bash")
    return Section("Reproduce", (Paragraph(where), Details("Commands", (block,)) if layout.folds_commands else block))


def with_copies(words: Sequence[str], copies: Mapping[str, str]) -> list[str]:
    """A command with the campaign's copies in place of the input files it names, also inside an arm's flags."""
    found: list[str] = []
    previous = ""
    for word in words:
        is_value = previous in (*INPUT_FLAGS, *ARM_TEXTS)
        flag, separator, value = ("", "", word) if is_value or not word.startswith("--") else word.partition("=")
        named = flag if separator else previous
        replaced = value if separator else word
        if named in INPUT_FLAGS:
            replaced = copies.get(replaced, replaced)
        elif named in ARM_TEXTS:
            replaced = _arm_text_with_copies(replaced, copies)
        found.append(f"{flag}={replaced}" if separator else replaced)
        previous = word
    return found


def _arm_text_with_copies(text: str, copies: Mapping[str, str]) -> str:
    try:
        words = shlex.split(text)
    except ValueError:
        return text
    changed = with_copies(words, copies)
    return text if changed == words else shlex.join(changed)


def _left_out_lines(inputs: Sequence[InputFile]) -> list[str]:
    """Input files that were too large to copy: which file is meant."""
    return [
        f"# {clean_arguments(['', file.argument])[1]} is not in the folder ({file.size_bytes / 2**20:.1f} MiB); "
        f"SHA-256 {file.sha256}"
        for file in inputs
        if file.copy is None
    ]


def assignments(variables: Mapping[str, str]) -> str:
    """Environment variables as a shell writes them in front of a command."""
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in sorted(variables.items()))


def _without_output(command: Sequence[str]) -> list[str]:
    """The command without its campaign folder: a new campaign makes its own."""
    words: list[str] = []
    previous = ""
    for word in command:
        if previous != "--output" and word != "--output" and not word.startswith("--output="):
            words.append(word)
        previous = word
    return words


def _from_here(command: Sequence[str], lines: list[str]) -> list[str]:
    """``--from`` with this campaign's own folder, whose plan is the same: the earlier one is on another machine.

    Says in ``lines`` what ``$CAMPAIGN`` is where nothing has said it yet.
    """
    words: list[str] = []
    previous = ""
    for word in command:
        flag, separator, _ = word.partition("=")
        words += (
            [CAMPAIGN] if previous == "--from" else [f"--from={CAMPAIGN}"] if separator and flag == "--from" else [word]
        )
        previous = word
    if words != list(command) and not any(line.startswith(CAMPAIGN_LINE) for line in lines):
        lines.insert(0, CAMPAIGN_LINE)
    return words


def _program_lines(slot: SlotRecord) -> list[str]:
    """Which files the command of a run named, and what they held."""
    return [f"# {clean_arguments(['', name])[1]}: SHA-256 {contents}" for name, contents in programs_of(slot).items()]


def _software(analysis: CampaignAnalysis) -> str:
    """Which fuseproof the campaign ran: its commit where that is known, else its version."""
    campaign = analysis.campaign
    own = campaign.environment.get("fuseproof")
    facts = own if isinstance(own, Mapping) else {}
    if not facts.get("commit"):
        return f"fuseproof {campaign.fuseproof_version}"
    changes = " and its uncommitted changes" if facts.get("is_dirty") else ""
    return f"fuseproof {campaign.fuseproof_version} of commit {facts['commit']}{changes}"


def _one_slot_an_arm(analysis: CampaignAnalysis) -> list[SlotRecord]:
    """Of the first cell with slots: each arm's first run that counts, else its first timed one, else any."""
    first = next((runs for runs in analysis.all_runs if runs.slots), None)
    if first is None:
        return []
    found = []
    for arm in analysis.plan.letters:
        counted = [run.record for run in first.of_arm(arm)]
        timed = [slot for slot in first.slots if slot.arm == arm and slot.kind == "timed"]
        own = [slot for slot in first.slots if slot.arm == arm]
        found += [slot for slot in (*counted, *timed, *own) if slot.command][:1]
    return found


def _slot_lines(slot: SlotRecord, copies: Mapping[str, str], limit: int) -> list[str]:
    """A comment, the command with fresh paths, and the hash of what it should write."""
    word = ARM_WORDS[slot.arm]
    folder = f"{FOLDER}/{word.replace(' ', '-')}"
    words = [
        argument.replace(f"{slot.directory}/{PERF_FILE}", f"{folder}/perf.json").replace(
            f"{slot.directory}/{OUTPUTS_FOLDER}", f"{folder}/outputs"
        )
        for argument in _program_first(clean_arguments(with_copies(slot.command, copies)))
    ]
    expected = [_hash_text(output) for output in slot.outputs[:MOST_HASHES]]
    more = f" and {len(slot.outputs) - MOST_HASHES} more" if len(slot.outputs) > MOST_HASHES else ""
    return [
        f"# one {word} run, as {slot.id}",
        f"mkdir -p {folder}/outputs",
        *tree_line(slot),
        *_program_lines(slot),
        tree_prefix(slot) + _line(words, shown_overrides(slot), limit),
        *([f"# gives {', '.join(expected)}{more}"] if expected else []),
    ]


def _program_first(words: list[str]) -> list[str]:
    """``fuseproof generate …`` for the interpreter's ``python -m fuseproof generate …``."""
    if words[1:4] == ["-P", "-m", "fuseproof"]:
        return ["python", *words[1:]]
    return words[2:] if words[1:3] == ["-m", "fuseproof"] else words


def _hash_text(output: SlotOutput) -> str:
    """The deepest hash of an output and its level."""
    if output.raw_sha256:
        return f"raw SHA-256 {output.raw_sha256}"
    return f"pixels SHA-256 {output.pixels_sha256}" if output.pixels_sha256 else f"file SHA-256 {output.file_sha256}"


def _line(words: Iterable[str], overrides: Mapping[str, str], limit: int) -> str:
    """One command; one that is too long to show is no command but a comment."""
    text = " ".join(filter(None, [assignments(overrides), *map(_quoted, words)]))
    if len(text) <= limit:
        return text
    return f"# cut: {' '.join(text[:limit].split())}… ({len(text):,} characters; all of it is in campaign.json)"


def _quoted(word: str) -> str:
    """A word for the shell; a home folder stays one that the shell fills in."""
    flag, separator, value = word.partition("=")
    if CAMPAIGN in (word, value) and (word == CAMPAIGN or flag == "--from"):
        return word.replace(CAMPAIGN, f'"{CAMPAIGN}"')
    head, path = (f"{flag}=", value) if flag.startswith("-") and separator else ("", word)
    if not path.startswith("~/"):
        return shlex.quote(word)
    escaped = re.sub(r'([\\"$`])', r"\\\1", path[2:])
    return f'{shlex.quote(head) if head else ""}"$HOME/{escaped}"'
