"""A working folder with a fake model in which ``fuseproof generate`` is run; the fixtures are in ``conftest.py``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fuseproof.cli.main import main
from tests.cli.fake_session import FakeSession

SMALL = ("--width=64", "--height=48", "--num-inference-steps=2")


@dataclass
class Desk:
    """A working folder, a fake model, and the program."""

    folder: Path
    session: FakeSession
    capsys: pytest.CaptureFixture[str]
    out: str = ""
    err: str = ""

    def run(self, *arguments: str) -> int:
        code = main(["generate", *arguments])
        captured = self.capsys.readouterr()
        self.out, self.err = captured.out, captured.err
        return code

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())

    def dump(self) -> dict[str, Any]:
        dump: dict[str, Any] = json.loads((self.folder / "p.json").read_text())
        return dump
