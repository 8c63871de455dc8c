"""Real-size LongCat transformer: bits, then times, then profile. Usage: p2_forward.py OUT.json [text image]..."""
import json, os, re, sys, time, collections
import torch
from fuseproof.fastpaths.sites.longcat_image.hoists import CallArguments
from types import SimpleNamespace
from torch.profiler import profile, ProfilerActivity
from diffusers import LongCatImageTransformer2DModel
from fuseproof.fastpaths import mount

OUT = sys.argv[1]
SIZES = [(512, 4096)] if len(sys.argv) < 4 else [(int(a), int(b)) for a, b in zip(sys.argv[2::2], sys.argv[3::2])]
dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SMALL = dev.type == "cpu"
LAYERS = (1, 2) if SMALL else (10, 20)
dtype = torch.bfloat16

def build():
    kw = dict(in_channels=64, num_layers=LAYERS[0], num_single_layers=LAYERS[1], attention_head_dim=128,
              num_attention_heads=2 if SMALL else 24, joint_attention_dim=3584, pooled_projection_dim=3584, axes_dims_rope=[16, 56, 56])
    with torch.device("meta"):
        model = LongCatImageTransformer2DModel(**kw)
    model = model.to(dtype).to_empty(device=dev).eval()
    g = torch.Generator(dev).manual_seed(0)
    with torch.no_grad():
        for n, p in model.named_parameters():
            if p.dim() == 2: p.normal_(0, 0.02, generator=g)
            elif n.endswith("bias"): p.normal_(0, 0.02, generator=g)
            else: p.normal_(1, 0.1, generator=g)
    return model

GEMM = re.compile(r"gemm|cutlass|nvjet|gemv|splitK|xmma_gemm|cublas", re.I)
ATT = re.compile(r"fmha|flash|attention|cudnn_generated|sdpa|mha_", re.I)
def classify(name):
    if name.startswith("_"): return "other"
    if ATT.search(name): return "attention"
    if GEMM.search(name): return "gemm"
    return "other"

def sync():
    if dev.type == "cuda": torch.cuda.synchronize()

def timed(fn, n):
    sync(); s = torch.cuda.Event(True); e = torch.cuda.Event(True); s.record()
    for _ in range(n): fn()
    e.record(); sync(); return s.elapsed_time(e) / n

def profiled(fn, steps=3):
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

res = {"card": torch.cuda.get_device_name() if dev.type == "cuda" else "cpu", "torch": torch.__version__, "sizes": {}}
try:
    import triton; res["triton"] = triton.__version__
