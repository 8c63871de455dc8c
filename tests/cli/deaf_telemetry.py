"""Slots that find the machine quiet, whatever else it does, and however short they are."""

from __future__ import annotations

import pytest

from fuseproof.harness.campaign import telemetry


def be_deaf_to_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "shortest_measurable_s", lambda cores, capacity: 0.0)
    monkeypatch.setattr(telemetry, "contended_cores", lambda *counted: 0.0)
