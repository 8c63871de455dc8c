"""On a card: tiles of the Wan VAE's two norm kernels, bits first. `python wan_tune.py OUT.json [--small]`"""
import contextlib, itertools, json, statistics, sys, time
import torch, torch.nn.functional as F, triton
from fuseproof.fastpaths.bits import bit_difference
from fuseproof.fastpaths import interpreter_rounding
from fuseproof.fastpaths.kernels import causal_conv_input as cc, channel_norms, wan_norm_silu as wn
from fuseproof.fastpaths.kernels.launching import is_interpreted
small = "--small" in sys.argv; dev = "cpu" if small else "cuda"; start = time.monotonic(); out = {}
BF16, FP32 = torch.bfloat16, torch.float32
def rnd(*s, dtype=FP32, seed=0): return torch.randn(s, device=dev, generator=torch.Generator(dev).manual_seed(seed)).to(dtype)
def us(call, runs=15):
    if small: return 0.0
    for _ in range(3): call()
    t = []
    for _ in range(runs):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2)); a.record(); call(); b.record(); torch.cuda.synchronize(); t.append(a.elapsed_time(b) * 1e3)
    return round(statistics.median(t), 1)
last = lambda x: x.contiguous(memory_format=torch.channels_last_3d)
def share(a, b): return bit_difference(a, b).differing_share
fours = {m: m.in_fours for m in (cc, wn)}
def setting(module, on): module.in_fours = fours[module] if on else (lambda e, w: False)
def norms():
    for (c, t, h, w), (xd, gd), layout in itertools.product([(256, 4, 240, 416), (1024, 4, 120, 208), (1024, 2, 60, 104), (1024, 1, 30, 52)] if not small else [(8, 2, 3, 4)],
            [(FP32, FP32), (BF16, BF16), (BF16, FP32)], ("planes", "last")):
        x = rnd(1, c, t, h, w, dtype=xd); x = last(x) if layout == "last" else x
        gamma = rnd(c, 1, 1, 1, dtype=gd, seed=1); scale = c**0.5; r = {}
        d = lambda: torch.linalg.vector_norm(x, 2, 1, keepdim=True, dtype=FP32).clamp_min(1e-12)
        dd = x.float().norm(2, 1, keepdim=True).clamp_min(1e-12)
        r["norm_reads_x_as_it_is"] = share(d(), dd)
        want = wn.reference(x, dd, gamma, None, scale)
        eager = lambda: F.silu(F.normalize(x.float(), dim=1).to(x.dtype) * scale * gamma + 0.0)
        if (c, h) in ((256, 240), (8, 3)): r["eager_us"] = us(eager)
        r["eager_equal"] = share(want, eager()); r["norm_us"] = us(d)
        for on in (True, False):
            setting(wn, on)
            for block in (2048, 4096) if on else (2048,):
                before, wn.BLOCK = wn.BLOCK, block
                r[f"fours {on} block {block}"] = [share(want, wn.fused(x, dd, gamma, None, scale)), us(lambda: wn.fused(x, dd, gamma, None, scale)), us(lambda: wn.fused(x, d(), gamma, None, scale))]
                wn.BLOCK = before
        out[f"post-ops {c}x{t}x{h}x{w} {xd} {gd} {layout}"] = r; print(c, t, h, w, xd, gd, layout, r, round(time.monotonic() - start), flush=True)
def convs():
    for (c, t, h, w), order in itertools.product([(256, 4, 240, 416), (512, 4, 240, 416), (1024, 4, 120, 208)] if not small else [(8, 2, 3, 4)], ("planes", "last")):
        x = last(rnd(1, c, t, h, w, dtype=BF16)); gamma = rnd(c, 1, 1, 1, seed=1); cache = last(rnd(1, c, 2, h, w, dtype=BF16, seed=2)); bias = rnd(c, seed=3)
        o = channel_norms.order_on(x, order == "last") or channel_norms.Order(1, 1, 0); o3 = (o.lanes, o.blocks, o.vector)
        call = (x, gamma, bias, cache, None, c**0.5, True, 2, 1, 1, True, True, o3); r = {"order": o3}
        hidden = x + bias.to(BF16).view(-1, 1, 1, 1); hf = hidden.float() if order == "last" else hidden.float().contiguous()
        norm = hf.norm(2, 1, keepdim=True).clamp_min(1e-12).contiguous()
        want = cc.reference(x, gamma, bias, cache, norm, c**0.5, True, 2, 1, 1, True, True, None); del hidden, hf, norm
        r["bytes_us"] = round(cc.traffic_bytes(*call) / 4.2e6, 1)
        tile = cc.tile_of
        for on, positions, width, warps, ahead in [(False, None, None, 4, 1), (True, None, None, 4, 1), (True, None, None, 4, 4)] + ([(True, p, wd, n, a) for p, wd, n, a in ((32, 64, 4, 4), (16, 64, 4, 4), (32, 64, 8, 4), (64, 64, 8, 4), (32, 128, 4, 4), (32, 128, 8, 4), (32, 64, 4, 8), (16, 128, 4, 4), (64, 32, 4, 4), (16, 64, 2, 4))] if not small and c != 1024 else []):
            setting(cc, on); cc.WARPS, cc.AHEAD = warps, ahead
            if positions: cc.tile_of = lambda *_: (positions, width)
            try:
                got = cc.fused(*call)
                r[f"fours {on} tile {positions}x{width} warps {warps} ahead {ahead}"] = [max(share(a, b) for a, b in zip(want, got)), us(lambda: cc.fused(*call))]
            except Exception as e: r[f"{on} {positions} {width} {warps} {ahead}"] = f"{type(e).__name__}: {e}"[:200]
            cc.tile_of = tile; cc.WARPS, cc.AHEAD = 4, 4
        out[f"conv input {c}x{t}x{h}x{w} {order}"] = r; print(c, t, h, w, order, json.dumps(r), round(time.monotonic() - start), flush=True)
with (interpreter_rounding.exact_rounding() if is_interpreted() else contextlib.nullcontext()), torch.no_grad():
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(BF16); x = every[every.isfinite()].view(1, 3, 1, 136, 160).to(dev)
    for dtype in (BF16, FP32):
        for factor, scale in ((1.0, 1.0), (0.7, 3**0.5), (1e-12, 1.0), (3e5, 1.0)):
            gamma = torch.tensor([0.75, -1.3, 3e-5] if factor != 1 else [1.0] * 3, device=dev).to(dtype).view(3, 1, 1, 1)
            call = (x, torch.full((1, 1, 1, 136, 160), factor, device=dev), gamma, None, scale)
            out[f"every {dtype} {factor}"] = [share(wn.reference(*call), wn.fused(*call)), wn.in_fours(2048, 4)]; print(dtype, factor, out[f"every {dtype} {factor}"], flush=True)
    for name, part in (("conv", convs), ("norm", norms)):
        try: part()
        except Exception as e: out[name] = f"{type(e).__name__}: {e}"; print(out[name])
        json.dump(out, open(sys.argv[1], "w"), indent=1)
