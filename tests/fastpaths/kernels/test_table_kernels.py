"""The kernels over rows of a Wan block, interpreted, bit for bit against eager's chain with a card's LayerNorm."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from triton import knobs

from fuseproof.fastpaths.kernels import (
    residual_table_layernorm_modulate,
    table_gated_residual,
    table_gated_residual_layernorm,
    table_gated_residual_table_layernorm_modulate,
    table_layernorm_modulate,
    table_rows,
)
from tests.fastpaths.kernels.row_models import EPS, NAN, bits, normal, poisoned, special_values
from tests.fastpaths.kernels.wan_transformer_models import (
    SCALE,
    SHIFT,
    arguments,
    norms_of_cuda,
)

KERNELS = {
    "table_layernorm_modulate": table_layernorm_modulate,
    "table_gated_residual": table_gated_residual,
    "table_gated_residual_layernorm": table_gated_residual_layernorm,
    "residual_table_layernorm_modulate": residual_table_layernorm_modulate,
    "table_gated_residual_table_layernorm_modulate": table_gated_residual_table_layernorm_modulate,
}
WITH_TWO_OUTPUTS = tuple(KERNELS)[2:]
CASES = {
    "one-row-one-vector": (1, 1, 4, 1),
    "three-rows-cut-round": (1, 3, 12, 1),
    "two-samples": (2, 3, 256, 1),
    "two-embeddings": (1, 5, 256, 2),
    "two-samples-two-embeddings": (2, 3, 256, 2),
    "three-rounds-two-embeddings": (1, 2, 1536, 2),
    "one-embedding-a-row": (1, 3, 516, 3),
    "six-rounds": (1, 2, 3072, 1),
    "six-rounds-two-embeddings": (1, 1, 3072, 2),
    "wider-than-pairs": (1, 1, 4100, 1),
}


@pytest.fixture(autouse=True)
def _norms_of_cuda(monkeypatch):
    norms_of_cuda(monkeypatch)


def as_tuple(results):
    return results if isinstance(results, tuple) else (results,)


def assert_bits(expected, actual):
    for wanted, result in zip(as_tuple(expected), as_tuple(actual), strict=True):
        assert torch.bfloat16 == result.dtype
        assert torch.equal(bits(wanted), bits(result))


def outputs_of(name, *shape):
    return {output: poisoned(*shape) for output in (("out", "normed") if name in WITH_TWO_OUTPUTS else ("out",))}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("name", KERNELS)
def test_bits_are_those_of_cuda(name, case):
    given, kernel = arguments(name, *case), KERNELS[name]
    before = [value.clone() for value in given if isinstance(value, torch.Tensor)]
    outputs = outputs_of(name, *case[:3])
    assert kernel.reject_reason(*given, **outputs) is None
    results = as_tuple(kernel.fused(*given, **outputs))
    assert [output.data_ptr() for output in outputs.values()] == [result.data_ptr() for result in results]
    assert_bits(kernel.reference(*given), results)
    assert_bits(results, kernel.fused(*given))
    after = [value for value in given if isinstance(value, torch.Tensor)]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("name", KERNELS)
def test_an_embedding_in_fp32(name):
    given = arguments(name, 1, 3, 256, 2, torch.float32)
    assert KERNELS[name].reject_reason(*given) is None
    assert_bits(KERNELS[name].reference(*given), KERNELS[name].fused(*given))


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", KERNELS)
def test_rows_side_by_side_change_nothing(name, rows, monkeypatch):
    given = arguments(name, 2, 3, 516, 2)
    wanted = KERNELS[name].reference(*given)
    monkeypatch.setattr(table_rows, "rows_per_program", lambda _: rows)
    monkeypatch.setattr(KERNELS[name], "rows_per_program", lambda _: rows)
    assert_bits(wanted, KERNELS[name].fused(*given))


@pytest.mark.parametrize("name", KERNELS)
def test_in_place(name):
    given = arguments(name, 2, 3, 256, 2)
    wanted = KERNELS[name].reference(*given)
    outputs = {"out": given[0]} | ({"normed": given[1]} if name in WITH_TWO_OUTPUTS else {})
    assert KERNELS[name].reject_reason(*given, **outputs) is None
    assert_bits(wanted, KERNELS[name].fused(*given, **outputs))


@pytest.mark.parametrize("name", KERNELS)
def test_strided_rows_and_parts_of_buffers(name):
    """[S, B, D] in memory, tables and embeddings that are parts of others, outputs within a longer and wider buffer."""
    hidden, *rest = arguments(name, 2, 3, 256, 2)
    of_rows = hidden.transpose(0, 1).contiguous().transpose(0, 1)
    place = 1 if name == "table_layernorm_modulate" else 2
    wide_table = torch.full((1, 6, 300), NAN)
    wide_table[..., 5:261] = rest[place - 1]
    wide_temb = torch.full((2, 2, 6, 300), NAN).bfloat16()
    wide_temb[..., 3:259] = rest[place]
    rest[place - 1], rest[place] = wide_table[..., 5:261], wide_temb[..., 3:259]
    buffers = {output: poisoned(2, 5, 272) for output in outputs_of(name, 1)}
    outputs = {output: buffer[:, 1:4, 16:] for output, buffer in buffers.items()}
    assert KERNELS[name].reject_reason(of_rows, *rest, **outputs) is None
    assert_bits(KERNELS[name].reference(of_rows, *rest), KERNELS[name].fused(of_rows, *rest, **outputs))
    for buffer in buffers.values():
        assert buffer[:, [0, 4]].isnan().all()
        assert buffer[..., :16].isnan().all()


def test_the_output_norm_has_one_vector_for_both_rows_of_its_table():
    """``next_temb`` [B, R, 1, D] beside a table [1, 2, D]: alone, and joined with the last block's residual."""
    of_out = torch.randn(1, 2, 256, generator=torch.Generator().manual_seed(9))
    hidden, update, table, temb, tokens, gate, *_ = arguments(
        "table_gated_residual_table_layernorm_modulate", 2, 3, 256, 2
    )
    one = temb[:, :, 3:4]
    alone = (hidden, of_out, one, tokens, 0, 1, EPS)
    assert table_layernorm_modulate.reject_reason(*alone) is None
    shift, scale = ((of_out[0, k] + one[:, :, 0].float())[:, tokens] for k in range(2))
    wanted = (F.layer_norm(hidden.float(), (256,)) * (1 + scale) + shift).bfloat16()
    assert_bits(wanted, table_layernorm_modulate.reference(*alone))
    assert_bits(wanted, table_layernorm_modulate.fused(*alone))
    joined = (hidden, update, table, temb, tokens, gate, of_out, one, 0, 1, EPS)
    kernel = table_gated_residual_table_layernorm_modulate
    assert kernel.reject_reason(*joined) is None
    assert_bits(kernel.reference(*joined), kernel.fused(*joined))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_of_the_affine_norm_in_either_dtype(dtype):
    given = list(arguments("table_gated_residual_layernorm", 1, 3, 256))
    given[6:8] = (value.to(dtype) for value in given[6:8])
    assert table_gated_residual_layernorm.reject_reason(*given) is None
    assert_bits(table_gated_residual_layernorm.reference(*given), table_gated_residual_layernorm.fused(*given))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", KERNELS)
