"""On the card: the kernels of Wan's transformer bit for bit against torch's own, at its shapes and at odd ones."""

import pytest
import torch

from fuseproof.fastpaths.kernels import (
    residual_table_layernorm_modulate,
    table_gated_residual,
    table_gated_residual_layernorm,
    table_gated_residual_table_layernorm_modulate,
    table_layernorm_modulate,
    table_rows,
)
from tests.fastpaths.kernels.row_models import threads_apart
from tests.fastpaths.kernels.row_statistics import row_statistics
from tests.fastpaths.kernels.test_kernels_gpu import KINDS, assert_bits, normal, of_codes, poisoned

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
EPS = 1e-6
SHIFT, SCALE, GATE, SHIFT_FFN, SCALE_FFN, GATE_FFN = range(6)
KERNELS = {
    "table_layernorm_modulate": table_layernorm_modulate,
    "table_gated_residual": table_gated_residual,
    "table_gated_residual_layernorm": table_gated_residual_layernorm,
    "residual_table_layernorm_modulate": residual_table_layernorm_modulate,
    "table_gated_residual_table_layernorm_modulate": table_gated_residual_table_layernorm_modulate,
}
WITH_TWO_OUTPUTS = tuple(KERNELS)[2:]
SHAPES = {
    "ti2v-704x1280x121": (1, 27280, 3072, 1),
    "ti2v-image-to-video": (1, 6240, 3072, 2),
    "a-timestep-a-frame": (1, 3120, 3072, 8),
    "one-row": (1, 1, 3072, 1),
    "1.3b-two-samples": (2, 1561, 1536, 1),
    "1.3b-two-timesteps": (2, 333, 1536, 2),
}
ODD_WIDTHS = (12, 516, 2432, 5120)


@pytest.fixture(autouse=True)
def exact_rounding():
    """In place of the interpreter's fixture of this name: these tests run compiled kernels."""


@pytest.fixture
def generator():
    return torch.Generator("cuda").manual_seed(0)


def plain(generator, *shape):
    return torch.randn(shape, device="cuda", generator=generator)


