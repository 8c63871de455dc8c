"""On the card: LayerNorm + modulate, gated residual, and both in one, bit for bit against torch's own kernels."""

import pytest
import torch

from fuseproof.fastpaths.bits import bit_difference
from fuseproof.fastpaths.kernels import gated_residual, gated_residual_layernorm_modulate, layernorm_modulate
from tests.fastpaths.kernels.row_models import threads_apart
from tests.fastpaths.kernels.row_statistics import row_statistics

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
EPS = 1e-6
WIDTHS = (2432, 3072, 3840, 4096, 5120, 6144)
OTHER_WIDTHS = (4, 12, 132, 508, 516, 1000, 1028, 8192, 16384)
ROWS = {"one-row": (1, 1, 0), "text": (1, 512, 512), "joint": (1, 4608, 512), "odd": (2, 333, 77), "image": (2, 859, 0)}
OPERATIONS = {
    "layernorm_modulate": layernorm_modulate,
    "gated_residual": gated_residual,
    "gated_residual_layernorm_modulate": gated_residual_layernorm_modulate,
}
NORMS = {name: operation for name, operation in OPERATIONS.items() if "layernorm" in name}


@pytest.fixture(autouse=True)
def exact_rounding():
    """In place of the interpreter's fixture of this name: these tests run compiled kernels."""


@pytest.fixture
def generator():
    return torch.Generator("cuda").manual_seed(0)


def normal(generator, *shape):
    """Normal numbers in rows of very different length and mean, bf16."""
    lengths = torch.randn(*shape[:-1], 1, device="cuda", generator=generator).mul(2).exp()
    means = torch.randn(*shape[:-1], 1, device="cuda", generator=generator)
    return (torch.randn(shape, device="cuda", generator=generator) * lengths + means).bfloat16()


def poisoned(*shape):
    return torch.full(shape, float("nan"), dtype=torch.bfloat16, device="cuda")


def of_codes(generator, codes, *shape):
    """bf16 values with these bit patterns, drawn at random."""
    known = torch.tensor(codes, device="cuda", dtype=torch.int32).to(torch.int16)
    return known[torch.randint(len(codes), shape, device="cuda", generator=generator)].view(torch.bfloat16)


def assert_bits(expected, actual):
    difference = bit_difference(expected, actual)
    assert (0.0, 0) == (difference.differing_share, difference.largest_ulp)


def arguments(name, rows, update, vectors, text_rows):
    """The positional arguments of an operation; ``vectors`` are gate, scale, shift, then the same of the text."""
    gate, scale, shift, text_gate, text_scale, text_shift = vectors
    if not text_rows:
        text_gate = text_scale = text_shift = None
    return {
        "layernorm_modulate": (rows, scale, shift, EPS, text_scale, text_shift, text_rows),
        "gated_residual": (rows, update, gate, text_gate, text_rows),
        "gated_residual_layernorm_modulate": (
            rows, update, gate, scale, shift, EPS, text_gate, text_scale, text_shift, text_rows
        ),
    }[name]  # fmt: skip


def random_arguments(name, generator, batch, rows, width, text_rows):
    """Rows of their own, vectors as a modulation's ``chunk`` leaves them."""
    vectors = normal(generator, batch, 6 * width).chunk(6, dim=1)
    return arguments(
        name, normal(generator, batch, rows, width), normal(generator, batch, rows, width), vectors, text_rows
    )


def outputs_of(name, *shape):
    names = {"gated_residual_layernorm_modulate": ("out", "modulated")}.get(name, ("out",))
    return {output: poisoned(*shape) for output in names}


def assert_exact(name, given, outputs):
    """Expected values first: outputs may be the inputs."""
    operation = OPERATIONS[name]
    assert operation.reject_reason(*given, **outputs) is None
    expected = operation.reference(*given)
    assert_bits(expected, operation.fused(*given, **outputs))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("batch", "rows", "text_rows"), ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_widths_of_models(name, batch, rows, text_rows, width, generator):
    given = random_arguments(name, generator, batch, rows, width, text_rows)
    before = [value.clone() for value in given if isinstance(value, torch.Tensor)]
    outputs = outputs_of(name, batch, rows, width)
    assert_exact(name, given, outputs)
    assert_bits(before, [value for value in given if isinstance(value, torch.Tensor)])
    again = OPERATIONS[name].fused(*given)
    assert_bits(tuple(outputs.values()) if len(outputs) > 1 else outputs["out"], again)