def test_special_values(name):
    """Subnormals, zeros of both signs and huge numbers in one row each; an infinity, a NaN."""
    given = list(arguments(name, 1, 5, 512))
    rows = special_values(1, 5, 512)
    rows[0, 0] = rows[0, 0].where(rows[0, 0].abs() < 1e9, torch.ones(()).bfloat16())
    rows[0, 1] = rows[0, 1].view(torch.int16).bitwise_and(0x80FF - 0x10000).view(torch.bfloat16)
    rows[0, 2] = 3.140625
    rows[0, 3, 1], rows[0, 4, 2] = float("inf"), NAN
    given[0] = rows
    wanted, results = as_tuple(KERNELS[name].reference(*given)), as_tuple(KERNELS[name].fused(*given))
    for expected, result in zip(wanted, results, strict=True):
        assert torch.equal(expected.isnan(), result.isnan())
        assert torch.equal(bits(expected.nan_to_num(1.0)), bits(result.nan_to_num(1.0)))
    assert not wanted[-1][0, :3].isnan().any()


def test_the_expected_values_are_layer_norm():
    """At most one value in a thousand is another bf16 neighbour than CPU eager, which sums in another order."""
    hidden, table, temb, tokens, *rest = arguments("table_layernorm_modulate", 1, 8, 1536)
    result = table_layernorm_modulate.reference(hidden, table, temb, tokens, *rest)
    shift, scale = (table[:, index] + temb[:, 0, index].float() for index in (SHIFT, SCALE))
    plain = torch.layer_norm(hidden.float(), (1536,), eps=EPS) * (1 + scale) + shift
    distance = (bits(plain.bfloat16()).int() - bits(result).int()).abs()
    assert distance.max() <= 1
    assert distance.count_nonzero() * 1000 <= distance.numel()


