import torch
from fuseproof.fastpaths import UserSite
from fuseproof.fastpaths.kernels import layernorm_modulate
def fused(*args, **kw):
    out = layernorm_modulate.reference(*args, **{k: v for k, v in kw.items() if k != "out"})
    flat = out.reshape(-1)
    flat[:1] = flat[:1] * 1.01
    return out
SITES = [UserSite("mine", fused=fused, replaces="layernorm_modulate")]
