from fuseproof.fastpaths import UserSite
def fused(*args, **kw): raise RuntimeError("my kernel does not like this card")
SITES = [UserSite("mine", fused=fused, replaces="layernorm_modulate")]
