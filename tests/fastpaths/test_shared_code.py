"""What a process shares, held to what it was: each kind of change is named, and ordinary use is none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fuseproof.fastpaths import shared_code
from fuseproof.fastpaths.shared_code import SharedCode

MINE = Path(__file__)


class Norm(nn.Module):
    """A library's module."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def scale(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    """A library's function."""
    return x * by


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A small library, and the only one that is looked at; its class is put back after the test."""
    module = ModuleType("small_library")
    monkeypatch.setitem(sys.modules, "small_library", module)
    monkeypatch.setattr(shared_code, "LIBRARIES", frozenset({"small_library"}))
    kind = type("Norm", (Norm,), {"__module__": "small_library", "forward": Norm.forward})
    module.__dict__.update(Norm=kind, scale=scale)
    return module


def other(*_: Any, **__: Any) -> None:
    """Somebody's own code."""


def _set(name: str, value: Any) -> Callable[[Any], None]:
    return lambda library: setattr(library, name, value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param(_set("scale", other), "small_library.scale", id="a-function"),
        pytest.param(
            lambda library: setattr(library.Norm, "forward", other), "small_library.Norm.forward", id="method"
        ),
        pytest.param(lambda library: setattr(library.Norm, "__call__", other), "small_library.Norm.__call__", id="new"),
        pytest.param(lambda library: delattr(library.Norm, "forward"), "small_library.Norm.forward", id="removed"),
        pytest.param(_set("added", other), "small_library.added", id="code-of-the-file"),
    ],
)
def test_changed_code_is_named(library: Any, change: Callable[[Any], None], named: str) -> None:
    shared = SharedCode()
    assert shared.changed(MINE) is None
    change(library)
    assert named == shared.changed(MINE)


def test_a_function_with_other_defaults_is_another_one(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedCode()
    monkeypatch.setattr(scale, "__defaults__", (3.0,))
    assert "small_library.scale" == shared.changed(MINE)


def test_what_a_library_loads_later_is_no_change(library: Any) -> None:
    shared = SharedCode()
    library.lazily = len
    assert shared.changed(MINE) is None
    library.lazily = max
    assert "small_library.lazily" == shared.changed(MINE)


def test_what_the_compiler_wraps_is_no_change_and_what_it_wraps_for_others_is(library: Any) -> None:
    library.linear = nn.init.ones_
    shared = SharedCode()
    library.linear = torch._dynamo.disable(nn.init.ones_)
    assert shared.changed(MINE) is None
    library.linear = torch._dynamo.disable(other)
    assert "small_library.linear" == shared.changed(MINE)


def test_settings_and_global_hooks_of_torch_are_shared(library: Any) -> None:
    shared = SharedCode()
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        assert "torch's number of threads" == shared.changed(MINE)
    finally:
        torch.set_num_threads(before)
    hook = nn.modules.module.register_module_forward_hook(other)
    assert "torch.nn's global forward hooks" == shared.changed(MINE)
    hook.remove()
    with torch.device("meta"):
        assert "the function modes of torch" == shared.changed(MINE)
    assert shared.changed(MINE) is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param(lambda norm: setattr(norm, "forward", other), "forward of transformer.0", id="forward"),
        pytest.param(lambda norm: norm.register_forward_hook(other), "forward_hooks of transformer.0", id="hook"),
        pytest.param(lambda norm: setattr(norm, "__class__", nn.Identity), "class of transformer.0", id="class"),
    ],
)
def test_the_model_is_shared(library: Any, change: Callable[[nn.Module], None], named: str) -> None:
    norm = Norm()
    pipe = SimpleNamespace(components={"scheduler": None, "transformer": nn.Sequential(norm)})
    shared = SharedCode()
    shared.watch(pipe)
    norm.seen = 3
    assert shared.changed(MINE) is None
    change(norm)
    assert named == shared.changed(MINE)
    shared.watch(None)
    assert shared.changed(MINE) is None
