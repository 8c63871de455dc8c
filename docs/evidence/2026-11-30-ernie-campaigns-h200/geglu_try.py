"""GEGLU forms on the card: all from a table, tail from a table; blocks and warps; against torch."""
import json, sys, torch, triton, triton.language as tl, torch.nn.functional as F
@triton.jit
def kern(g, u, o, T, gs, us, C: tl.constexpr, B: tl.constexpr, FORM: tl.constexpr):
    per: tl.constexpr = (C + B - 1) // B
    row = (tl.program_id(0) // per).to(tl.int64)
    c = (tl.program_id(0) % per) * B + tl.arange(0, B)
    m = c < C
    gate = tl.load(g + row * gs + c, mask=m, other=0.0)
    up = tl.load(u + row * us + c, mask=m, other=0.0)
    idx = gate.to(tl.uint16, bitcast=True).to(tl.int32)
    if FORM == 0:
        act = tl.load(T + idx, mask=m, other=0.0, eviction_policy="evict_last").to(tl.float32)
    elif FORM == 1:
        x = gate.to(tl.float32)
        tail = (idx & 0x7FFF) >= 0x3FB5
        near = ((x * 0.5) * (1.0 + tl.erf(x * 0.7071067811865476))).to(tl.bfloat16)
        far = tl.load(T + idx, mask=m & tail, other=0.0, eviction_policy="evict_last")
        act = tl.where(tail, far, near).to(tl.float32)
    elif FORM == 2:
        x = gate.to(tl.float32)
        act = ((x * 0.5) * (1.0 + tl.erf(x * 0.7071067811865476))).to(tl.bfloat16).to(tl.float32)
    else:
        act = tl.load(T + idx, mask=m, other=0.0).to(tl.float32)
    tl.store(o + row * C + c, (up.to(tl.float32) * act).to(tl.bfloat16), mask=m)
def run(R=4352, C=12288, std=1.0):
    d = "cuda"; torch.manual_seed(0)
    both = (torch.randn(R, 2 * C, device=d) * std).bfloat16(); gate, up = both[:, :C], both[:, C:]
    codes = torch.arange(65536, device=d, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    table = F.gelu(codes); ref = up * F.gelu(gate); out = torch.empty(R, C, device=d, dtype=torch.bfloat16); rows = []
    def t(f, n=30):
        f(); torch.cuda.synchronize(); ts = []
        for _ in range(5):
            a, b = torch.cuda.Event(True), torch.cuda.Event(True); a.record()
            for _ in range(n): f()
            b.record(); b.synchronize(); ts.append(a.elapsed_time(b) / n * 1e3)
        return round(min(ts), 1), round(max(ts), 1)
    rows.append(("eager on strided", std, t(lambda: up * F.gelu(gate), 10)))
    gc, uc = gate.contiguous(), up.contiguous(); rows.append(("eager", std, t(lambda: uc * F.gelu(gc), 10)))
    for form in (0, 1, 2, 3):
        for B, w in ((1024, 4), (2048, 4), (2048, 8), (4096, 8)):
            f = lambda: kern[(R * triton.cdiv(C, B),)](gate, up, out, table, gate.stride(0), up.stride(0), C=C, B=B, FORM=form, num_warps=w, enable_fp_fusion=False)
            f(); bad = int((out.view(torch.int16) != ref.view(torch.int16)).sum())
            rows.append((form, B, w, std, bad, t(f)))
    erf_bad = None
    o1 = torch.empty(1, 65536, device=d, dtype=torch.bfloat16); ones = torch.ones(1, 65536, device=d, dtype=torch.bfloat16)
    cc = codes.view(1, -1); fin = torch.isfinite(codes)
    kern[(32,)](cc, ones, o1, table, 65536, 65536, C=65536, B=2048, FORM=2, num_warps=4, enable_fp_fusion=False)
    bad = (o1[0].view(torch.int16) != table.view(torch.int16)) & fin
    return rows, [(float(v), float(a), float(b)) for v, a, b in zip(codes[bad], o1[0][bad], table[bad])]
res = {}
for std in (0.5, 1.0, 3.0):
    rows, bad = run(std=std); res[str(std)] = rows
    for r in rows: print(*r)
print(bad); json.dump({"rows": res, "erf_differs": bad}, open(sys.argv[1], "w"))
