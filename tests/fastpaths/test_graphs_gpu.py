"""Real CUDA graphs (`make test-gpu`): the same bits, several keys in one pool, breaks, and a capture that fails."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fuseproof.fastpaths.graph_device import CudaCapture
from fuseproof.fastpaths.graph_state import ModuleState
from fuseproof.fastpaths.graphs import GraphRunner

pytestmark = pytest.mark.gpu

WIDTH, HEADS = 256, 4


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


class Block(nn.Module):
    """Norms, matrices, attention and GELU, as a transformer's block has them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU("tanh"), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, shift: torch.Tensor | None = None) -> torch.Tensor:
        hidden = self.norm(x) if shift is None else self.norm(x) + shift
        query, key, value = self.qkv(hidden).unflatten(-1, (3, HEADS, -1)).unbind(-3)
        attended = F.scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm(x))


@pytest.fixture(params=[torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def block(request: pytest.FixtureRequest) -> Block:
    torch.manual_seed(0)
    return Block().to("cuda", request.param).eval()


def rows(block: Block, count: int = 77, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    weight = block.out.weight
    return torch.randn(1, count, WIDTH, generator=generator, device="cuda", dtype=weight.dtype)


def make_runner(block: Block, **settings: Any) -> GraphRunner:
    state = ModuleState(block)
    device = CudaCapture(torch.device("cuda"))
    function = settings.pop("function", block.forward)
    return GraphRunner(function, name="block", device=device, state=state, explain_state=state.explain, **settings)


def assert_same_bits(expected: torch.Tensor, result: torch.Tensor) -> None:
    integers = torch.int16 if expected.dtype is torch.bfloat16 else torch.int32
    assert expected.stride() == result.stride()
    assert torch.equal(expected.view(integers), result.view(integers))


def test_a_graph_gives_the_eager_bits_for_new_values(block: Block) -> None:
    graphed = make_runner(block)
    with graphed.capturing():
        assert_same_bits(block(rows(block)), graphed(rows(block)))
    kept = graphed(rows(block, seed=1))
    for seed in range(2, 6):
        assert_same_bits(block(rows(block, seed=seed)), graphed(rows(block, seed=seed)))
    assert_same_bits(block(rows(block, seed=1)), kept)
    report = graphed.report()
    assert (1, 5, 0, 0, None) == tuple(report[key] for key in ("captured", "replayed", "missed", "rejected", "reason"))
    assert report["pool_bytes"] > 0


def test_two_keys_share_one_pool(block: Block) -> None:
    graphed = make_runner(block)
    shift = torch.full((WIDTH,), 0.5, device="cuda", dtype=block.out.weight.dtype)
    with graphed.capturing():
        graphed(rows(block, 512))
        alone = graphed.report()["pool_bytes"]
        graphed(rows(block, 256), shift)
    assert graphed.report()["pool_bytes"] < 2 * alone
    for seed in range(3):
        assert_same_bits(block(rows(block, 512, seed)), graphed(rows(block, 512, seed)))
        assert_same_bits(block(rows(block, 256, seed), shift), graphed(rows(block, 256, seed), shift))
    assert (2, 6) == (graphed.report()["captured"], graphed.report()["replayed"])


def test_new_values_in_the_weights_are_seen_and_moved_weights_drop_the_graph(block: Block) -> None:
    graphed = make_runner(block)
    with graphed.capturing():
        graphed(rows(block))
    block.out.weight.mul_(1.5)
    assert_same_bits(block(rows(block)), graphed(rows(block)))
    block.out.weight.data = block.out.weight * 2
    assert_same_bits(block(rows(block)), graphed(rows(block)))
    report = graphed.report()
    assert (1, 1, 1) == (report["replayed"], report["rejected"], report["missed"])
    assert "out.weight moved after capture" in report["reason"]


def test_segments_around_an_eager_call(block: Block) -> None:
    graphed = make_runner(block)
    seen: list[float] = []

    def attention_out(x: torch.Tensor) -> torch.Tensor:
        seen.append(float(x.float().abs().sum()))  # waits for the device: no graph could hold it
        return F.linear(x, block.out.weight, block.out.bias)

    eager = block.out.forward
    block.out.forward = graphed.break_around(attention_out, "out")  # type: ignore[method-assign]
    with graphed.capturing():
        graphed(rows(block))
    results = [graphed(rows(block, seed=seed)) for seed in range(1, 4)]
    replayed, captured = seen[-3:], graphed.report()
    block.out.forward = eager  # type: ignore[method-assign]
    seen.clear()
    for seed, result in enumerate(results, start=1):
        assert_same_bits(block(rows(block, seed=seed)), result)
    assert (1, 2, 3) == (captured["captured"], captured["segments"], captured["replayed"])
    assert 3 == len(set(replayed))


def test_breaks_at_both_ends_and_in_a_row(block: Block) -> None:
    parts: dict[str, Any] = {}
    graphed = make_runner(block, function=lambda x: parts["add"](block(parts["add"](parts["add"](x)))))
    parts["add"] = graphed.break_around(lambda x: x + 1, "add")
    with graphed.capturing():
        graphed(rows(block))
    x = rows(block, seed=8)
    assert_same_bits(block(x + 1 + 1) + 1, graphed(x))
    assert (1, 4) == (graphed.report()["captured"], graphed.report()["segments"])


@pytest.mark.parametrize("failure", ["reads a value", "raises", "runs out of memory"])
def test_a_failed_capture_leaves_cuda_usable(block: Block, failure: str) -> None:
    calls: list[int] = []

    def fails(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        result = block(x)
        if len(calls) == 2 and failure == "raises":
            raise OSError("no")
        if len(calls) == 2 and failure == "runs out of memory":
            torch.empty(1 << 60, dtype=torch.uint8, device=x.device)
        return result * 2 if failure != "reads a value" or bool(result.isfinite().all()) else result

    broken, sound = make_runner(block, function=fails), make_runner(block)
    with broken.capturing():
        assert_same_bits(block(rows(block)) * 2, broken(rows(block)))
    assert (0, 1) == (broken.report()["captured"], broken.report()["rejected"])
    torch.cuda.synchronize()
    # The default generator, the allocator on several streams, and the next capture all work as before.
    torch.manual_seed(3)
    first = torch.randn(1000, device="cuda")
    torch.manual_seed(3)
    assert torch.equal(first, torch.randn(1000, device="cuda"))
    side, here = torch.cuda.Stream(), torch.cuda.current_stream()
    with torch.cuda.stream(side):
        elsewhere = torch.ones(1 << 20, device="cuda") * 2
        elsewhere.record_stream(here)
    side.synchronize()
    del elsewhere
    gc.collect()
    torch.cuda.empty_cache()
    with sound.capturing():
        sound(rows(block))
    with broken.capturing():
        assert_same_bits(block(rows(block)) * 2, broken(rows(block)))
    assert_same_bits(block(rows(block, seed=4)), sound(rows(block, seed=4)))
    assert (1, 1) == (sound.report()["captured"], sound.report()["replayed"])


def test_a_capture_of_somebody_elses_is_left_alone(block: Block) -> None:
    graphed, x = make_runner(block), rows(block)
    with graphed.capturing():
        graphed(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = graphed(x)
    graph.replay()
    assert_same_bits(block(x), result)
    assert 1 == graphed.report()["unsupported"]


def test_replays_on_another_stream_wait_for_the_last_one(block: Block) -> None:
    graphed = make_runner(block)
    with graphed.capturing():
        graphed(rows(block))
    inputs = [rows(block, seed=seed) for seed in range(20)]
    expected = [block(x) for x in inputs]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    results = []
    for index, x in enumerate(inputs):
        with torch.cuda.stream(streams[index % 2]):
            results.append(graphed(x))
    torch.cuda.synchronize()
    for eager, result in zip(expected, results, strict=True):
        assert_same_bits(eager, result)


def test_cpu_tensors_run_eagerly(block: Block) -> None:
    graphed = make_runner(block, function=lambda x: x + 1)
    with graphed.capturing():
        assert torch.equal(torch.ones(3) + 1, graphed(torch.ones(3)))
    assert "x is on cpu; graphs are captured on cuda:0" in graphed.report()["reason"]


def test_dropped_graphs_give_their_memory_back(block: Block) -> None:
    graphed = make_runner(block)
    with graphed.capturing():
        graphed(rows(block, 4096))
    held = torch.cuda.memory_reserved()
    assert graphed.report()["pool_bytes"] > 0
    graphed.drop_graphs()
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < held
