"""Command templates that run the fake arm, and plans made of them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from fuseproof.schedules.plan import Plan, plan_from

FAKE_ARM = Path(__file__).with_name("fake_arm.py")


def fake_command(**options: Any) -> str:
    """A command template of the fake arm; ``worker_ms=900`` becomes ``--worker-ms 900``."""
    words = [sys.executable, "-S", "-E", str(FAKE_ARM), "--perf-dump", "{perf_dump}", "--outputs", "{output_dir}"]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


def fake_plan(baseline: dict[str, Any], candidate: dict[str, Any], **keys: Any) -> Plan:
    """A one-cell plan whose arms are fake arms with these options."""
    values = {
        "name": "fake",
        "arms": {
            "baseline": {"name": "baseline", "command": fake_command(**baseline)},
            "candidate": {"name": "candidate", "command": fake_command(**candidate)},
        },
        "cells": [{"name": "cell"}],
        "blocks": 1,
        "warmup_slots": 0,
    }
    return plan_from(values | keys, "test")
