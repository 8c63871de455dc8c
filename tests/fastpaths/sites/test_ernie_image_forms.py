"""ERNIE-Image's approximate forms, with what a CPU lacks stood in for: measured, reported, gone at lossless."""

import pytest
import torch

from fuseproof.fastpaths import mount
from fuseproof.fastpaths.call_layouts import layout_of
from fuseproof.fastpaths.graph_values import describe
from fuseproof.fastpaths.kernels import row_quantize
from fuseproof.fastpaths.matmuls import fp8_linear
from fuseproof.fastpaths.sites import ernie_image
from fuseproof.fastpaths.sites.ernie_image import blocks
from fuseproof.fastpaths.tracing import trace, without_offsets
from tests.fastpaths.small_ernie import TEXT, forwards, prompt, small_pipe, step

eager_attend = blocks.attend
FULL, RAGGED = torch.tensor([TEXT, TEXT]), torch.tensor([3, TEXT])


@pytest.fixture
def pipe(monkeypatch):
    """Approximate sites that do not decline on this CPU; kernels do, so that exact sites run their references."""
    real = ernie_image.site_reasons

    def without_approximate(transformer):
        return {name: why for name, why in real(transformer).items() if name not in ernie_image.APPROXIMATE_SITES}

    monkeypatch.setattr(ernie_image, "site_reasons", without_approximate)
    monkeypatch.setattr(row_quantize, "fused", row_quantize.reference)
    return small_pipe(torch.bfloat16)


@pytest.fixture
def masks(monkeypatch):
    """Whether each attention was given a mask; without one it rounds otherwise here, as a card's library does."""
    seen = []

    def attend(*args):
        seen.append(args[4] is not None)
        attended = eager_attend(*args)
        return attended if args[4] is not None else attended * (1 + 2**-7)

    monkeypatch.setattr(blocks, "attend", attend)
    return seen


def site(mounted, name):
    return mounted.report()["sites"][name]


def relative(candidate, expected):
    return float((candidate.float() - expected.float()).norm() / expected.float().norm())


def test_a_full_mask_is_left_out_at_extra_high_and_the_difference_is_reported(pipe, masks):
    eager = forwards(pipe, 2, batch=2, text_lens=FULL)
    with mount(pipe, quality="extra-high") as mounted:
        found = forwards(pipe, 2, batch=2, text_lens=FULL)
        state = site(mounted, "unmasked_attention")
        assert ("approximate", 2 * 2) == (state["state"], state["calls_fused"])
        assert 0 < state["deviation"]["relative_error"] < 0.05
        with mounted.at("lossless"):
            assert all(map(torch.equal, eager, forwards(pipe, 2, batch=2, text_lens=FULL)))
    assert 0 < relative(found[1], eager[1]) < 0.05
    assert not all(masks)


def test_prompts_of_different_lengths_keep_their_mask_and_their_bits(pipe, masks):
    eager = forwards(pipe, 2, batch=2, text_lens=RAGGED)
    with mount(pipe, quality="extra-high") as mounted:
        assert all(map(torch.equal, eager, forwards(pipe, 2, batch=2, text_lens=RAGGED)))
    assert all(masks)
    assert site(mounted, "unmasked_attention")["deviation"] is None, "nothing differed"


def test_a_form_too_far_from_the_exact_one_is_rejected(pipe, monkeypatch):
    eager = forwards(pipe, 2, batch=2, text_lens=FULL)
    monkeypatch.setattr(blocks, "attend", lambda *args: eager_attend(*args) * (1.0 if args[4] is not None else 3.0))
    with mount(pipe, quality="extra-high") as mounted:
        assert all(map(torch.equal, eager, forwards(pipe, 2, batch=2, text_lens=FULL)))
    assert "too far from the exact form" in site(mounted, "unmasked_attention")["reason"]


