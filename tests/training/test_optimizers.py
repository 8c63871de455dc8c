"""Which optimizer steps which weight, and that several save and step as one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from training.geometry import SMOKE, build_transformer
from training.optimizers import Optimizer, adamw, muon_and_adamw
from training.replayed_muon import ReplayedMuon

CPU = torch.device("cpu")


def small_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return build_transformer(SMOKE)


def test_products_inside_the_blocks_go_to_muon_and_every_other_weight_to_adamw() -> None:
    model, other = small_model(), torch.nn.Linear(2, 2)
    optimizer = muon_and_adamw(model, [(other, 0.2)], 0.01, CPU)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    muon, rest = (
        [names.get(id(p)) for group in part.param_groups for p in group["params"]] for part in optimizer.parts
    )
    assert "transformer_blocks.0.attn.to_q.weight" in muon
    assert "single_transformer_blocks.1.proj_mlp.weight" in muon
    assert {"transformer_blocks.0.norm1.linear.weight", "x_embedder.weight", "proj_out.weight", None} <= set(rest)
    assert len(names) + 2 == len(muon) + len(rest)
    assert {0.2, 1.0} == {group["rate_share"] for group in optimizer.param_groups}


def test_the_norms_of_queries_and_keys_have_a_rate_of_their_own() -> None:
    model = small_model()
    optimizer = muon_and_adamw(model, [(torch.nn.Linear(2, 2), 0.2)], 0.01, CPU, sharpness_share=6.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    sharp = [names[id(p)] for group in optimizer.param_groups if group["rate_share"] == 6.0 for p in group["params"]]
    blocks = len(model.transformer_blocks), len(model.single_transformer_blocks)
    assert 4 * blocks[0] + 2 * blocks[1] == len(sharp)
    assert "transformer_blocks.0.attn.norm_added_k.weight" in sharp
    assert not [name for name in sharp if ".norm_" not in name]
    stepped(model, optimizer, 1)
    assert {6e-3, 1e-3, 2e-4} == {round(group["lr"], 7) for group in optimizer.param_groups}


def stepped(model: torch.nn.Module, optimizer: Optimizer, steps: int) -> None:
    for step in range(steps):
        torch.manual_seed(step)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape)
        optimizer.step(1e-3, 1.0)


def test_a_muon_update_has_the_size_of_an_adamw_update() -> None:
    changes = []
    for build in (lambda model: muon_and_adamw(model, [], 0.0, CPU), lambda model: adamw([(model, 1.0)], 0.0, CPU)):
        model = small_model()
        weight = model.get_parameter("transformer_blocks.0.attn.to_q.weight")
        before = weight.detach().clone()
        stepped(model, build(model), 1)
        changes.append((weight - before).square().mean().sqrt().item())
    assert 0.1 < changes[0] / changes[1] < 0.4  # 0.2 by its rule, where AdamW's first step is the whole rate


def test_gradients_are_dropped() -> None:
    model = small_model()
    stepped(model, adamw([(model, 1.0)], 0.0, CPU), 1)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_is_saved_goes_on_as_if_it_had_not_been() -> None:
    first = small_model()
    optimizer = muon_and_adamw(first, [], 0.01, CPU)
    stepped(first, optimizer, 3)
    second = copy.deepcopy(first)
    resumed = muon_and_adamw(second, [], 0.01, CPU)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for model, own in ((first, optimizer), (second, resumed)):
        stepped(model, own, 2)
    assert all(torch.equal(one, two) for one, two in zip(first.parameters(), second.parameters(), strict=True))


def test_another_number_of_optimizers_is_refused() -> None:
    model = small_model()
    with pytest.raises(ValueError, match="of 2 optimizers, and here are 1"):
        adamw([(model, 1.0)], 0.0, CPU).load_state_dict(muon_and_adamw(model, [], 0.0, CPU).state_dict())


def stepped_muon(muon: torch.optim.Optimizer, weights: list[torch.nn.Parameter], steps: int) -> None:
    """Steps at a rate that changes, with gradients that do."""
    generator = torch.Generator().manual_seed(3)
    for step in range(steps):
        muon.param_groups[0]["lr"] = 1e-3 * (step + 1)
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator).to(weight.device)
        muon.step()


def two_matrices(device: str) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(size, generator=generator).to(device)) for size in ((64, 128), (128, 64))]


def replayed_beside_torchs(device: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each weight after five steps, the state saved and loaded after three, and what torch's own Muon makes of it."""
    options: dict[str, Any] = {"weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
    mine, true = two_matrices(device), two_matrices(device)
    for weights, kind in ((mine, ReplayedMuon), (true, torch.optim.Muon)):
        first = kind(weights, **options)
        stepped_muon(first, weights, 3)
        second = kind(weights, **options)
        second.load_state_dict(first.state_dict())
        stepped_muon(second, weights, 2)
    return list(zip(mine, true, strict=True))


def test_a_muon_step_at_a_rate_of_one_scaled_is_torchs_own_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the graph holds, run as it is."""
    monkeypatch.setattr(ReplayedMuon, "_captured", lambda self, weights: lambda: self._unit_step(weights))
    for mine, true in replayed_beside_torchs("cpu"):
        torch.testing.assert_close(mine, true, rtol=0, atol=1e-6)


def test_a_muon_that_cannot_be_captured_says_so_and_steps_as_torchs(capsys: pytest.CaptureFixture[str]) -> None:
    for mine, true in replayed_beside_torchs("cpu"):
        assert torch.equal(mine, true)
    assert 2 == capsys.readouterr().err.count("MUON NOT REPLAYED, SLOWER")


def test_a_capture_that_fails_half_way_leaves_rate_and_gradients_as_they_were(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step at the graph's rate of one would move the weights a thousand times too far."""

    def fail(self: ReplayedMuon, weights: list[torch.Tensor]) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(torch.optim.Muon, "step", raise_out_of_memory)
            self._unit_step(weights)

    def raise_out_of_memory(*_: Any) -> None:
        raise torch.OutOfMemoryError("no memory for the graph")

    monkeypatch.setattr(ReplayedMuon, "_captured", fail)
    for mine, true in replayed_beside_torchs("cpu"):
        assert torch.equal(mine, true)
    assert 2 == capsys.readouterr().err.count("MUON NOT REPLAYED, SLOWER: no memory for the graph")


def test_a_replayed_muon_leaves_a_matrix_without_gradient_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplayedMuon, "_captured", lambda self, weights: lambda: self._unit_step(weights))
    weights = two_matrices("cpu")
    muon = ReplayedMuon(weights, adjust_lr_fn="match_rms_adamw")
    stepped_muon(muon, weights, 2)
    before = [weight.detach().clone() for weight in weights]
    weights[0].grad = None
    muon.step()
    assert torch.equal(before[0], weights[0])
    assert not torch.equal(before[1], weights[1])


def test_a_replayed_muon_has_one_group() -> None:
    first, second = two_matrices("cpu")
    with pytest.raises(ValueError, match="2 groups"):
        ReplayedMuon([{"params": [first]}, {"params": [second]}])


@pytest.mark.gpu
def test_on_a_gpu_a_replayed_muon_is_torchs_own(capsys: pytest.CaptureFixture[str]) -> None:
    for mine, true in replayed_beside_torchs("cuda"):
        torch.testing.assert_close(mine, true, rtol=0, atol=1e-5)
    assert "" == capsys.readouterr().err
