"""What `bench` and `verify` run of the Wan VAE is what its sites run."""

from typing import Any

import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import WanRMS_norm

from fuseproof.fastpaths import interpreter_rounding
from fuseproof.fastpaths.kernels import channel_norms
from fuseproof.fastpaths.sites.autoencoder_kl_wan.held_weights import TurnedWeights
from fuseproof.fastpaths.sites.autoencoder_kl_wan.paths import Paths
from fuseproof.pipelines.fastpath_wan_vae_workloads import WHOLE_NORM, wan_vae_calls_at


def test_a_whole_norm_is_timed_with_the_sum_that_the_site_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1, 4, 2, 3, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    norm, silu = WanRMS_norm(4, images=False).requires_grad_(requires_grad=False), torch.nn.SiLU()
    summed: list[torch.Tensor] = []
    by_torch = channel_norms.denominators

    def noted(hidden: torch.Tensor) -> torch.Tensor:
        summed.append(hidden)
        return by_torch(hidden)

    monkeypatch.setattr(channel_norms, "denominators", noted)
    timed: list[Any] = [
        call.user_site.fused
        for call in wan_vae_calls_at(4, 2, 3, 4)
        if call.layout.operation.startswith(WHOLE_NORM) and call.user_site is not None
    ]
    assert len(timed) == 6  # three pairs of dtypes, two layouts
    mounted = Paths({}, coder=None, weights=TurnedWeights()).norm(norm, x)  # type: ignore[arg-type]
    with interpreter_rounding.exact_rounding():
        for fused in timed:  # exp on a CPU is another than the interpreter's: bits are the kernel's own tests' business
            torch.testing.assert_close(fused(torch.nn.Sequential(norm, silu), x), silu(mounted))
    assert len(summed) == 1 + len(timed)
    assert all(hidden is x for hidden in summed)
