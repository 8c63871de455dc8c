from fuseproof.fastpaths import UserSite
from fuseproof.fastpaths.kernels import layernorm_modulate
calls = []
def fused(*args, **kw):
    calls.append(None)
    if len(calls) > 40: raise RuntimeError("late failure at call %d" % len(calls))
    return layernorm_modulate.reference(*args, **{k: v for k, v in kw.items() if k != "out"})
SITES = [UserSite("mine", fused=fused, replaces="layernorm_modulate")]