except ImportError: pass
model = build()
pipe = SimpleNamespace(transformer=model)
print("built", sum(p.numel() for p in model.parameters()) / 1e9, flush=True)
for T, N in SIZES:
    if SMALL: T, N = 8, 16
    g = torch.Generator(dev).manual_seed(1)
    mk = lambda seed: dict(
        hidden_states=torch.randn(1, N, 64, device=dev, generator=torch.Generator(dev).manual_seed(seed)).to(dtype),
        encoder_hidden_states=torch.randn(1, T, 3584, device=dev, generator=torch.Generator(dev).manual_seed(seed + 50)).to(dtype),
        timestep=torch.full((1,), 0.9 - 0.1 * seed, device=dev, dtype=dtype))
    side = int(N ** 0.5)
    ids = torch.stack([torch.ones(N), torch.arange(N) // side, torch.arange(N) % side], -1).to(dev) + torch.tensor([0, 512, 512], device=dev)
    txt = torch.stack([torch.zeros(T), torch.arange(T), torch.arange(T)], -1).to(dev)
    A = [mk(i) for i in range(3)]
    call = lambda a: model(**a, img_ids=ids, txt_ids=txt, return_dict=False)[0]
    r = res["sizes"][f"{T}+{N}"] = {}
    with torch.no_grad():
        exp = [call(a) for a in A]
        r["finite"] = [bool(torch.isfinite(e.float()).all()) for e in exp]
        sync()
        if dev.type == "cuda":
            call(A[0]); r["eager_ms"] = [timed(lambda: call(A[0]), 5) for _ in range(3)]
            r["eager_profile"] = profiled(lambda: call(A[0]))
            r["reserved_eager_gib"] = torch.cuda.max_memory_reserved() / 2**30
        m = mount(pipe)
        t0 = time.perf_counter(); got = [call(a) for a in A]; sync(); r["first_calls_s"] = time.perf_counter() - t0
        got = [call(a) for a in A]
        r["equal"] = [bool(torch.equal(e.view(torch.int16), g_.view(torch.int16))) for e, g_ in zip(exp, got)]
        r["differing"] = [float((e.view(torch.int16) != g_.view(torch.int16)).float().mean()) for e, g_ in zip(exp, got)]
        r["report"] = {k: v for k, v in m.report()["sites"].items()}
        print(T, N, "equal", r["equal"], r["differing"], flush=True)
        for k, v in r["report"].items(): print("  ", k, v["state"], (v["reason"] or "")[:300], v["calls_fused"], v["calls_eager"], v["verified_keys"], flush=True)
        if dev.type == "cuda":
            call(A[0]); r["fused_ms"] = [timed(lambda: call(A[0]), 5) for _ in range(3)]
            r["fused_profile"] = profiled(lambda: call(A[0]))
            r["reserved_fused_gib"] = torch.cuda.max_memory_reserved() / 2**30
            fwd = m.graph_target().owner
            inp = []
            for a in A:
                with fwd._call.of(CallArguments(**a, img_ids=ids, txt_ids=txt, return_dict=False), None): inp.append(list(fwd.prepare(a["hidden_states"], a["encoder_hidden_states"], a["timestep"], ids, txt)))
            with fwd._call.of(CallArguments(**A[0], img_ids=ids, txt_ids=txt, return_dict=False), None):
                static = [t.clone() for t in inp[0]]
                s = torch.cuda.Stream(); s.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(s):
                    fwd.run_core(*static)
                torch.cuda.current_stream().wait_stream(s); sync()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph): out = fwd.run_core(*static)
            def replay(i=0):
                for d, t in zip(static, inp[i]): d.copy_(t)
                graph.replay(); return out.clone()
            r["graph_equal"] = [bool(torch.equal(e.view(torch.int16), replay(i).view(torch.int16))) for i, e in enumerate(exp)]
            r["graph_ms"], r["fused_ms2"] = [], []
            for _ in range(5):
                r["graph_ms"].append(timed(replay, 5)); r["fused_ms2"].append(timed(lambda: call(A[0]), 5))
            r["graph_profile"] = profiled(replay)
            r["reserved_graph_gib"] = torch.cuda.max_memory_reserved() / 2**30
            del graph
        m.unmount()
        if dev.type == "cuda": r["eager_ms2"] = [timed(lambda: call(A[0]), 5) for _ in range(3)]
        if dev.type == "cuda" and not os.environ.get("NO_COMPILE"):
            t0 = time.perf_counter(); comp = torch.compile(model)
            ccall = lambda a: comp(**a, img_ids=ids, txt_ids=txt, return_dict=False)[0]
            ccall(A[0]); sync(); r["compile_s"] = time.perf_counter() - t0
            r["compile_differing"] = [float((e.view(torch.int16) != ccall(a).view(torch.int16)).float().mean()) for e, a in zip(exp, A)]
            r["compile_ms"], r["eager_ms3"] = [], []
            for _ in range(5): r["compile_ms"].append(timed(lambda: ccall(A[0]), 5)); r["eager_ms3"].append(timed(lambda: call(A[0]), 5))
            r["compile_profile"] = profiled(lambda: ccall(A[0]))
            print("   compile_s", r["compile_s"], "differing", r["compile_differing"], flush=True)
        again = call(A[0]); r["eager_after_equal"] = bool(torch.equal(again, exp[0]))
    for k in ("eager_ms", "fused_ms", "fused_ms2", "graph_ms", "eager_ms2", "compile_ms", "eager_ms3", "graph_equal", "reserved_eager_gib", "reserved_fused_gib", "reserved_graph_gib", "first_calls_s"):
        if k in r: print("  ", k, r[k])
    for k in ("eager_profile", "fused_profile", "graph_profile", "compile_profile"):
        if k in r:
            print("  ", k, r[k]["kernels"], r[k]["totals_ms"], r[k]["kernel_ms"])
            for row in r[k]["rows"][:24] if k == "graph_profile" else []: print("      %7.3f ms %6.1f %s %s" % (row["ms"], row["calls"], row["class"], row["name"][:90]))
    with open(OUT, "w") as f: json.dump(res, f, indent=1)
