"""Several linears of one input as one: their weights side by side in one buffer, under their own names.

Exact where the gate says so: each output column is the same dot product, but the library may choose another tile for
the wider matrix. A parameter becomes a view of the buffer, so state-dict names, ``load_state_dict`` and
``save_pretrained`` are what they were, and a write into one weight is a write into the buffer. Unpacked, each has
memory of its own again. A view of a parameter (``detach()``, ``data``) taken before that does not follow it there, nor
does one taken before it was packed follow it here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

ALIGNMENT_BYTES = 256
"""The largest alignment that a matrix library asks about before it chooses a kernel; fresh memory has it."""


@dataclass(frozen=True)
class PackedLinear:
    """``weight`` [outputs, inputs] and ``bias`` [outputs], or None, of several linears, in order.

    ``weights`` are their own; ``moved`` are the parameters that became views of these buffers.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    weights: tuple[nn.Parameter, ...]
    moved: tuple[nn.Parameter, ...] = ()

    def unpack(self) -> None:
        """Give every parameter that was moved here memory of its own again, where it still lies here."""
        present = (buffer for buffer in (self.weight, self.bias) if buffer is not None)
        buffers = {buffer.untyped_storage().data_ptr() for buffer in present}
        with torch.inference_mode(False), torch.no_grad():
            for parameter in self.moved:
                if parameter.untyped_storage().data_ptr() in buffers:
                    parameter.data = parameter.detach().clone()


def pack(linears: Sequence[nn.Linear]) -> PackedLinear:
    """Move the parameters of ``linears`` into one buffer; where they already lie so, take that buffer.

    What moved parameters leave behind goes back to the device at once: no request could use memory in such pieces, and
    packing never needs more than one block's worth.
    """
    weights = tuple(linear.weight for linear in linears)
    biases = tuple(linear.bias for linear in linears if linear.bias is not None)
    if biases and len(biases) != len(weights):
        raise ValueError("some of these linears have a bias and some have none; they cannot be packed together")
    moved = tuple(
        parameter
        for together in (weights, biases)
        if together and not _lie_in_one_buffer(together)
        for parameter in together
    )
    # Under inference mode the buffers, and with them the weights, would lose their count of writes.
    with torch.inference_mode(False), torch.no_grad():
        packed = PackedLinear(_side_by_side(weights), _side_by_side(biases) if biases else None, weights, moved)
    if moved and packed.weight.is_cuda:
        torch.cuda.empty_cache()
    return packed


def unpack_all(packs: list[PackedLinear]) -> None:
    """Undo ``packs``, emptying the list: no more than one of them is in memory twice, if nobody else holds them."""
    while packs:
        packed = packs.pop()
        packed.unpack()
        is_cuda = bool(packed.moved) and packed.weight.is_cuda
        del packed
        if is_cuda:
            torch.cuda.empty_cache()


def linear_into(weight: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor, out: torch.Tensor) -> None:
    """``out`` = ``F.linear(x, weight, bias)``, [B, S, N] from [B, S, K], without a copy where both are plain rows.

    The library call is the one that ``F.linear`` makes on contiguous input: addmm with the bias as its epilogue, or mm.
    """
    x_rows, out_rows = rows_of(x), rows_of(out)
    if x_rows is None or out_rows is None or not out_rows.is_contiguous():
        out.copy_(F.linear(x.contiguous(), weight, bias))
    elif bias is None:
        torch.mm(x_rows, weight.t(), out=out_rows)
    else:
        torch.addmm(bias, x_rows, weight.t(), out=out_rows)


def is_aligned(tensor: torch.Tensor) -> bool:
    """Whether a library would take this memory for fresh memory when it chooses a kernel."""
    return tensor.data_ptr() % ALIGNMENT_BYTES == 0


def rows_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """[B, S, K] as [B * S, K] where one row stride fits all samples, else None."""
    batch, length, width = tensor.shape
    if batch != 1 and tensor.stride(0) != length * tensor.stride(1):
        return None
    if tensor.stride(2) != 1:
        return None
    return tensor.as_strided((batch * length, width), (tensor.stride(1), 1))


def _side_by_side(parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    first = parameters[0]
    rows = sum(parameter.shape[0] for parameter in parameters)
    shape, stride = (rows, *first.shape[1:]), first.stride()
    if _lie_in_one_buffer(parameters):
        return first.detach().as_strided(shape, stride, first.storage_offset())
    buffer = torch.empty(shape, dtype=first.dtype, device=first.device)
    start = 0
    for parameter in parameters:
        view = buffer[start : start + parameter.shape[0]]
        view.copy_(parameter.detach())
        parameter.data = view
        start += parameter.shape[0]
    return buffer


def _lie_in_one_buffer(parameters: Sequence[nn.Parameter]) -> bool:
    if len(parameters) == 1:
        return True
    expected, storage = parameters[0].data_ptr(), parameters[0].untyped_storage().data_ptr()
    for parameter in parameters:
        if parameter.data_ptr() != expected or parameter.untyped_storage().data_ptr() != storage:
            return False
        expected += parameter.numel() * parameter.element_size()
    return True
