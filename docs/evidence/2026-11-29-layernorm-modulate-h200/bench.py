import json, os, sys, itertools, statistics
sys.path.insert(0, os.path.dirname(__file__))
import torch, triton
import torch.nn.functional as F
import kernel as k

dev = "cuda"
def eager(x, scale, shift, eps=1e-6):
    return F.layer_norm(x, (x.shape[-1],), eps=eps) * (1 + scale[:, None]) + shift[:, None]
def fused(x, scale, shift, rows_per_program, warps, reduce, out=None, eps=1e-6):
    B, S, D = x.shape
    out = torch.empty_like(x) if out is None else out
    k._ln_mod_kernel[(triton.cdiv(B * S, rows_per_program),)](
        x, scale, shift, out, B * S, S, eps, x.stride(1), scale.stride(0), shift.stride(0),
        D=D, ROUNDS=-(-D // 512), ROWS=rows_per_program, REDUCE=reduce, num_warps=warps, enable_fp_fusion=False)
    return out
VARIANTS = [(1,4,True),(2,4,True),(4,4,True),(2,4,False),(1,4,False),(2,2,True),(1,2,True),(2,8,True)]
res = {"card": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__, "exact": [], "times": []}
torch.manual_seed(0)
def bits(a): return a.view(torch.int16)
for D in (2432, 3072, 3840, 4096, 5120, 6144):
    for B, S in ((1, 512), (1, 4608), (2, 333)):
        x = torch.randn(B, S, D, device=dev).mul_(torch.rand(B, S, 1, device=dev) * 10).add_(torch.randn(B, S, 1, device=dev)).bfloat16()
        mod = torch.randn(B, 6 * D, device=dev).bfloat16()
        shift, scale = mod.chunk(6, dim=1)[:2]
        ref = eager(x, scale, shift)
        for v in VARIANTS:
            try:
                out = torch.full_like(x, float("nan")); fused(x, scale, shift, *v, out=out)
                diff = int((bits(out) != bits(ref)).sum())
            except Exception as e:
                diff = f"{type(e).__name__}: {str(e)[:120]}"
            res["exact"].append([D, B, S, v, diff])
print(json.dumps([e for e in res["exact"] if e[-1] != 0][:20]))
def timed(fn, n_sets):
    for i in range(3 * n_sets): fn(i % n_sets)
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for i in range(n_sets * 4): fn(i % n_sets)
    ts = []
    for _ in range(9):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(); g.replay(); b.record(); torch.cuda.synchronize(); ts.append(a.elapsed_time(b) * 1e3 / (n_sets * 4))
    return statistics.median(ts), min(ts), max(ts)
D = 3072
for S in (512, 4096, 4608):
    n = max(4, int(300e6 / (S * D * 4)))
    xs = [torch.randn(1, S, D, device=dev).bfloat16() for _ in range(n)]
    outs = [torch.empty_like(x) for x in xs]
    mod = torch.randn(1, 6 * D, device=dev).bfloat16(); shift, scale = mod.chunk(6, dim=1)[:2]
    row = {"S": S, "eager": timed(lambda i: eager(xs[i], scale, shift), n), "copy": timed(lambda i: outs[i].copy_(xs[i]), n), "layer_norm": timed(lambda i: F.layer_norm(xs[i], (D,), eps=1e-6), n)}
    for v in VARIANTS:
        try: row[str(v)] = timed(lambda i: fused(xs[i], scale, shift, *v, out=outs[i]), n)
        except Exception as e: row[str(v)] = str(e)[:100]
    res["times"].append(row); print(json.dumps(row))
json.dump(res, open(os.environ.get("OUT", "/tmp") + "/ln.json", "w"), indent=1)
