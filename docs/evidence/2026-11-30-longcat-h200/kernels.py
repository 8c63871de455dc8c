"""Bits of every kernel at real shapes, then rough times (CUDA graph of rotated inputs). OUT.json"""
import json, sys, torch, time
from fuseproof.fastpaths.kernels import layernorm_modulate as ln, gated_residual as gr, gated_residual_layernorm_modulate as grl, qk_norm_rope as qk, gelu_tanh as ge, attention_mlp_gelu as amg, guidance_step as gs
torch.set_grad_enabled(False)
dev = "cuda"; bf = torch.bfloat16
g = torch.Generator(dev).manual_seed(0)
R = lambda *s, scale=1.0: (torch.randn(*s, device=dev, generator=g) * scale).to(bf)
i16 = lambda t: t.contiguous().view(torch.int16)
def same(a, b):
    a = a if isinstance(a, tuple) else (a,); b = b if isinstance(b, tuple) else (b,)
    return [int((i16(x) != i16(y)).sum()) for x, y in zip(a, b)]
res = {"card": torch.cuda.get_device_name(), "torch": torch.__version__, "bits": [], "times": []}
def bits(name, got, want):
    d = same(got, want); res["bits"].append([name, d]); print("bits", name, d, "OK" if not any(d) else "DIFFER", flush=True)
def attempt(name, f):
    try: f()
    except Exception as e: print("FAILED", name, type(e).__name__, str(e)[:400], flush=True); res["bits"].append([name, f"{type(e).__name__}: {e}"[:300]])
def graph_time(fns, reps=20):
    for f in fns: f()
    torch.cuda.synchronize(); s = torch.cuda.Stream(); s.wait_stream(torch.cuda.current_stream())
    gph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(gph):
        for f in fns: f()
    gph.replay(); torch.cuda.synchronize(); ts = []
    for _ in range(9):
        a, b = torch.cuda.Event(True), torch.cuda.Event(True); a.record(); gph.replay(); b.record(); torch.cuda.synchronize(); ts.append(a.elapsed_time(b) * 1e3 / len(fns))
    ts.sort(); return ts[4], ts[0], ts[-1]