def tokens_of(rows, embeddings):
    """Tokens of a frame stand side by side."""
    return None if embeddings == 1 else (torch.arange(rows, device="cuda") * embeddings // rows).to(torch.int32)


def arguments(name, hidden, update, generator, embeddings=1, temb=None):
    """The positional arguments of a kernel over these rows."""
    batch, rows, width = hidden.shape
    temb = plain(generator, batch, embeddings, 6, width).bfloat16() if temb is None else temb
    of_block = (plain(generator, 1, 6, width), temb, tokens_of(rows, embeddings))
    affine = (1 + 0.2 * plain(generator, width), plain(generator, width))
    return {
        "table_layernorm_modulate": (hidden, *of_block, SHIFT, SCALE, EPS),
        "table_gated_residual": (hidden, update, *of_block, GATE_FFN),
        "table_gated_residual_layernorm": (hidden, update, *of_block, GATE, *affine, EPS),
        "residual_table_layernorm_modulate": (hidden, update, *of_block, SHIFT_FFN, SCALE_FFN, EPS),
        "table_gated_residual_table_layernorm_modulate": (
            hidden, update, *of_block, GATE_FFN, plain(generator, 1, 6, width), temb, SHIFT, SCALE, EPS
        ),
    }[name]  # fmt: skip


def random_arguments(name, generator, batch, rows, width, embeddings=1):
    hidden, update = (normal(generator, batch, rows, width) for _ in range(2))
    return arguments(name, hidden, update, generator, embeddings)


def outputs_of(name, *shape):
    return {output: poisoned(*shape) for output in (("out", "normed") if name in WITH_TWO_OUTPUTS else ("out",))}


def assert_exact(name, given, **outputs):
    """Expected values first: outputs may be the inputs."""
    assert KERNELS[name].reject_reason(*given, **outputs) is None
    expected = KERNELS[name].reference(*given)
    assert_bits(expected, KERNELS[name].fused(*given, **outputs))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", KERNELS)
def test_the_shapes_of_models(name, shape, generator):
    given = random_arguments(name, generator, *shape)
    before = [value.clone() for value in given if isinstance(value, torch.Tensor) and value.is_floating_point()]
    assert_exact(name, given, **outputs_of(name, *shape[:3]))
    after = [value for value in given if isinstance(value, torch.Tensor) and value.is_floating_point()]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert_bits(KERNELS[name].fused(*given), KERNELS[name].fused(*given))


@pytest.mark.parametrize("name", KERNELS)
def test_many_plain_rows(name, generator):
    """20,000 rows of even numbers: a wrong order of additions would show in a few values of a million."""
    hidden, update = (plain(generator, 1, 20_000, 3072).bfloat16() for _ in range(2))
    assert_exact(name, arguments(name, hidden, update, generator), **outputs_of(name, *hidden.shape))


@pytest.mark.parametrize("width", ODD_WIDTHS)
@pytest.mark.parametrize("name", KERNELS)
def test_odd_widths(name, width, generator):
    assert_exact(name, random_arguments(name, generator, 2, 37, width, 3), **outputs_of(name, 2, 37, width))


@pytest.mark.parametrize("width", [256, 516, 1536, 2432, 3072, 5120])
def test_aten_sums_fp32_rows_in_the_order_of_bf16_ones(width, generator):
    """Mean and rstd, every fp32 bit: far stricter than rows of bf16."""
    x = torch.cat([normal(generator, 2000, width), plain(generator, 2000, width).bfloat16()])
    x = torch.cat([x, threads_apart(0, 2000, width).cuda()])
    _, mean, rstd = torch.ops.aten.native_layer_norm(x.float(), [width], None, None, EPS)
    assert_bits((mean.flatten(), rstd.flatten()), row_statistics(x, EPS, shuffles=True))


@pytest.mark.parametrize("embeddings", [1, 2])
@pytest.mark.parametrize("name", KERNELS)
def test_an_embedding_in_fp32(name, embeddings, generator):
    hidden, update = (normal(generator, 2, 333, 1536) for _ in range(2))
    temb = plain(generator, 2, embeddings, 6, 1536)
    assert_exact(name, arguments(name, hidden, update, generator, embeddings, temb), **outputs_of(name, *hidden.shape))


@pytest.mark.parametrize("embeddings", [1, 2])
def test_the_output_norm(embeddings, generator):
    """One vector of the embedding for both rows of the table, alone and joined with the last block's residual."""
    name = "table_gated_residual_table_layernorm_modulate"
    given = list(random_arguments(name, generator, 1, 1560, 3072, embeddings))
    given[6:10] = plain(generator, 1, 2, 3072), plain(generator, 1, embeddings, 1, 3072).bfloat16(), 0, 1
    assert_exact(name, given, **outputs_of(name, 1, 1560, 3072))
    alone = (given[0], given[6], given[7], given[4], 0, 1, EPS)
    assert_exact("table_layernorm_modulate", alone, out=poisoned(1, 1560, 3072))


def test_weights_of_the_affine_norm_in_bf16(generator):
    name = "table_gated_residual_layernorm"
    given = list(random_arguments(name, generator, 1, 333, 3072))
    given[6:8] = (value.bfloat16() for value in given[6:8])
    assert_exact(name, given, **outputs_of(name, 1, 333, 3072))


@pytest.mark.parametrize("name", KERNELS)
def test_folds_that_are_spelled_out_and_one_row_a_program_give_the_same_bits(name, generator, monkeypatch):
    given = random_arguments(name, generator, 1, 333, 516, 2)
    monkeypatch.setattr(table_rows, "is_interpreted", lambda: True)
    assert_exact(name, given)
    monkeypatch.undo()
    for module in (table_rows, KERNELS[name]):
        monkeypatch.setattr(module, "rows_per_program", lambda _: 1)
    assert_exact(name, given)


@pytest.mark.parametrize("name", KERNELS)
def test_in_place(name, generator):
    given = random_arguments(name, generator, 2, 333, 3072, 2)
    assert_exact(name, given, out=given[0], **({"normed": given[1]} if name in WITH_TWO_OUTPUTS else {}))


@pytest.mark.parametrize("name", KERNELS)
def test_strided_rows_and_parts_of_buffers(name, generator):
    width = 3072
    hidden = normal(generator, 333, 2, width).transpose(0, 1)
    update = normal(generator, 2, 400, width + 64)[:, 60:393, 64:]
    temb = plain(generator, 2, 2, 8, width).bfloat16()[:, :, 1:7]
    buffers = {output: poisoned(2, 400, width + 64) for output in outputs_of(name, 1)}
    outputs = {output: buffer[:, 60:393, 64:] for output, buffer in buffers.items()}
    assert_exact(name, arguments(name, hidden, update, generator, 2, temb), **outputs)
    for buffer in buffers.values():
        buffer[:, 60:393, 64:] = float("nan")
        assert buffer.isnan().all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", KERNELS)
def test_special_values(name, kind, generator):
    """In the rows, in the embedding, and in both."""
    special, usual = (
        [values(1, 64, 3072) for _ in range(2)]
        for values in (
            lambda *shape: of_codes(generator, KINDS[kind], *shape),
            lambda *shape: normal(generator, *shape),
        )
    )
    embedding = of_codes(generator, KINDS[kind], 1, 1, 6, 3072)
    for rows, temb in ((special, None), (usual, embedding), (special, embedding)):
        assert_exact(name, arguments(name, *rows, generator, 1, temb), **outputs_of(name, 1, 64, 3072))


def test_sums_of_products_are_not_contracted(generator):
    """Gates and shifts for which a sum without contraction is 0 almost everywhere."""
    hidden, update = (plain(generator, 1, 1, 3072).bfloat16() for _ in range(2))
    table, temb = plain(generator, 1, 6, 3072), torch.zeros(1, 1, 6, 3072, device="cuda").bfloat16()
    table[0, GATE] = (hidden.float() / update.float())[0, 0]
    residual = -(update.float() * table[0, GATE]).bfloat16()
    given = (residual, update, table, temb, None, GATE)
    assert_exact("table_gated_residual", given)
    assert (table_gated_residual.fused(*given) == 0).float().mean() > 0.5
    normed = table_rows.normalized(hidden, EPS)
    table[0, SHIFT] = -(normed * (1 + table[0, SCALE]))[0, 0]
    given = (hidden, table, temb, None, SHIFT, SCALE, EPS)
    assert_exact("table_layernorm_modulate", given)
    assert not table_layernorm_modulate.fused(*given).any()


def test_weights_of_the_norm_are_contracted(generator):
    """A bias for which the sum would be 0 without contraction."""
    name = "table_gated_residual_layernorm"
    given = list(random_arguments(name, generator, 1, 1, 3072))
    new = table_gated_residual.reference(*given[:6])
    given[7] = -(table_rows.normalized(new, EPS) * given[6])[0, 0]
    assert_exact(name, given)
    assert (KERNELS[name].fused(*given)[1] != 0).float().mean() > 0.9


@pytest.mark.parametrize("name", KERNELS)
def test_rows_beyond_two_to_the_31_elements(name, generator):
    """The last rows of 700,000 x 3072: a 32-bit offset would fall into others, or outside."""
    count, width, last = 700_000, 3072, 512
    hidden = torch.zeros(1, count, width, dtype=torch.bfloat16, device="cuda")
    update = torch.zeros_like(hidden)
    hidden[:, -last:], update[:, -last:] = normal(generator, 1, last, width), normal(generator, 1, last, width)
    given = arguments(name, hidden, update, generator)
    tail = [
        value[:, -last:] if isinstance(value, torch.Tensor) and value.ndim == 3 and value.shape[1] == count else value
        for value in given
    ]
    expected, actual = KERNELS[name].reference(*tail), KERNELS[name].fused(*given)
    tails = tuple(part[:, -last:] for part in actual) if isinstance(actual, tuple) else actual[:, -last:]
    assert_bits(expected, tails)


@pytest.mark.parametrize("name", KERNELS)
def test_a_captured_launch_replays_with_new_values(name, generator):
    given = random_arguments(name, generator, 1, 512, 3072, 2)
    KERNELS[name].fused(*given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = KERNELS[name].fused(*given)
    given[0].copy_(normal(generator, 1, 512, 3072))
    graph.replay()
    assert_bits(KERNELS[name].reference(*given), outputs)


@pytest.mark.parametrize("name", KERNELS)
def test_every_operator_compiles_without_a_break(name, generator):
    given = random_arguments(name, generator, 1, 64, 3072, 2)
    operator = getattr(torch.ops.fuseproof, name)

    @torch.compile(fullgraph=True)
    def compiled(given):
        return operator(*given)

    assert_bits(KERNELS[name].reference(*given), compiled(given))
