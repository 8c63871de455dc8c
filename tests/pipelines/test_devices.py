"""Device names are read here, not by torch, whose indices wrap around."""

from __future__ import annotations

import pytest
import torch

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines.devices import choose_device


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("two_cards")
@pytest.mark.parametrize(
    ("expected", "name"),
    [("cuda:0", None), ("cuda:0", "auto"), ("cuda:0", "cuda"), ("cuda:1", "cuda:1"), ("cpu", "cpu")],
)
def test_names(expected: str, name: str | None) -> None:
    assert expected == str(choose_device(name))


@pytest.mark.usefixtures("two_cards")
@pytest.mark.parametrize("index", [2, 256, 257, 999])
def test_a_card_that_does_not_exist_is_named_as_it_was_asked_for(index: int) -> None:
    with pytest.raises(UsageError, match=rf"--device cuda:{index} does not exist; .* 2 device\(s\), cuda:0 to cuda:1"):
        choose_device(f"cuda:{index}")


@pytest.mark.parametrize("name", ["cuda:", "cuda:-1", "cuda:x", "cuda:1 ", "mps", "meta", "", "gpu"])
def test_other_names_are_usage_errors(name: str) -> None:
    with pytest.raises(UsageError, match="is not a device; use auto, cpu, cuda or cuda:N"):
        choose_device(name)


def test_a_card_without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(FuseproofError, match=r"--device cuda:999 was asked for, and torch .* sees no CUDA device"):
        choose_device("cuda:999")
    assert "cpu" == str(choose_device(None))
