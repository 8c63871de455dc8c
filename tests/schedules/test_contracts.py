"""Contracts: the text form, and that nothing but a met floor (or equal values) fulfils one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import pytest

from fuseproof.errors import UsageError
from fuseproof.schedules.contracts import Contract, parse_contract


@dataclass
class Numbers:
    """A comparison made of numbers only."""

    equality: Literal["file", "pixels", "different"] = "different"
    mismatch: str | None = None
    degenerate: tuple[str, ...] = ()
    lossy: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    differing: str = "5 of 10 values differ"
    ssim: float | None = 0.99
    ssim_unavailable: str | None = None
    psnr_db: float | None = 40.0
    psnr_is_infinite: bool = False
    psnr_unavailable: str | None = None


EQUAL = {"equality": "pixels", "ssim": 1.0, "psnr_db": None, "psnr_is_infinite": True}


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        (Contract("exact"), "exact"),
        (Contract("exact"), "  Exact "),
        (Contract("close", 0.95, 28.0), "close:ssim>=0.95,psnr>=28"),
        (Contract("close", 0.95, 28.0), " close : psnr >= 28 , SSIM >= .95 "),
        (Contract("close", 0.9, None), "close:ssim>=0.9"),
        (Contract("close", None, 33.5), "close:psnr>=33.5"),
        (Contract("close", 0.0000001, None), "close:ssim>=0.0000001"),
        (Contract("close", 1.0, 0.0), "close:ssim>=1,psnr>=0"),
    ],
)
def test_text_is_read_and_round_trips(expected: Contract, text: str) -> None:
    contract = parse_contract(text)
    assert expected == contract
    assert contract == parse_contract(str(contract))


def test_canonical_text() -> None:
    assert "exact" == str(Contract("exact"))
    assert "close:ssim>=0.95,psnr>=28" == str(parse_contract("close: psnr>=28.0, ssim>=0.950"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "equal",
        "close",
        "close:",
        "exact:",
        "exact:ssim>=1",
        "ssim>=0.95",
        "close:ssim>0.95",
        "close:ssim>=95",
        "close:ssim>=-0.1",
        "close:ssim>=nan",
        "close:ssim>=1e-1",
        "close:psnr>=inf",
        "close:psnr>=28dB",
        "close:psnr>=" + "9" * 400,
        "close:lpips>=0.1",
        "close:ssim>=0.9,ssim>=0.8",
        "close:ssim>=0.9,",
        "close:ssim>=0.9;psnr>=20",
    ],
)
def test_bad_text_is_a_usage_error_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_contract(text)
    assert 2 == caught.value.exit_code
    assert "close:ssim>=0.95,psnr>=28" in str(caught.value.next_step)


@pytest.mark.parametrize(("kind", "floors"), [("close", (None, None)), ("exact", (0.9, None)), ("exact", (None, 20.0))])
def test_a_contract_that_makes_no_sense_cannot_be_built(
    kind: Literal["exact", "close"], floors: tuple[float | None, float | None]
) -> None:
    with pytest.raises(UsageError):
        Contract(kind, *floors)


@pytest.mark.parametrize(
    ("expected", "contract", "numbers"),
    [
        pytest.param([], "close:ssim>=.95,psnr>=28", {"ssim": 0.9566, "psnr_db": 28.9}, id="both floors met"),
        pytest.param(
            ["PSNR 28.9 dB is below 30 dB"], "close:psnr>=30", {"ssim": 0.9566, "psnr_db": 28.9}, id="psnr below"
        ),
        pytest.param([], "close:ssim>=0.95", {"ssim": 0.95}, id="equal to the floor"),
        pytest.param(
            ["SSIM 0.949999999 is below 0.95"], "close:ssim>=0.95", {"ssim": 0.949999999}, id="not rounded up to 0.95"
        ),
        pytest.param(
            ["SSIM 0.5 is below 0.95", "PSNR 20 dB is below 28 dB"],
            "close:ssim>=0.95,psnr>=28",
            {"ssim": 0.5, "psnr_db": 20.0},
            id="both named",
        ),
        pytest.param(["SSIM nan is below 0.95"], "close:ssim>=0.95", {"ssim": math.nan}, id="NaN SSIM fails"),
        pytest.param(["PSNR nan dB is below 0 dB"], "close:psnr>=0", {"psnr_db": math.nan}, id="NaN PSNR fails"),
        pytest.param(
            ["SSIM is not available (too small), so SSIM >= 0.5 fails"],
            "close:ssim>=0.5",
            {"ssim": None, "ssim_unavailable": "too small"},
            id="missing SSIM fails",
        ),
        pytest.param(
            ["PSNR is not available (no value), so PSNR >= 1 dB fails"],
            "close:psnr>=1",
            {"psnr_db": None},
            id="missing PSNR fails",
        ),
        pytest.param([], "close:ssim>=1,psnr>=99", EQUAL, id="infinite PSNR meets every floor"),
        pytest.param([], "exact", EQUAL, id="equal values are exact"),
        pytest.param([], "exact", EQUAL | {"equality": "file"}, id="equal files are exact"),
        pytest.param(
            ["5 of 10 values differ"],
            "exact",
            {"ssim": 1.0, "psnr_db": None, "psnr_is_infinite": True},
            id="SSIM 1 does not make it exact",
        ),
        pytest.param(
            ["B: JPEG"],
            "exact",
            EQUAL | {"equality": "file", "lossy": ("B: JPEG",)},
            id="equal JPEG files prove nothing",
        ),
        pytest.param([], "close:ssim>=0.9", {"lossy": ("B: JPEG",)}, id="close allows a lossy container"),
        pytest.param(["A is black"], "exact", EQUAL | {"degenerate": ("A is black",)}, id="black is not exact"),
        pytest.param(
            ["A is black"], "close:ssim>=0.9", EQUAL | {"degenerate": ("A is black",)}, id="black is not close"
        ),
        pytest.param(["geometry"], "close:ssim>=0", {"mismatch": "geometry"}, id="a mismatch breaks close"),
        pytest.param(["geometry"], "exact", {"mismatch": "geometry"}, id="a mismatch breaks exact"),
    ],
)
def test_violations(expected: list[str], contract: str, numbers: dict[str, object]) -> None:
    assert expected == parse_contract(contract).violations(Numbers(**numbers))  # type: ignore[arg-type]
