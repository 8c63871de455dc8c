"""ERNIE-Image's transformer at full size: bits of every piece, then of the forward, then times and profiles.

Usage: ernie_card.py OUT.json   (env: COMPILE=1 adds torch.compile; COMBOS="1x256,2x256,1x77,2x77"; LAYERS=n)
"""
import collections, json, os, re, sys, time
from types import SimpleNamespace
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile
from diffusers import ErnieImageTransformer2DModel
from diffusers.models.attention_dispatch import dispatch_attention_fn
from fuseproof.fastpaths import mount

START = time.perf_counter()
OUT = sys.argv[1]
dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CUDA = dev.type == "cuda"
SMALL = not CUDA
OPS = CUDA or os.environ.get("TRITON_INTERPRET") == "1"
dtype = torch.bfloat16
SIDE = 64 if CUDA else 4
D, HEADS, FFN, TEXT = (4096, 32, 12288, 3072) if CUDA else (256, 2, 512, 64)
LAYERS = int(os.environ.get("LAYERS", 36 if CUDA else 2))
if OPS and not CUDA:
    from fuseproof.fastpaths.interpreter_rounding import exact_rounding
    ROUNDING = exact_rounding(); ROUNDING.__enter__()
COMBOS = [tuple(map(int, c.split("x"))) for c in os.environ.get("COMBOS", "1x256,2x256,1x77,2x77").split(",")]
res = {"card": torch.cuda.get_device_name() if CUDA else "cpu", "torch": torch.__version__, "combos": {}}
try:
    import triton
    res["triton"] = triton.__version__
except ImportError:
    pass

def elapsed(): return time.perf_counter() - START
def sync():
    if CUDA: torch.cuda.synchronize()
def save():
    with open(OUT, "w") as f: json.dump(res, f, indent=1, default=str)
def rnd(*shape, seed=0, scale=1.0):
    g = torch.Generator(dev).manual_seed(seed)
    return (torch.randn(*shape, device=dev, generator=g) * scale).to(dtype)
def ints(t): return t.contiguous().view(torch.int16)
def diff(a, b):
    """Differing share over tensors or tuples of them; 0.0 is equal."""
    if isinstance(a, torch.Tensor): a, b = (a,), (b,)
    return max(float((ints(x) != ints(y)).float().mean()) for x, y in zip(a, b, strict=True))
def timed(fn, n):
    if not CUDA:
        t = time.perf_counter(); fn(); return (time.perf_counter() - t) * 1e3
    fn(); sync(); s, e = torch.cuda.Event(True), torch.cuda.Event(True); s.record()
    for _ in range(n): fn()
    e.record(); sync(); return s.elapsed_time(e) / n

def build():
    with torch.device("meta"):
        m = ErnieImageTransformer2DModel(hidden_size=D, num_attention_heads=HEADS, num_layers=LAYERS, ffn_hidden_size=FFN,
            in_channels=128 if CUDA else 16, out_channels=128 if CUDA else 16, text_in_dim=TEXT)
    m = m.to(dtype).to_empty(device=dev).eval().requires_grad_(False)
    g = torch.Generator(dev).manual_seed(0)
    with torch.no_grad():
        for n, p in m.named_parameters():
            if p.dim() >= 2 or n.endswith("bias"): p.normal_(0, 0.02, generator=g)
            else: p.normal_(1, 0.1, generator=g)
    return m

