"""Exact replacements of eager chains, and the gate that keeps them honest.

``mount(pipe)`` works on anyone's own diffusers pipeline::

    with fuseproof.fastpaths.mount(pipe) as mounted:
        pipe("a red panda", num_inference_steps=8)
    print(mounted.report())
"""

from fuseproof.fastpaths.gates import Gate, GateMode
from fuseproof.fastpaths.mounted import Mount
from fuseproof.fastpaths.mounts import mount
from fuseproof.fastpaths.user_sites import UserSite, load_user_sites

__all__ = ["Gate", "GateMode", "Mount", "UserSite", "load_user_sites", "mount"]