@pytest.mark.parametrize("width", OTHER_WIDTHS)
@pytest.mark.parametrize("text_rows", [0, 1, 37, 100], ids=["none", "one", "all", "beyond"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_other_widths(name, text_rows, width, generator):
    given = random_arguments(name, generator, 2, 37, width, text_rows)
    assert_exact(name, given, outputs_of(name, 2, 37, width))


@pytest.mark.parametrize("width", [3072, 3840])
@pytest.mark.parametrize("name", NORMS)
def test_many_plain_rows(name, width, generator):
    """20,000 rows of even numbers: a wrong order of additions would show in a few values of a million."""
    rows, update = (torch.randn(1, 20_000, width, device="cuda", generator=generator).bfloat16() for _ in range(2))
    vectors = torch.randn(1, 6 * width, device="cuda", generator=generator).bfloat16().chunk(6, dim=1)
    assert_exact(name, arguments(name, rows, update, vectors, 0), outputs_of(name, 1, 20_000, width))


@pytest.mark.parametrize("shuffles", [True, False], ids=["shuffles", "spelled-out"])
@pytest.mark.parametrize("width", WIDTHS + OTHER_WIDTHS)
def test_mean_and_rstd_have_every_fp32_bit_of_aten(width, shuffles, generator):
    """Far stricter than the rows: one fp32 ulp of a mean changes few bf16 values."""
    plain = torch.randn(2000, width, device="cuda", generator=generator).bfloat16()
    x = torch.cat([normal(generator, 2000, width), plain, threads_apart(0, 2000, width).cuda()])
    _, mean, rstd = torch.ops.aten.native_layer_norm(x, [width], None, None, EPS)
    assert torch.float32 == mean.dtype
    assert_bits((mean.flatten(), rstd.flatten()), row_statistics(x, EPS, shuffles=shuffles))


@pytest.mark.parametrize("width", [516, 2432, 3072])
@pytest.mark.parametrize("name", NORMS)
def test_folds_that_are_spelled_out_give_the_same_bits(name, width, generator, monkeypatch):
    monkeypatch.setattr(NORMS[name], "is_interpreted", lambda: True)
    given = random_arguments(name, generator, 1, 333, width, 77)
    assert_exact(name, given, outputs_of(name, 1, 333, width))


@pytest.mark.parametrize("width", [12, 516, 3072])
@pytest.mark.parametrize("name", OPERATIONS)
def test_in_place(name, width, generator):
    given = random_arguments(name, generator, 2, 333, width, 77)
    assert_exact(name, given, {"out": given[0]})


@pytest.mark.parametrize("width", [12, 3072])
def test_both_results_in_place_of_both_inputs(width, generator):
    name = "gated_residual_layernorm_modulate"
    given = random_arguments(name, generator, 2, 333, width, 77)
    assert_exact(name, given, {"out": given[0], "modulated": given[1]})


@pytest.mark.parametrize("name", OPERATIONS)
def test_strided_rows_and_parts_of_buffers(name, generator):
    """[S, B, D] layouts as inputs, rows of a longer and wider buffer as outputs."""
    width = 3072
    rows = normal(generator, 333, 2, width).transpose(0, 1)
    update = normal(generator, 2, 400, width + 64)[:, 60:393, 64:]
    vectors = normal(generator, 2, 6 * width).chunk(6, dim=1)
    buffers = {output: poisoned(2, 400, width + 64) for output in outputs_of(name, 1)}
    outputs = {output: buffer[:, 60:393, 64:] for output, buffer in buffers.items()}
    assert_exact(name, arguments(name, rows, update, vectors, 77), outputs)
    for buffer in buffers.values():
        buffer[:, 60:393, 64:] = float("nan")
        assert buffer.isnan().all()


SUBNORMAL = [code | sign for code in (0, 1, 2, 3, 0x3F, 0x7F, 0x80, 0x81, 0x100) for sign in (0, 0x8000)]
ORDINARY = [0x3F80, 0xBF80, 0x3F81, 0x3FC0, 0x3B80, 0xBB80, 0x3F7F, 0x4049, 0xC049, 0x4380]
HUGE = [0x7F7F, 0xFF7F, 0x7F7E, 0x7F00, 0xFF00, 0x7E80, 0x5F80, 0xDF80]
TIES = [0x3F80 + step for step in range(0x80)] + [0x3B80, 0xBB80, 0x3C00, 0x3F00, 0x4000, 0xC000]
KINDS = {
    "subnormal": SUBNORMAL,
    "zeros": [0x0000, 0x8000],
    "ties": TIES,
    "mixed": SUBNORMAL + ORDINARY,
    "huge": HUGE + ORDINARY,
    "infinite": [*ORDINARY, 0x7F80],
    "both-infinities": [*ORDINARY, 0x7F80, 0xFF80],
    "nan": [*ORDINARY, 0x7FC0, 0xFFC1, 0x7F81],
}


@pytest.mark.parametrize("width", [516, 3072])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_special_values(name, kind, width, generator):
    """In the rows, in the vectors, and in both."""
    special = [of_codes(generator, KINDS[kind], 1, 64, width) for _ in range(2)]
    special_vectors = of_codes(generator, KINDS[kind], 1, 6 * width).chunk(6, dim=1)
    plain = [normal(generator, 1, 64, width) for _ in range(2)]
    plain_vectors = normal(generator, 1, 6 * width).chunk(6, dim=1)
    for rows, vectors in ((special, plain_vectors), (plain, special_vectors), (special, special_vectors)):
        assert_exact(name, arguments(name, *rows, vectors, 7), outputs_of(name, 1, 64, width))


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_bit_pattern_in_rows_of_like_magnitude(name, generator):
    width = 1024
    rows = torch.arange(65536, device="cuda").to(torch.int16).view(torch.bfloat16).view(1, 64, width)
    update = rows.flatten()[torch.randperm(65536, device="cuda", generator=generator)].view(1, 64, width)
    vectors = normal(generator, 1, 6 * width).chunk(6, dim=1)
    assert_exact(name, arguments(name, rows, update, vectors, 3), outputs_of(name, 1, 64, width))
    assert_exact(name, arguments(name, update, rows, vectors, 3), outputs_of(name, 1, 64, width))


@pytest.mark.parametrize("eps", [2.0**-126, 1e-12, 1e-5, 1.0])
@pytest.mark.parametrize("kind", ["zeros", "subnormal", "constant"])
def test_rows_without_variance(kind, eps, generator):
    """eps decides alone; down to the smallest that is taken."""
    x = of_codes(generator, KINDS.get(kind, [0x4049]), 1, 64, 3072)
    scale, shift = normal(generator, 1, 2 * 3072).chunk(2, dim=1)
    assert layernorm_modulate.reject_reason(x, scale, shift, eps) is None
    assert_bits(layernorm_modulate.reference(x, scale, shift, eps), layernorm_modulate.fused(x, scale, shift, eps))


@pytest.mark.parametrize("name", OPERATIONS)
def test_rows_beyond_two_to_the_31_elements(name, generator):
    """The last rows of 700,000 x 3072: a 32-bit offset would fall into others, or outside."""
    count, width, last = 700_000, 3072, 512
    rows = torch.zeros(1, count, width, dtype=torch.bfloat16, device="cuda")
    update = torch.zeros_like(rows)
    rows[:, -last:], update[:, -last:] = normal(generator, 1, last, width), normal(generator, 1, last, width)
    vectors = normal(generator, 1, 6 * width).chunk(6, dim=1)
    tail = arguments(name, rows[:, -last:], update[:, -last:], vectors, 0)
    expected = OPERATIONS[name].reference(*tail)
    actual = OPERATIONS[name].fused(*arguments(name, rows, update, vectors, 0))
    tails = tuple(part[:, -last:] for part in actual) if isinstance(actual, tuple) else actual[:, -last:]
    assert_bits(expected, tails)


def test_every_operator_compiles_without_a_break(generator):
    given = {name: random_arguments(name, generator, 1, 64, 3072, 7) for name in OPERATIONS}

    @torch.compile(fullgraph=True)
    def compiled(given):
        return (
            torch.ops.fuseproof.layernorm_modulate(*given["layernorm_modulate"]),
            torch.ops.fuseproof.gated_residual(*given["gated_residual"]),
            *torch.ops.fuseproof.gated_residual_layernorm_modulate(*given["gated_residual_layernorm_modulate"]),
        )

    expected = (
        layernorm_modulate.reference(*given["layernorm_modulate"]),
        gated_residual.reference(*given["gated_residual"]),
        *gated_residual_layernorm_modulate.reference(*given["gated_residual_layernorm_modulate"]),
    )
    assert_bits(expected, compiled(given))


def test_a_captured_launch_replays_with_new_values(generator):
    given = random_arguments("gated_residual_layernorm_modulate", generator, 1, 512, 3072, 77)
    gated_residual_layernorm_modulate.fused(*given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = gated_residual_layernorm_modulate.fused(*given)
    given[0].copy_(normal(generator, 1, 512, 3072))
    graph.replay()
    assert_bits(gated_residual_layernorm_modulate.reference(*given), outputs)
