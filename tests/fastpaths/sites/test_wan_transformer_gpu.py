"""On the card: a few blocks at Wan 2.2 TI2V's real width, mounted against eager, with a CUDA graph of the core."""

from types import SimpleNamespace

import pytest
import torch
from diffusers import WanTransformer3DModel

from fuseproof.fastpaths import mount
from fuseproof.fastpaths.sites import wan_transformer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
EXACT = ("video_blocks", "text_keys_values", "rotary_grid", *wan_transformer.KERNELS_OF_SITE)
KEPT = frozenset(WanTransformer3DModel._keep_in_fp32_modules)
FRAMES, HEIGHT, WIDTH = 5, 30, 52
"""Of latents: 480x832 pixels, 17 frames."""
TOKENS_OF_A_FRAME = HEIGHT * WIDTH // 4


@pytest.fixture(scope="module")
def pipe():
    with torch.device("meta"):
        model = WanTransformer3DModel(
            num_attention_heads=24, in_channels=48, out_channels=48, ffn_dim=14336, num_layers=2
        )
    rope = WanTransformer3DModel(num_attention_heads=1, ffn_dim=8, num_layers=0).rope.cuda()
    model = model.to_empty(device="cuda").eval().requires_grad_(False)
    model.rope = rope  # its tables are buffers, which no checkpoint holds
    generator = torch.Generator("cuda").manual_seed(0)
    for name, parameter in model.named_parameters():
        is_norm = parameter.ndim == 1 and name.endswith("weight")
        parameter.normal_(1.0 if is_norm else 0.0, 0.1 if is_norm else 0.02, generator=generator)
        if KEPT.isdisjoint(name.split(".")):
            parameter.data = parameter.data.bfloat16()
    return SimpleNamespace(transformer=model)


def request(kind):
    """Two steps of two guidance branches."""
    generator = torch.Generator("cuda").manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, device="cuda", generator=generator).bfloat16()

    def told(value):
        if kind == "sample":
            return torch.full((1,), int(value), device="cuda")
        tokens = torch.full((1, FRAMES * TOKENS_OF_A_FRAME), value, device="cuda")
        tokens[:, : TOKENS_OF_A_FRAME if kind == "image" else 0] = 0
        return tokens

    texts = [normal(1, 512, 4096) for _ in range(2)]
    steps = [(normal(1, 48, FRAMES, HEIGHT, WIDTH), told(value)) for value in (987.0, 431.0)]
    return [
        {"hidden_states": latents, "timestep": timestep, "encoder_hidden_states": text}
        for latents, timestep in steps
        for text in texts
    ]


@pytest.mark.parametrize("kind", ["text", "image", "sample"])
@torch.no_grad()
def test_every_bit_is_eagers_and_every_kernel_runs(pipe, kind):
    calls = request(kind)
    eager = [pipe.transformer(**call).sample for call in calls]
    with mount(pipe) as mounted:
        mounted.announce_steps([calls[0]["timestep"], calls[2]["timestep"]])
        for _ in range(2):
            fused = [pipe.transformer(**call).sample for call in calls]
            assert all(torch.equal(a, b) for a, b in zip(eager, fused, strict=True))
        target = mounted.graph_target().owner
        static = target.prepare(**calls[0])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = target.run_core(*static)
        graph.replay()
        assert torch.equal(eager[0], output)
        states = {name: mounted.report()["sites"][name] for name in EXACT}
        rows = mounted.report()["sites"]["timestep_rows"]["state"]
    assert dict.fromkeys(EXACT, "fused") == {name: state["state"] for name, state in states.items()}, states
    assert ("unreached" if kind == "sample" else "fused") == rows


@torch.no_grad()
def test_a_verified_step_waits_for_nothing_and_needs_less_memory_than_eager(pipe):
    calls = request("image")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    pipe.transformer(**calls[0])
    eager_peak = torch.cuda.max_memory_allocated() - before
    with mount(pipe) as mounted:
        mounted.announce_steps([calls[0]["timestep"], calls[2]["timestep"]])
        for call in calls:
            pipe.transformer(**call)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for call in calls:
                pipe.transformer(**call)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        fused_peak = torch.cuda.max_memory_allocated() - before
    assert fused_peak < eager_peak