HIDDEN, TABLE, TEMB, TOKENS = normal(0, 1, 3, 8), torch.zeros(1, 6, 8), torch.zeros(1, 1, 6, 8).bfloat16(), None
OFF = torch.zeros(1, 3, 12).bfloat16()[..., 4:]
REASONS = {
    "dtype": ({"hidden": HIDDEN.float()}, "hidden is float32; the kernel needs bfloat16"),
    "address": ({"hidden": OFF}, "hidden starts 8 bytes past a 16-byte address; the kernel needs 0"),
    "eps": ({"eps": 0.0}, f"eps is 0.0; the kernel needs at least {2.0**-126}"),
    "table-dtype": ({"table": TABLE.bfloat16()}, "table is bfloat16; the kernel needs float32"),
    "table-dimensions": ({"table": TABLE[0]}, "table has 2 dimensions; the kernel needs 3: [1, K, D]"),
    "table-shape": ({"table": TABLE[..., :4]}, "table has shape [1, 6, 4]; the kernel needs [1, 6, 8]"),
    "table-device": ({"table": TABLE.to("meta")}, "table is on meta; the other tensors are on cpu"),
    "temb-dtype": ({"temb": TEMB.half()}, "temb is float16; the kernel needs bfloat16 or float32"),
    "temb-dimensions": ({"temb": TEMB[0]}, "temb has 3 dimensions; the kernel needs 4: [B, R, K, D]"),
    "temb-vectors": ({"temb": TEMB[:, :, :2]}, "temb has shape [1, 1, 2, 8]; the kernel needs [1, 1, 6, 8]"),
    "temb-samples": (
        {"temb": TEMB.expand(2, 1, 6, 8)},
        "temb has shape [2, 1, 6, 8]; the kernel needs [1, 1, 6, 8]",
    ),
    "no-tokens": (
        {"temb": TEMB.expand(1, 2, 6, 8)},
        "temb has 2 rows a sample without row_of_token; the kernel needs it",
    ),
    "tokens-dtype": (
        {"row_of_token": torch.zeros(3, dtype=torch.int64)},
        "row_of_token is int64; the kernel needs int32",
    ),
    "tokens-shape": (
        {"row_of_token": torch.zeros(2, dtype=torch.int32)},
        "row_of_token has shape [2]; the kernel needs [3]",
    ),
    "shift": ({"shift": 6}, "shift is 6; the kernel needs 0 to 5, a row of table"),
    "scale": ({"scale": -1}, "scale is -1; the kernel needs 0 to 5, a row of table"),
    "out": ({"out": HIDDEN[:, :2]}, "out has shape [1, 2, 8]; the kernel needs [1, 3, 8]"),
}
GOOD = {"hidden": HIDDEN, "table": TABLE, "temb": TEMB, "row_of_token": None, "shift": 0, "scale": 1, "eps": EPS}


@pytest.mark.parametrize(("changes", "expected_reason"), REASONS.values(), ids=REASONS)
def test_reject_reasons(changes, expected_reason):
    assert expected_reason == table_layernorm_modulate.reject_reason(**(GOOD | changes))


