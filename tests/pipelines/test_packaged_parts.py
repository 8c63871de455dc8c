"""Parts: what is put together, what is added to weights, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from fuseproof.errors import FuseproofError
from fuseproof.pipelines.packaged_parts import PARTS, Parts, assemble, merge_low_rank, put_together, read_parts

BF16 = torch.bfloat16


def factors(rows: int, columns: int, rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A matrix and its two factors in bf16, of very different sizes."""
    generator = torch.Generator().manual_seed(rows)
    matrix, up, down = (
        torch.randn(shape, generator=generator) for shape in ((rows, columns), (rows, rank), (rank, columns))
    )
    spread = 10.0 ** torch.linspace(-6, 3, columns)
    return (matrix * spread).to(BF16), up.to(BF16), down.to(BF16)


@pytest.mark.parametrize(("rows", "columns", "rank"), [(7, 5, 1), (64, 33, 12), (1, 1, 3)])
def test_a_merged_matrix_is_the_sum_rounded_once(rows: int, columns: int, rank: int) -> None:
    matrix, up, down = factors(rows, columns, rank)
    other = torch.arange(6, dtype=torch.float32)
    weights = save({"a.weight": matrix, "b.bias": other}, {"format": "pt"})
    merged = load(merge_low_rank(weights, save({"a.weight.up": up, "a.weight.down": down})))
    total = matrix.double()
    for number in range(rank):
        total = total + up[:, number, None].double() * down[number].double()
    assert torch.equal(total.float().to(BF16), merged["a.weight"])
    assert torch.equal(other, merged["b.bias"])


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("a.weight.up",), "'a.weight' lacks its matrix, or one of its two factors"),
        (("c.weight.up", "c.weight.down"), "'c.weight' lacks its matrix, or one of its two factors"),
        (("b.weight.up", "b.weight.down"), "'b.weight' is (4, 4), its factors (7, 1) and (1, 5)"),
    ],
    ids=["one factor", "no matrix", "other shape"],
)
def test_factors_that_do_not_fit_are_refused(names: tuple[str, ...], said: str) -> None:
    matrix, up, down = factors(7, 5, 1)
    weights = save({"a.weight": matrix, "b.weight": torch.zeros(4, 4, dtype=BF16)})
    difference = save({name: up if name.endswith("up") else down for name in names})
    with pytest.raises(ValueError) as caught:
        merge_low_rank(weights, difference)
    assert said == str(caught.value)


def test_other_dtypes_are_refused() -> None:
    matrix, up, down = factors(7, 5, 1)
    with pytest.raises(ValueError, match="a tensor of F32"):
        merge_low_rank(save({"a": matrix.float()}), save({"a.up": up, "a.down": down}))


def write_family(folder: Path) -> Path:
    """A whole checkpoint ``base`` and the folder of its part, without ``parts.json``."""
    matrix, up, down = factors(7, 5, 2)
    for name in ("base/transformer", "part"):
        (folder / name).mkdir(parents=True)
    (folder / "base/transformer/w.safetensors").write_bytes(save({"a": matrix}))
    (folder / "base/README.md").write_text("base")
    (folder / "base/shared.txt").write_text("shared")
    (folder / "part/README.md").write_text("part")
    (folder / "part/d.safetensors").write_bytes(save({"a.up": up, "a.down": down}))
    return folder / "part"


def test_own_files_win_and_the_difference_is_not_copied(tmp_path: Path) -> None:
    part = write_family(tmp_path)
    put_together(part, tmp_path / "base", {"transformer/w.safetensors": "d.safetensors"}, tmp_path / "whole")
    found = {path.relative_to(tmp_path / "whole").as_posix() for path in (tmp_path / "whole").rglob("*.*")}
    assert {"README.md", "shared.txt", "transformer/w.safetensors"} == found
    assert "part" == (tmp_path / "whole" / "README.md").read_text()
    before = load((tmp_path / "base/transformer/w.safetensors").read_bytes())["a"].float().numpy()
    assert np.any(before != load((tmp_path / "whole/transformer/w.safetensors").read_bytes())["a"].float().numpy())


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (Parts("base", {}, "0" * 64), "000000000000 was packaged"),
        (Parts("../base", {}, "0" * 64), "names inside were expected"),
        (Parts("elsewhere", {}, "0" * 64), "cannot be put together"),
        (Parts("base", {"transformer/w.safetensors": "README.md"}, "0" * 64), "cannot be put together"),
    ],
    ids=["other content", "outside", "no base", "no difference"],
)
def test_parts_that_do_not_give_what_was_packaged_are_refused(parts: Parts, said: str, tmp_path: Path) -> None:
    part = write_family(tmp_path)
    (part / PARTS).write_text(parts.to_json())
    with pytest.raises(FuseproofError) as caught:
        assemble(part, tmp_path / "whole")
    assert said in str(caught.value)


def test_a_destination_without_room_is_no_damage(tmp_path: Path) -> None:
    """The cache names its own folder then; to install again would change nothing."""
    part = write_family(tmp_path)
    (tmp_path / "full").write_text("not a folder")
    with pytest.raises(OSError, match="full"):
        put_together(part, tmp_path / "base", {}, tmp_path / "full")


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "other"}', '{"schema": "fuseproof.parts/1", "shared": "base"}'])
def test_a_damaged_list_of_parts_is_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / PARTS).write_text(text)
    with pytest.raises(FuseproofError, match=r"parts\.json"):
        read_parts(tmp_path)