def test_whether_a_mask_is_full_is_asked_once_a_request_and_never_at_lossless(pipe, monkeypatch):
    asked = []
    compare = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: (asked.append(1), compare(self))[1])
    request = prompt(2, torch.bfloat16)
    with torch.no_grad(), mount(pipe, quality="extra-high") as mounted:
        with mounted.at("lossless"):
            pipe.transformer(**step(0, 2, torch.bfloat16), **request)
        assert [] == asked
        for seed in range(3):
            pipe.transformer(**step(seed, 2, torch.bfloat16), **request)
    assert [1] == asked


@pytest.mark.parametrize("batch", [1, 2])
def test_fp8_products_take_over_at_high(pipe, batch):
    eager = forwards(pipe, 2, batch=batch)
    with mount(pipe, quality="high") as mounted:
        found = forwards(pipe, 2, batch=batch)
        state = site(mounted, "fp8_linear")
        assert ("approximate", 2 * 2) == (state["state"], state["calls_fused"])
        assert "fp8_linear" in site(mounted, "unmasked_attention")["reason"]
        with mounted.at("lossless"):
            assert all(map(torch.equal, eager, forwards(pipe, 2, batch=batch)))
    assert 0 < relative(found[1], eager[1]) < 0.2


def test_weights_written_while_fp8_is_in_force_are_quantised_again(pipe):
    with mount(pipe, quality="high"):
        forwards(pipe, 1)
        with torch.no_grad():
            pipe.transformer.layers[0].mlp.up_proj.weight.mul_(4)
        found = forwards(pipe, 1)
    assert relative(found[0], forwards(pipe, 1)[0]) < 0.2


def test_the_product_without_a_bias_is_its_reference():
    x, weight = (torch.randn(5, 32).bfloat16() for _ in range(2))
    rows = fp8_linear.Rows(*(part[0] for part in row_quantize.reference(x.unsqueeze(0))))
    values, scale = (part[0] for part in row_quantize.reference(weight.unsqueeze(0)))
    given = (*rows, values, scale.view(1, -1), None)
    assert fp8_linear.reference(*given).shape == (5, 5)
    assert sum(one.nbytes for one in given[:4]) + 2 * 25 == fp8_linear.traffic_bytes(*given)


def test_all_that_the_core_takes_can_be_a_graphs_key(pipe):
    request = {**step(0, 2, torch.bfloat16), **prompt(2, torch.bfloat16)}
    with torch.no_grad(), mount(pipe, quality="extra-high") as mounted:
        target = mounted.graph_target()
        inputs = target.owner.prepare(**request)
        fields = [field for index, value in enumerate(inputs) for field in describe(value, f"argument {index}")]
        output = getattr(target.owner, target.attribute)(*inputs)
        with mounted.at("lossless"):
            exact = target.state()
        assert exact != target.state()
        hash((tuple(fields), exact))
    assert len(inputs) == len(fields)
    assert output.shape == request["hidden_states"].shape


def test_calls_noted_on_the_meta_device_are_those_that_the_model_makes():
    dtype, noted = torch.bfloat16, set()

    def observer(name):
        def note(operation, arguments, outputs):
            noted.add((name, without_offsets(layout_of(operation.name, arguments, outputs))))

        return note

    real, sites = small_pipe(dtype, num_layers=1), ernie_image.KERNELS_OF_SITE
    call = step(0, 2, dtype, size=(1, 2))
    with mount(real, gate="off", call_observers={name: observer(name) for name in sites}):
        forwards(real, 1, batch=2, **call)
    with torch.device("meta"):
        transformer = type(real.transformer).from_config(real.transformer.config).to(dtype).eval()
    inputs = {name: value.to("meta") for name, value in {**call, **prompt(2, dtype)}.items()}

    def run(installation):
        target = installation.graph_target
        return getattr(target.owner, target.attribute)(*target.owner.prepare(**inputs))

    assert noted == {(call.site, without_offsets(call.layout)) for call in trace(transformer, run)}
    assert set(sites) == {name for name, _ in noted}