def op_checks(B, T):
    """Every kernel and rewritten product against eager at the shapes of (B, T): differing share, us, floor us."""
    from fuseproof.fastpaths.kernels import gated_residual as gr, gated_residual_rmsnorm_modulate as grm, geglu as gg
    from fuseproof.fastpaths.kernels import layernorm_modulate as ln, qk_norm_rotate_half as qr, rms_statistics as rs, rmsnorm_modulate as rm
    S, N = SIDE * SIDE + T, SIDE * SIDE
    out = {}
    def check(name, fused, reference, bytes_=None, reason=None):
        if reason: out[name] = {"declines": reason}; print(f"    {name}: DECLINES {reason}", flush=True); return
        try:
            want = reference(); d = diff(want, fused())
            r = {"differing": d}
            if CUDA:
                r["us"] = timed(fused, 10) * 1e3; r["eager_us"] = timed(reference, 3) * 1e3
                if bytes_: r["floor_us"] = bytes_ / 4.21e6
        except Exception as error: r = {"error": f"{type(error).__name__}: {error}"[:400]}
        out[name] = r
        print(f"    {name}: " + " ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in r.items()), flush=True)
    x, upd = rnd(S, B, D, seed=1).transpose(0, 1), rnd(B, S, D, seed=2)
    mod = rnd(B, 6 * D, seed=3, scale=0.5).chunk(6, -1); w = (1 + 0.1 * rnd(D, seed=4).float()).to(dtype); eps = 1e-6
    sh, sc, gate = mod[:3]
    room = lambda: torch.empty_like(x.transpose(0, 1)).transpose(0, 1)
    a = (x, w, sc, sh, eps)
    if OPS:
        for reduction in ("aten", "torch"):
            check(f"rmsnorm_modulate[{reduction}]", lambda: rm.launch(*a, room(), reduction), lambda: rm.reference(*a), rm.traffic_bytes(*a), rm.reject_reason(*a))
        # the order itself, where roundings hide it: fp32 means by torch against the kernel's own order in plain torch
        xf = x.transpose(0, 1).float(); sq = (xf * xf).view(S * B, -1, 32, 4)
        acc = torch.zeros_like(sq[:, 0])
        for k in range(sq.shape[1]): acc = acc + sq[:, k]
        lanes = ((acc[..., 0] + acc[..., 1]) + acc[..., 2]) + acc[..., 3]
        while lanes.shape[1] > 1: lanes = lanes[:, : lanes.shape[1] // 2] + lanes[:, lanes.shape[1] // 2 :]
        model_mean, torch_mean = lanes[:, 0] * rs.factor_of(S * B, D), xf.pow(2).mean(-1).view(-1)
        out["mean_order_model_differs"] = float((model_mean.view(torch.int32) != torch_mean.view(torch.int32)).float().mean())
        print("    mean order (model against torch), differing rows:", out["mean_order_model_differs"], flush=True)
        del xf, sq, acc
        b = (x, upd, gate, w, sc, sh, eps)
        for reduction in ("aten", "torch"):
            before, rs.REDUCTION = rs.REDUCTION, reduction
            check(f"gated_residual_rmsnorm_modulate[{reduction}]", lambda: grm.fused(*b, out=room(), modulated=room()), lambda: grm.reference(*b), grm.traffic_bytes(*b), grm.reject_reason(*b))
            rs.REDUCTION = before
        inplace = x.transpose(0, 1).clone().transpose(0, 1)
        want = grm.reference(*b); got = grm.fused(inplace, *b[1:], out=inplace, modulated=room())
        out["joined_in_place_differs"] = diff(want, got); print("    joined kernel in place:", out["joined_in_place_differs"], flush=True)
        for programs in (2, 4, 8):
            before, rs.PROGRAMS_PER_PROCESSOR = rs.PROGRAMS_PER_PROCESSOR, programs
            out[f"programs_{programs}_us"] = [timed(lambda: rm.fused(*a, room()), 10) * 1e3, timed(lambda: grm.fused(*b, out=inplace, modulated=room()), 10) * 1e3]
            rs.PROGRAMS_PER_PROCESSOR = before
            print(f"    programs per SM {programs}: alone {out[f'programs_{programs}_us'][0]:.1f} us, joined {out[f'programs_{programs}_us'][1]:.1f} us", flush=True)
        c = (x, upd, gate)
        check("gated_residual", lambda: gr.fused(*c, out=room()), lambda: x + (gate.unsqueeze(1).float() * upd.float()).to(dtype), gr.traffic_bytes(*c), gr.reject_reason(*c))
        packed = rnd(B, S, 3 * D, seed=5); q, k, v = (p.unflatten(-1, (HEADS, -1)) for p in packed.chunk(3, -1))
        ang = 50 * torch.rand(B, S, 128, device=dev, generator=torch.Generator(dev).manual_seed(6)); cos, sin = ang.cos().to(dtype), ang.sin().to(dtype)
        wq, wk = (1 + 0.1 * rnd(128, seed=7).float()).to(dtype), (1 + 0.1 * rnd(128, seed=8).float()).to(dtype)
        qa = (q, k, wq, wk, cos, sin, eps)
        for fold in ("lanes", "halves"):
            before, qr._LAUNCH = qr._LAUNCH, qr.Launch(fold=fold)
            check(f"qk_norm_rotate_half[{fold}]", lambda: qr.fused(*qa), lambda: qr.reference(*qa), qr.traffic_bytes(*qa), qr.reject_reason(*qa))
            qr._LAUNCH = before
        gu = rnd(S, B, 2 * FFN, seed=9, scale=2).flatten(0, 1).unsqueeze(0); g_, u_ = gu.chunk(2, -1)
        check("geglu", lambda: gg.fused(g_, u_), lambda: u_ * F.gelu(g_), gg.traffic_bytes(g_, u_), gg.reject_reason(g_, u_))
        codes = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype).to(dev); codes = codes[codes.isfinite()].view(1, 16, -1).contiguous()
        check("geglu over all finite bf16", lambda: gg.fused(codes, torch.ones_like(codes)), lambda: F.gelu(codes))
        la = (x[:, :N], sc, sh, eps)
        check("layernorm_modulate image rows", lambda: ln.fused(*la), lambda: ln.reference(*la), ln.traffic_bytes(*la), ln.reject_reason(*la))
    # products
    xs = x.transpose(0, 1); xb = xs.permute(1, 0, 2)
    ws = [rnd(D, D, seed=20 + i, scale=0.02) for i in range(3)]; wp = torch.cat(ws)
    check("packed qkv", lambda: tuple(t.contiguous() for t in F.linear(xb, wp).chunk(3, -1)), lambda: tuple(F.linear(xb, i) for i in ws))
    if CUDA: out["qkv_us"] = [timed(lambda: F.linear(xb, wp), 5) * 1e3, timed(lambda: [F.linear(xb, i) for i in ws], 5) * 1e3, timed(lambda: F.linear(xb.contiguous(), wp), 5) * 1e3]; print("    qkv us packed / apart / packed on contiguous rows", out["qkv_us"])
    check("qkv on contiguous rows (layout changed)", lambda: F.linear(xb.contiguous(), wp), lambda: F.linear(xb, wp))
    del ws, wp
    ws = [rnd(FFN, D, seed=30 + i, scale=0.02) for i in range(2)]; wp = torch.cat(ws)
    check("packed gate and up", lambda: tuple(t.contiguous() for t in F.linear(xs, wp).chunk(2, -1)), lambda: tuple(F.linear(xs, i) for i in ws))
    if CUDA: out["gate_up_us"] = [timed(lambda: F.linear(xs, wp), 5) * 1e3, timed(lambda: [F.linear(xs, i) for i in ws], 5) * 1e3]; print("    gate/up us packed / apart", out["gate_up_us"])
    del ws, wp
    wf, bf = rnd(128, D, seed=40, scale=0.02), rnd(128, seed=41)
    check("final matrix on image rows", lambda: F.linear(xs[:N], wf, bf), lambda: F.linear(xs, wf, bf)[:N])
    # attention: contiguous (eager) against views of a packed buffer, with the mask as diffusers makes it
    packed = rnd(B, S, 3 * D, seed=50); q, k, v = (p.unflatten(-1, (HEADS, -1)) for p in packed.chunk(3, -1))
    qc, kc, vc = (t.contiguous() for t in (q, k, v))
    lens = torch.tensor([T, max(1, T // 3)][:B], device=dev)
    for name, L in (("full", torch.full((B,), T, device=dev)), ("ragged", lens)):
        valid = torch.arange(T, device=dev).view(1, T) < L.view(B, 1)
        mask = torch.cat([torch.ones(B, N, dtype=torch.bool, device=dev), valid], 1)[:, None, None, :]
        att = lambda q, k, v, m=mask: dispatch_attention_fn(q, k, v, attn_mask=m, dropout_p=0.0, is_causal=False, backend=None, parallel_config=None)
        check(f"attention strided, {name} mask", lambda: att(q, k, v), lambda: att(qc, kc, vc))
        check(f"attention strided v only, {name} mask", lambda: att(qc, kc, v), lambda: att(qc, kc, vc))
        if name == "full":
            check("attention without the full mask", lambda: att(q, k, v, None), lambda: att(qc, kc, vc))
            fm = torch.zeros(mask.shape, dtype=dtype, device=dev)
            check("attention, additive mask", lambda: att(q, k, v, fm), lambda: att(qc, kc, vc))
    return out

GEMM = re.compile(r"gemm|cutlass|nvjet|gemv|splitK|cublas", re.I)
ATT = re.compile(r"fmha|flash|attention|cudnn_generated|sdpa|mha_", re.I)
def classify(name):
    if ATT.search(name): return "attention"
    return "other" if name.startswith("_") else "gemm" if GEMM.search(name) else "other"
def profiled(fn, steps=2):
    fn(); sync()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as p:
        for _ in range(steps): fn()
        sync()
    t = collections.defaultdict(lambda: [0, 0.0])
    for ev in p.events():
        if ev.device_type == torch.autograd.DeviceType.CUDA and not ev.name.startswith("Memcpy HtoD"):
            t[ev.name][0] += 1; t[ev.name][1] += ev.device_time if hasattr(ev, "device_time") else ev.cuda_time
    rows = [{"name": n[:110], "calls": c / steps, "ms": us / 1e3 / steps, "class": classify(n)} for n, (c, us) in t.items()]
    rows.sort(key=lambda r: -r["ms"])
    tot = {k: sum(r["ms"] for r in rows if r["class"] == k) for k in ("gemm", "attention", "other")}
    return {"kernels": sum(r["calls"] for r in rows), "totals_ms": tot, "kernel_ms": sum(tot.values()), "rows": rows[:40]}
def show_profile(name, p, rows=0):
    print(f"    {name}: {p['kernels']:.0f} kernels, {p['kernel_ms']:.1f} ms", {k: round(v, 2) for k, v in p["totals_ms"].items()}, flush=True)
    for r in p["rows"][:rows]: print("        %8.3f ms %6.1f %s %s" % (r["ms"], r["calls"], r["class"], r["name"][:90]))
def show_sites(report):
    for k, v in report.items():
        dev_ = v.get("deviation")
        print("     ", k, v["state"], (v["reason"] or "")[:400], "fused", v["calls_fused"], "eager", v["calls_eager"], "keys", v["verified_keys"], dev_ or "", flush=True)

model = build(); sync()
pipe = SimpleNamespace(transformer=model)
print("built", round(sum(p.numel() for p in model.parameters()) / 1e9, 3), "B in", round(elapsed(), 1), "s", flush=True)

def inputs(B, T, seed, text, lens):
    return dict(hidden_states=rnd(B, model.in_channels, SIDE, SIDE, seed=100 + seed), timestep=torch.full((B,), 900.0 - 100 * seed, device=dev, dtype=dtype),
                text_bth=text, text_lens=lens, return_dict=False)

def rounds(r, B, A, replay, eager):
    """Eager, fused, graph and torch.compile by turns, the order turned round each time; wall ms of 3 forwards each."""
    plain = lambda: type(model).forward(model, **A[0])[0]
    def compiled(call):
        for layer, impl in zip(model.layers, impls): layer._compiled_call_impl = impl
        try: return call()
        finally:
            for layer in model.layers: layer._compiled_call_impl = None
    arms = {"eager": lambda n: timed(plain, n), "fused": lambda n: timed(lambda: model(**A[0]), n), "graph": lambda n: timed(replay, n)}
    r["rounds_ms"] = turns(arms, 6)
    if os.environ.get("COMPILE"):
        model.compile_repeated_blocks(fullgraph=True); impls = [layer._compiled_call_impl for layer in model.layers]
        t0 = time.perf_counter(); c = compiled(plain); sync()
        r["compile_s"] = time.perf_counter() - t0; r["compile_differing"] = diff(eager, c)
        arms["compile"] = lambda n: compiled(lambda: timed(plain, n)); del arms["fused"]  # compiling makes the mount decline
        r["compile_profile"] = compiled(lambda: profiled(plain)); show_profile("compile", r["compile_profile"], 14)
        r["rounds_with_compile_ms"] = turns(arms, 6)

def turns(arms, count):
    times = {name: [] for name in arms}
    for turn in range(count):
        for name in (list(arms) if turn % 2 == 0 else list(arms)[::-1]):
            times[name].append(arms[name](3))
    mean = {k: sum(v) / len(v) for k, v in times.items()}
    for k, v in times.items(): print("    rounds", k, "%.2f" % mean[k], [round(x, 1) for x in v], "/ graph %.3f" % (mean[k] / mean["graph"]), flush=True)
    return times

def forward_checks(B, T, r, deep):
    text = rnd(B, T, TEXT, seed=200); lens = torch.tensor([max(1, T // 3), T][-B:] if B == 2 else [T], device=dev)
    A = [inputs(B, T, i, text, lens) for i in range(3)]
    call = lambda a: model(**a)[0]
    eager = [call(a) for a in A]; sync()
    r["finite"] = all(bool(e.isfinite().all()) for e in eager)
    if CUDA:
        r["eager_ms"] = [timed(lambda: call(A[0]), 3) for _ in range(2)]
        if deep: r["eager_profile"] = profiled(lambda: call(A[0])); show_profile("eager", r["eager_profile"])
        torch.cuda.reset_peak_memory_stats(); call(A[0]); r["eager_peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    m = mount(pipe); t0 = time.perf_counter()
    got = [call(a) for a in A]; sync(); r["first_calls_s"] = time.perf_counter() - t0
    got2 = [call(a) for a in A]
    r["equal"] = [diff(e, g) == 0 for e, g in zip(eager, got)]; r["differing"] = [diff(e, g) for e, g in zip(eager, got2)]
    r["sites"] = m.report()["sites"]
    print(f"  B={B} T={T} equal {r['equal']} differing {r['differing']} finite {r['finite']} first calls {r['first_calls_s']:.1f} s", flush=True)
    show_sites(r["sites"]); save()
    if CUDA:
        r["fused_ms"] = [timed(lambda: call(A[0]), 3) for _ in range(2)]
        torch.cuda.reset_peak_memory_stats(); call(A[0]); r["fused_peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        if deep: r["fused_profile"] = profiled(lambda: call(A[0])); show_profile("fused", r["fused_profile"], 24)
        try:
            fwd = m.graph_target().owner
            names = ("hidden_states", "timestep", "text_bth", "text_lens")
            inp = [fwd.prepare(*(a[n] for n in names)) for a in A]
            static = [t.clone() if isinstance(t, torch.Tensor) else t for t in inp[0]]
            s = torch.cuda.Stream(); s.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(s): fwd.run_core(*static)
            torch.cuda.current_stream().wait_stream(s); sync()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph): out = fwd.run_core(*static)
            def replay(i=0):
                for d, t in zip(static, fwd.prepare(*(A[i][n] for n in names))):
                    if isinstance(d, torch.Tensor): d.copy_(t)
                graph.replay(); return out.clone()
            r["graph_equal"] = [diff(e, replay(i)) == 0 for i, e in enumerate(eager)]
            r["graph_ms"] = [timed(replay, 3) for _ in range(2)]
            if deep: r["graph_profile"] = profiled(replay); show_profile("graph", r["graph_profile"])
            if os.environ.get("ROUNDS") and deep:
                rounds(r, B, A, lambda: replay(0), eager[0])
            del graph, out
        except Exception as error: r["graph_error"] = f"{type(error).__name__}: {error}"[:400]; print("    GRAPH", r["graph_error"])
        floor = (r.get("fused_profile") or {}).get("totals_ms")
        print("    ms eager", r["eager_ms"], "fused", r["fused_ms"], "graph", r.get("graph_ms"), "graph equal", r.get("graph_equal"), "peak GiB", r["eager_peak_gib"], r["fused_peak_gib"], flush=True)
        if floor: print("    wall / (gemm + attention): fused %.3f graph %.3f; eager / graph %.2f" % (min(r["fused_ms"]) / (floor["gemm"] + floor["attention"]), min(r.get("graph_ms", [0])) / (floor["gemm"] + floor["attention"]), min(r["eager_ms"]) / min(r.get("graph_ms", r["fused_ms"]))), flush=True)
    m.unmount(); r["eager_after_equal"] = diff(eager[0], call(A[0])) == 0
    if deep and CUDA and elapsed() < 115:
        full = torch.full((B,), T, device=dev); Q = [inputs(B, T, i, text, full) for i in range(2)]
        exact = [call(a) for a in Q]
        for quality in ():
            try:
                m = mount(pipe, quality=quality); [call(a) for a in Q]; got = [call(a) for a in Q]
                rel = [float((e.float() - g.float()).norm() / e.float().norm()) for e, g in zip(exact, got)]
                r[quality] = {"ms": [timed(lambda: call(Q[0]), 3) for _ in range(2)], "relative_error": rel, "sites": m.report()["sites"]}
                print("    quality", quality, r[quality]["ms"], "relative error", rel, flush=True)
                show_sites({k: v for k, v in m.report()["sites"].items() if k in ("unmasked_attention", "fp8_linear", "stream_blocks")})
            except Exception as error: r[quality] = f"{type(error).__name__}: {error}"[:400]; print("    quality", quality, r[quality])
            finally: m.unmount()

with torch.no_grad():
    for index, (B, T) in enumerate(COMBOS):
        if SMALL: T = {256: 8, 77: 5}[T]
        r = res["combos"][f"B{B} T{T}"] = {}
        print(f"B={B} T={T} at {elapsed():.0f} s", flush=True)
        if False: r["ops"] = op_checks(B, T); save()
        if CUDA: torch.cuda.empty_cache()
        forward_checks(B, T, r, deep=index < 2); save()
print("done in", round(elapsed(), 1), "s", flush=True)
