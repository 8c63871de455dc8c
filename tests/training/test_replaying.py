"""A step as one CUDA graph: what it must not do, what is said where it cannot be, and on a GPU that it is the step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from training import edit_stage, flow_stage, replaying
from training.edit_prompts import EditTemplate
from training.edit_stage import EditBatch, Tasks
from training.flow_stage import Batch
from training.geometry import FULL, SMOKE, build_text_encoder, build_transformer
from training.gradients import Tensors, step_of
from training.replaying import Replayed
from training.state import StageState
from training.tokens import LONGEST_PROMPT, Template, build_tokenizer, drawn_positions

CPU = torch.device("cpu")
WAITS = ("aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten.is_nonzero", "aten.equal")


class Watch(TorchDispatchMode):
    """Notes what a CUDA graph cannot hold: waiting for the device, and tensors of the host."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[str] = []

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        devices = {tensor.device.type for tensor in tensors if tensor.ndim}
        if name.startswith(WAITS) or "lift_fresh" in name or "cpu" in devices:
            self.noted.append(f"{name} {sorted(devices)}")
        return func(*args, **(kwargs or {}))


def models(device: torch.device, geometry: Any = SMOKE) -> tuple[StageState, Tasks]:
    tokenizer = build_tokenizer()
    modules = {"transformer": build_transformer(geometry), "text_encoder": build_text_encoder(geometry, tokenizer)}
    for module in modules.values():
        for weight in module.parameters():
            torch.nn.init.normal_(weight, std=0.05)
    modules["text_encoder"].model.visual.requires_grad_(False)
    state = StageState({name: module.to(device) for name, module in modules.items()}, {}, None)  # type: ignore[arg-type]
    edit_template = EditTemplate.of(tokenizer, geometry.side, device)
    return state, Tasks(Template.of(tokenizer, device), geometry, 0.9, edit_template)


def both_batches(device: torch.device, geometry: Any = SMOKE, seed: int = 1, count: int = 4) -> tuple[Batch, EditBatch]:
    """Any numbers: a batch to draw and one to edit."""
    generator = torch.Generator().manual_seed(seed)
    latents, given, noise = (torch.randn(count, geometry.image_tokens, 64, generator=generator) for _ in range(3))
    sigmas, ids = torch.rand(count, generator=generator), torch.full((count, LONGEST_PROMPT), -1, dtype=torch.int32)
    ids[:, :5] = torch.randint(0, 256, (count, 5), generator=generator, dtype=torch.int32)
    positions = drawn_positions(16, seed, CPU)
    drawn, edited = (
        Batch(latents, noise, sigmas, ids, positions),
        EditBatch(latents, given, noise, sigmas, ids, positions),
    )
    return Batch(*(tensor.to(device) for tensor in drawn)), EditBatch(*(tensor.to(device) for tensor in edited))


@torch.no_grad()
def test_a_step_neither_waits_for_the_device_nor_sends_to_it() -> None:
    """On tensors without values, of a device that is not the host's; the backward does what autograd does."""
    device = torch.device("meta")
    state, tasks = models(device)
    (drawn, edited), both = both_batches(device), (state.modules["transformer"], state.modules["text_encoder"])
    with Watch() as watch:
        drawing = flow_stage.flow_losses(*both, drawn, tasks.template, SMOKE)
        editing = edit_stage.edit_losses(*both, edited, tasks.edit_template, SMOKE)
    assert drawing.shape == editing.shape == (4,)
    assert not watch.noted


def one_weight() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor([2.0]))


def test_a_graph_that_cannot_be_captured_is_said_loudly_and_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    monkeypatch.setattr(replaying, "Captured", fail)
    weight = one_weight()
    step = Replayed(lambda batch: (weight * batch[0],), [weight])
    assert [6.0] == step((torch.tensor([3.0]),))[0].tolist()
    assert weight.grad is not None
    assert [3.0] == weight.grad.tolist()
    said = capsys.readouterr().err
    assert "NOT REPLAYED, SLOWER: RuntimeError: operation not permitted when stream is capturing" in said
    weight.grad = None
    step((torch.tensor([4.0]),))
    assert "" == capsys.readouterr().err, "it is not tried at every step"


class Fake:
    """What stands for a captured graph here: the step, its gradients times ``factor``."""

    factor = 1.0
    made = 0

    def __init__(self, step: Any, weights: list[torch.nn.Parameter], _batch: Any) -> None:
        self._step, self._weights = step, weights
        Fake.made += 1

    def __call__(self, batch: Any) -> Tensors:
        losses: Tensors = self._step(batch)
        for weight in self._weights:
            weight.grad = None if weight.grad is None else weight.grad * self.factor
        return losses


@pytest.mark.parametrize("factor", [0.0, 1.5, float("nan")])
def test_a_graph_with_other_gradients_is_left_out(
    factor: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(replaying, "Captured", Fake)
    monkeypatch.setattr(Fake, "factor", factor)
    weight = one_weight()
    Replayed(lambda batch: (weight * batch[0],), [weight])((torch.tensor([3.0]),))
    assert "NOT REPLAYED, SLOWER: RuntimeError: a gradient of the graph is" in capsys.readouterr().err
    assert weight.grad is not None
    assert [3.0] == weight.grad.tolist()


def test_each_shape_is_captured_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(replaying, "Captured", Fake)
    monkeypatch.setattr(Fake, "made", 0)
    weight = one_weight()
    step = Replayed(lambda batch: (weight * batch[0],), [weight])
    for values in ([1.0], [2.0], [1.0, 2.0], [3.0, 4.0]):
        weight.grad = None
        losses = step((torch.tensor(values),))
        assert [2 * value for value in values] == losses[0].tolist()
    assert 2 == Fake.made
    assert 2 == capsys.readouterr().err.count("replayed as one CUDA graph; its worst gradient is 0 % off")


@pytest.fixture
def no_cudnn_attention() -> Iterator[None]:
    """As the stages choose."""
    torch.backends.cuda.enable_cudnn_sdp(False)
    yield
    torch.backends.cuda.enable_cudnn_sdp(True)


@pytest.mark.gpu
@pytest.mark.usefixtures("no_cudnn_attention")
@pytest.mark.parametrize("task", ["drawing", "both"])
def test_on_a_gpu_a_replayed_step_has_the_losses_and_gradients_of_the_step(
    task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    device = torch.device("cuda")
    state, tasks = models(device, FULL)
    losses_of: Any = flow_stage.losses_of(state, tasks) if task == "drawing" else edit_stage.losses_of(state, tasks)
    weights = [weight for module in state.modules.values() for weight in module.parameters() if weight.requires_grad]
    replayed, plain = Replayed(losses_of, weights), step_of(losses_of)
    for seed in (1, 2):
        drawn, edited = both_batches(device, FULL, seed)
        batch = drawn if task == "drawing" else (*drawn, *edited)
        found = [loss.clone() for loss in replayed(batch)]
        gradients = [None if weight.grad is None else weight.grad.clone() for weight in weights]
        replaying.drop_gradients(weights)
        for mine, true in zip(found, plain(batch), strict=True):
            torch.testing.assert_close(mine, true, rtol=1e-3, atol=1e-3)
        for mine, weight in zip(gradients, weights, strict=True):
            assert (mine is None) == (weight.grad is None)
            if mine is not None:
                assert replaying.relative_error(mine, weight.grad) < 0.02
        replaying.drop_gradients(weights)
    assert 1 == capsys.readouterr().err.count("replayed as one CUDA graph")
