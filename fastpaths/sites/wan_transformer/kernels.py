"""The kernels of the rewritten blocks, each behind the gate of its site."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.operations import GatedOperation
from fuseproof.fastpaths.sites.wan_transformer.blocks import Operations


def gated_operations(gates: Mapping[str, Gate], kernels_of_site: Mapping[str, tuple[str, ...]]) -> Operations:
    """One :class:`GatedOperation` a kernel; a site without a gate runs its reference."""
    return Operations(
        **{
            name: GatedOperation(name, importlib.import_module(f"fuseproof.fastpaths.kernels.{name}"), gates.get(site))
            for site, names in kernels_of_site.items()
            for name in names
        }
    )