def test_reject_reasons_of_an_update_weights_and_outputs():
    hidden, update, table, temb, _, gate, weight, bias, eps = arguments("table_gated_residual_layernorm", 1, 3, 8)
    kernel = table_gated_residual_layernorm

    def reason(weight=weight, bias=bias, update=update, gate=gate, **outputs):
        return kernel.reject_reason(hidden, update, table, temb, None, gate, weight, bias, eps, **outputs)

    assert reason() is None
    assert "update has shape [1, 2, 8]; the kernel needs [1, 3, 8]" == reason(update=update[:, :2])
    assert "gate is 7; the kernel needs 0 to 5, a row of table" == reason(gate=7)
    assert "weight is float16; the kernel needs bfloat16 or float32" == reason(weight=weight.half())
    assert "bias is bfloat16; the kernel needs float32" == reason(bias=bias.bfloat16())
    unaligned = torch.zeros(9)[1:]
    assert "weight starts 4 bytes past a 16-byte address; the kernel needs 0" == reason(weight=unaligned)
    shared = poisoned(1, 3, 8)
    assert "out and normed start at the same address; the kernel needs memory of its own for each" == reason(
        out=shared, normed=shared
    )


def test_reject_reasons_of_the_norm_that_follows():
    given = list(arguments("table_gated_residual_table_layernorm_modulate", 1, 3, 8, 2))
    kernel = table_gated_residual_table_layernorm_modulate
    assert kernel.reject_reason(*given) is None
    bf16 = [*given[:6], given[6].bfloat16(), *given[7:]]
    assert "next_table is bfloat16; the kernel needs float32" == kernel.reject_reason(*bf16)
    other_rows = [*given[:7], given[7][:, :1], *given[8:]]
    assert "next_temb has 1 rows a sample; the kernel needs 2, as temb has" == kernel.reject_reason(*other_rows)
    beyond = [*given[:9], 6, EPS]
    assert "next_scale is 6; the kernel needs 0 to 5, a row of next_table" == kernel.reject_reason(*beyond)


def test_without_the_interpreter_cpu_tensors_are_declined(monkeypatch):
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    for name, kernel in KERNELS.items():
        reason = kernel.reject_reason(*arguments(name, 1, 3, 8))
        assert "hidden is on cpu; the kernel needs a CUDA device" == reason


@pytest.mark.parametrize("embeddings", [1, 2])
@pytest.mark.parametrize("name", KERNELS)
def test_the_operator_is_functional_and_has_a_fake(name, embeddings):
    given = arguments(name, 1, 3, 12, embeddings)
    operator = getattr(torch.ops.fuseproof, name)
    assert_bits(KERNELS[name].reference(*given), operator(*given))
    torch.library.opcheck(operator.default, given, test_utils=("test_schema", "test_faketensor"))
    with FakeTensorMode() as mode:
        results = operator(*(mode.from_tensor(each) if isinstance(each, torch.Tensor) else each for each in given))
    assert [((1, 3, 12), torch.bfloat16)] * len(as_tuple(results)) == [
        (tuple(result.shape), result.dtype) for result in as_tuple(results)
    ]
    with pytest.raises(ValueError, match="hidden is float32"):
        operator(given[0].float(), *given[1:])


def test_traffic_counts_everything_once():
    rows, table, temb = 2 * 3 * 12 * 2, 12 * 4, 2 * 2 * 12 * 2
    expected = {
        "table_layernorm_modulate": 2 * rows + 2 * (table + temb),
        "table_gated_residual": 3 * rows + table + temb,
        "table_gated_residual_layernorm": 4 * rows + table + temb + 2 * 12 * 4,
        "residual_table_layernorm_modulate": 4 * rows + 2 * (table + temb),
        "table_gated_residual_table_layernorm_modulate": 4 * rows + 3 * (table + temb),
    }
    assert expected == {name: kernel.traffic_bytes(*arguments(name, 2, 3, 12, 2)) for name, kernel in KERNELS.items()}
