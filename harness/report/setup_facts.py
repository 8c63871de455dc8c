"""What a campaign says of its machine, software, code and plan, as flat rows that can be set beside another's."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuseproof.harness.analysis.campaign import CampaignAnalysis
from fuseproof.harness.analysis.runs import ARM_WORDS
from fuseproof.harness.number_format import gib, short_duration, shortened
from fuseproof.harness.report.privacy import clean_text

_MEASURED = re.compile(
    r"load average.*|timer tick|memory / (?:available|swap).*"
    r"|gpus \d+ / (?:memory used.*|utilization percent|temperature c|performance state|pcie width)"
)
"""Facts that were measured at one moment. They differ between any two sessions on one machine, and identify none."""
VERSION_KEYS = ("python", "libraries", "torch build", "cuda driver version", "fuseproof", "versions")
SETTING_KEYS = ("environment variables",)
SUBJECTS = ("machine", "versions", "settings", "commit", "plan")
NOT_RECORDED = "not recorded"
LONGEST_VALUE = 160


def is_ever_changing(name: str) -> bool:
    """Whether a row of :func:`flattened` is of one moment (load, free memory, temperature), not of the machine."""
    return _MEASURED.fullmatch(name) is not None


@dataclass(frozen=True)
class SetupDifference:
    """One fact in which two campaigns differ; ``subject`` is one of :data:`SUBJECTS`."""

    subject: str
    name: str
    first: str
    second: str


def flattened(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    """Nested values as (``processor / model``, text) rows; what is empty is left out, memory is in GiB."""
    for key, value in values.items():
        name = f"{prefix}{key if key.isupper() else key.replace('_', ' ')}"
        if isinstance(value, Mapping):
            yield from flattened(value, f"{name} / ")
        elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
            for index, item in enumerate(value):
                yield from flattened(item, f"{name} {index} / ") if isinstance(item, Mapping) else [(name, str(item))]
        elif key.endswith("_mib") and isinstance(value, int | float):
            yield f"{name.removesuffix(' mib')} GiB", gib(value, 2)
        elif key == "timer_tick_s" and isinstance(value, int | float):
            yield name.removesuffix(" s"), short_duration(value)
        elif isinstance(value, bool):
            yield name, "yes" if value else "no"
        elif value not in (None, [], ()):
            yield name, ", ".join(map(_plain, value)) if isinstance(value, list | tuple) else str(value)


def _plain(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def setup_differences(first: CampaignAnalysis, second: CampaignAnalysis) -> tuple[SetupDifference, ...]:
    """Every fact of machine, versions, settings, commits and plan that is not the same in both, in this order."""
    found = _differing(_subject_of, dict(_machine_facts(first)), dict(_machine_facts(second)), clean_text)
    found += _differing(lambda _: "commit", commits(first), commits(second), str)
    shared = {cell.name for cell in first.cells} & {cell.name for cell in second.cells}
    found += _differing(lambda _: "plan", _plan_facts(first, shared), _plan_facts(second, shared), str)
    return tuple(sorted(found, key=lambda difference: SUBJECTS.index(difference.subject)))


def commits(analysis: CampaignAnalysis) -> dict[str, str]:
    """By arm in words, the commits that its runs recorded; without an arm that recorded none."""
    found: dict[str, dict[str, None]] = {}
    for cell in analysis.cells:
        for arm, recorded in cell.commits.items():
            found.setdefault(arm, {}).update(dict.fromkeys(recorded))
    return {ARM_WORDS[arm]: ", ".join(found[arm]) for arm in analysis.plan.letters if found.get(arm)}


def _machine_facts(analysis: CampaignAnalysis) -> Iterable[tuple[str, str]]:
    facts = flattened(analysis.campaign.environment)
    yield from ((name, value) for name, value in facts if not is_ever_changing(name))
    yield "fuseproof / measured with", analysis.campaign.fuseproof_version


def _subject_of(name: str) -> str:
    if name.startswith(VERSION_KEYS):
        return "versions"
    return "settings" if name.startswith(SETTING_KEYS) else "machine"


def _plan_facts(analysis: CampaignAnalysis, shared: set[str]) -> dict[str, str]:
    """The plan without its cells' order, and of its cells those that the other campaign has too."""
    plan = analysis.plan.to_json()
    cells = {cell["name"]: cell for cell in plan.pop("cells") if cell["name"] in shared}
    return dict(flattened({**plan, "cells": cells}))


def _differing(
    subject: Callable[[str], str], first: Mapping[str, str], second: Mapping[str, str], comparable: Callable[[str], str]
) -> list[SetupDifference]:
    return [
        SetupDifference(subject(name), name, *_told_apart(first.get(name), second.get(name)))
        for name in dict.fromkeys([*first, *second])
        if comparable(first.get(name, "")) != comparable(second.get(name, ""))
    ]


def _told_apart(*values: str | None) -> Sequence[str]:
    """Both values short enough for a table, and never the same text for two values that differ."""
    shown = [NOT_RECORDED if value is None else shortened(clean_text(value), LONGEST_VALUE) for value in values]
    if len(set(shown)) > 1:
        return shown
    digests = [hashlib.sha256((value or "").encode("utf-8", "backslashreplace")).hexdigest()[:12] for value in values]
    return [f"{text} (sha256 {digest}…)" for text, digest in zip(shown, digests, strict=True)]
