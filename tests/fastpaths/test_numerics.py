import pytest
import torch

from fuseproof.fastpaths.numerics import float32_precision, numerics_of

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def _newer_switch():
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    yield matmul
    matmul.fp32_precision = before


@pytest.mark.usefixtures("_newer_switch")
def test_the_newer_switch_is_read_where_torch_refuses_the_older_question():
    before = float32_precision()
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    assert before != float32_precision()


def test_threads_count_on_a_cpu_and_only_there():
    threads = torch.get_num_threads()
    cpu, cuda = numerics_of(CPU), numerics_of(CUDA)
    torch.set_num_threads(threads + 1)
    try:
        assert cpu != numerics_of(CPU)
        assert cuda == numerics_of(CUDA)
    finally:
        torch.set_num_threads(threads)
