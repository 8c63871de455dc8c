"""What comparisons of pictures and of videos say alike."""

from __future__ import annotations

from typing import Literal

from fuseproof.harness.media.metrics import Metric

Equality = Literal["file", "pixels", "different"]


class Similarities:
    """What a comparison says of its equality and its two metrics; for the dataclasses that hold these three."""

    equality: Equality
    ssim_metric: Metric
    psnr_metric: Metric

    @property
    def identical(self) -> bool:
        return self.equality != "different"

    @property
    def ssim(self) -> float | None:
        return self.ssim_metric.value

    @property
    def ssim_unavailable(self) -> str | None:
        return self.ssim_metric.unavailable

    @property
    def ssim_variant(self) -> str:
        return self.ssim_metric.variant

    @property
    def psnr_db(self) -> float | None:
        return self.psnr_metric.value

    @property
    def psnr_is_infinite(self) -> bool:
        return self.psnr_metric.is_infinite

    @property
    def psnr_unavailable(self) -> str | None:
        return self.psnr_metric.unavailable
