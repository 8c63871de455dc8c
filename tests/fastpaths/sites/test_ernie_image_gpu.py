"""On the card: a few blocks at ERNIE-Image's real width, mounted against eager, with a CUDA graph of the core."""

from types import SimpleNamespace

import pytest
import torch
from diffusers import ErnieImageTransformer2DModel

from fuseproof.fastpaths import mount

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
EXACT = ("stream_blocks", "rmsnorm_modulate", "gated_residual", "qk_norm_rotate_half", "geglu", "layernorm_modulate")


@pytest.fixture(scope="module")
def pipe():
    with torch.device("meta"):
        model = ErnieImageTransformer2DModel(
            hidden_size=4096, num_attention_heads=32, num_layers=2, ffn_hidden_size=12288, text_in_dim=3072
        )
    model = model.bfloat16().to_empty(device="cuda").eval().requires_grad_(False)
    generator = torch.Generator("cuda").manual_seed(0)
    for name, parameter in model.named_parameters():
        is_norm = parameter.ndim == 1 and name.endswith("weight")
        parameter.normal_(1.0 if is_norm else 0.0, 0.1 if is_norm else 0.02, generator=generator)
    return SimpleNamespace(transformer=model)


def request(batch, text_rows, side=64):
    generator = torch.Generator("cuda").manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, device="cuda", generator=generator).bfloat16()

    prompt = {
        "text_bth": normal(batch, text_rows, 3072),
        "text_lens": torch.tensor([text_rows // 3, text_rows][-batch:], device="cuda"),
    }
    return [
        {
            "hidden_states": normal(batch, 128, side, side),
            "timestep": torch.full((batch,), 900.0 - 100 * step, device="cuda").bfloat16(),
            **prompt,
        }
        for step in range(2)
    ]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("text_rows", [256, 77])
@torch.no_grad()
def test_every_bit_is_eagers_and_every_kernel_runs(pipe, batch, text_rows):
    calls = request(batch, text_rows)
    eager = [pipe.transformer(**call).sample for call in calls]
    with mount(pipe) as mounted:
        fused = [pipe.transformer(**call).sample for call in calls]
        target = mounted.graph_target().owner
        static = target.prepare(**calls[0])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = target.run_core(*static)
        graph.replay()
        states = {name: mounted.report()["sites"][name] for name in EXACT}
        assert torch.equal(eager[0], output)
    assert all(torch.equal(a, b) for a, b in zip(eager, fused, strict=True))
    assert dict.fromkeys(EXACT, "fused") == {name: state["state"] for name, state in states.items()}