def timing(name, make, fused, ref, bytes_):
    n = max(2, min(40, int(400e6 / bytes_) + 1)); sets = [make() for _ in range(n)]
    src = [torch.empty(bytes_ // 2, dtype=torch.uint8, device=dev) for _ in range(n)]; dst = torch.empty_like(src[0])
    tf = graph_time([lambda s=s: fused(*s) for s in sets]); te = graph_time([lambda s=s: ref(*s) for s in sets]); tc = graph_time([lambda x=x: dst.copy_(x) for x in src])
    res["times"].append([name, tf, te, tc, bytes_]); print("time %-34s fused %.1f us [%.1f %.1f]  eager %.1f  copy of same bytes %.1f  ratio %.2f" % (name, *tf, te[0], tc[0], tf[0] / tc[0]), flush=True)
D = 3072
def k_ln():
    for DD in (2432, 3072, 3840, 4096, 5120, 6144):
        for B, S, T in ((1, 512, 0), (1, 4608, 512), (2, 333, 7)):
            x = R(B, S, DD); m = R(B, 6 * DD).chunk(6, 1); t = R(B, 6 * DD).chunk(6, 1); out = torch.full_like(x, float("nan"))
            a = (x, m[1], m[0], 1e-6, t[1], t[0], T) if T else (x, m[1], m[0], 1e-6)
            assert ln.reject_reason(*a, out=out) is None, ln.reject_reason(*a, out=out)
            bits(f"ln {DD} {B} {S} {T}", ln.fused(*a, out=out), ln.reference(*a))
    x = R(1, 512, D); sp = torch.randint(-32768, 32767, (1, 512, D), device=dev, generator=g, dtype=torch.int32).to(torch.int16).view(bf); sp = torch.where(torch.isfinite(sp.float()) & (sp.float().abs() < 1e15), sp, x)
    m = R(1, 6 * D).chunk(6, 1); bits("ln wild", ln.fused(sp, m[1], m[0], 1e-6), ln.reference(sp, m[1], m[0], 1e-6))
def k_gr():
    for B, S, T in ((1, 4608, 512), (1, 4608, 0), (2, 333, 7)):
        r, u = R(B, S, D), R(B, S, D); m = R(B, 6 * D).chunk(6, 1); t = R(B, 6 * D).chunk(6, 1)
        a = (r, u, m[2]) + ((t[2], T) if T else ()); want = gr.reference(*a); bits(f"gr {B} {S} {T}", gr.fused(*a), want)
        a = (r, u, m[2], m[1], m[0], 1e-6) + ((t[2], t[1], t[0], T) if T else ()); want = grl.reference(*a); got = grl.fused(*a); bits(f"grl {B} {S} {T}", got, want)
        got = grl.fused(*a, out=r); bits(f"grl inplace {B} {S} {T}", got, want)
def k_qk():
    for S, T in ((4608, 512), (4608, 0), (9233, 859), (333, 5)):
        for packed in (3, 7):
            p = R(1, S, packed * D); q, k, v = p[..., :3 * D].unflatten(-1, (3, 24, 128)).unbind(2)
            w = [(1 + 0.1 * torch.randn(128, device=dev, generator=g)).to(bf) for _ in range(4)]; ang = torch.randn(S, 64, device=dev, generator=g).double() * 100; cos = ang.cos().float().repeat_interleave(2, 1); sin = ang.sin().float().repeat_interleave(2, 1)
            a = (q, k, w[0], w[1], cos, sin, 1e-6) + ((w[2], w[3], T) if T else ()); want = qk.reference(*a)
            assert qk.reject_reason(*a, out_query=q, out_key=k) is None, qk.reject_reason(*a, out_query=q, out_key=k)
            bits(f"qk {S} {T} {packed}", qk.fused(*a), want); got = qk.fused(*a, out_query=q, out_key=k); bits(f"qk inplace {S} {T} {packed}", got, want)
def k_gelu():
    allv = torch.arange(65536, device=dev, dtype=torch.int32).to(torch.int16).view(bf); x = allv.view(1, 16, 4096).clone(); fin = torch.isfinite(x.float())
    w = ge.reference(x); d = i16(ge.fused(x)) != i16(w); print("gelu all values: differing finite", int((d & fin).sum()), "nonfinite", int((d & ~fin).sum())); res["bits"].append(["gelu all", [int((d & fin).sum()), int((d & ~fin).sum())]])
    x = R(1, 4608, 4 * D); want = ge.reference(x); bits("gelu inplace", ge.fused(x, out=x), want)
    p = R(1, 4608, 7 * D); a = R(1, 4608, D); want = amg.reference(a, p[..., 3 * D:]); bits("amg", amg.fused(a, p[..., 3 * D:], out=p[..., 2 * D:]), want)
def k_gs():
    for scale in (1.0, 0.02, 30.0):
        for renorm in (True, False):
            v, u, l = R(1, 4096, 64, scale=scale), R(1, 4096, 64, scale=scale), R(1, 4096, 64); dt = torch.tensor([-0.0213, 0, 0, 0], device=dev)[0]
            a = (v, u, l, dt, 4.5, renorm, 0.0); assert gs.reject_reason(*a) is None, gs.reject_reason(*a); bits(f"gs {scale} {renorm}", gs.fused(*a), gs.reference(*a))
    a = (v, None, l, dt, 1.0, True, 0.0); bits("gs no uncond", gs.fused(*a), gs.reference(*a))
    from diffusers import FlowMatchEulerDiscreteScheduler
    sch = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True); sch.set_timesteps(8, device=dev, mu=1.0); sch.set_begin_index(0)
    dts = sch.sigmas[1:] - sch.sigmas[:-1]; st = torch.stack([dts] * 4, 1)
    for i, t in enumerate(sch.timesteps[:3]):
        from fuseproof.pipelines.longcat_arithmetic import guide
        from types import SimpleNamespace as N
        v, u = R(1, 4096, 64), R(1, 4096, 64)
        want = sch.step(guide(v, u, N(guidance_scale=4.5, enable_cfg_renorm=True, cfg_renorm_min=0.0)), t, l, return_dict=False)[0]
        bits(f"gs against scheduler step {i}", gs.fused(v, u, l, st[i, 0], 4.5, True, 0.0), want); l = want
for n, f in (("ln", k_ln), ("gr", k_gr), ("qk", k_qk), ("gelu", k_gelu), ("gs", k_gs)): attempt(n, f)
def times():
    for S in (512, 4096, 4608):
        def mk():
            m = R(1, 6 * D).chunk(6, 1); return R(1, S, D), m[1], m[0], 1e-6
        timing(f"ln S={S}", mk, ln.fused, ln.reference, 4 * S * D)
    S = 4608
    def mk():
        m = R(1, 6 * D).chunk(6, 1); t = R(1, 6 * D).chunk(6, 1); return R(1, S, D), m[1], m[0], 1e-6, t[1], t[0], 512
    timing("ln text", mk, ln.fused, ln.reference, 4 * S * D)
    def mk():
        m = R(1, 6 * D).chunk(6, 1); t = R(1, 6 * D).chunk(6, 1); return R(1, S, D, scale=.1), R(1, S, D, scale=.1), m[2], m[1], m[0], 1e-6, t[2], t[1], t[0], 512
    timing("grl text", mk, lambda *a: grl.fused(*a, out=a[0]), grl.reference, 8 * S * D)
    timing("gr text", lambda: (lambda a: (a[0], a[1], a[2], a[6], 512))(mk()), lambda *a: gr.fused(*a, out=a[0]), gr.reference, 6 * S * D)
    cos = torch.randn(S, 128, device=dev); sin = torch.randn(S, 128, device=dev); w = R(128)
    for n in (3, 7):
        def mk():
            p = R(1, S, n * D); q, k, v = p[..., :3 * D].unflatten(-1, (3, 24, 128)).unbind(2); return q, k, w, w, cos, sin, 1e-6, w, w, 512
        timing(f"qk packed {n}", mk, lambda *a: qk.fused(*a, out_query=a[0], out_key=a[1]), qk.reference, 8 * S * D + 8 * S * 128 // 2 * 2)
    timing("gelu", lambda: (R(1, S, 4 * D),), lambda x: ge.fused(x, out=x), ge.reference, 16 * S * D)
    def mk(): p = R(1, S, 7 * D); return R(1, S, D), p[..., 3 * D:], p[..., 2 * D:]
    timing("attention_mlp_gelu", mk, lambda a, m, o: amg.fused(a, m, out=o), lambda a, m, o: amg.reference(a, m), 20 * S * D)
    dt = torch.tensor([-0.0213, 0, 0, 0], device=dev)[0]
    timing("guidance_step", lambda: (R(1, 4096, 64), R(1, 4096, 64), R(1, 4096, 64), dt, 4.5, True, 0.0), gs.fused, gs.reference, 8 * 4096 * 64)
attempt("times", times)
json.dump(res, open(sys.argv[1], "w"), indent=1)
