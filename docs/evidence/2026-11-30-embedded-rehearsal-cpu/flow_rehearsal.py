"""Proxy: direct conditioning tokens instead of text; simple subset at 64x64. args: run out seconds opt [lr] [offset] [spread]"""
import sys, time, json, torch, copy, math
torch.set_num_threads(1)
sys.path.insert(0, ".")
from pathlib import Path
from training.stages import stored_vae, shift_mu
from training.folders import Run
from training.described import draw_described
from training.data import Drawings
from training.checker import check
from training.captions import describe
from training.geometry import *
from training.flow_stage import predict_velocity, draw_sigmas
run, out, seconds, opt = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
lr = float(sys.argv[5]) if len(sys.argv) > 5 else 1e-3
offset = float(sys.argv[6]) if len(sys.argv) > 6 else 1.3
spread = float(sys.argv[7]) if len(sys.argv) > 7 else 1.5
B = 32
out.mkdir(parents=True, exist_ok=True)
dev = torch.device("cpu"); G = SMOKE
torch.manual_seed(0)
vae = stored_vae(Run(Path(run)), dev)
items = draw_described(1, 4000, 1, subset="simple"); held = draw_described(77, 64, 1, held_out=False, subset="simple")
SH = sorted({"circle","square","triangle","cross"}); CO = sorted({"red","green","blue","yellow"}); BG = ["white","black"]; SZ = ["medium","large"]; from training.vocabulary import PLACES; PL = list(PLACES)
def attrs(it):
    s = it.scene; t = s.things[0]
    return [SH.index(t.shape), 4+CO.index(t.colour), 8+BG.index(s.background), 10+(SZ.index(t.size) if t.size in SZ else 2), 14+PL.index(t.place)]
A = torch.tensor([attrs(i) for i in items]); AH = torch.tensor([attrs(i) for i in held])
D = Drawings.of([i.scene for i in items], dev)
with torch.no_grad():
    lat = torch.cat([pack((vae.encode(D.render(c, 64)).latent_dist.mode() - vae.config.shift_factor)*vae.config.scaling_factor) for c in torch.arange(len(items)).split(64)])
print("latents", lat.shape, lat.std().item(), flush=True)
sch = build_scheduler(); mu = shift_mu(sch, G)
torch.manual_seed(1)
tr = build_transformer(G); emb = torch.nn.Embedding(23, G.text_hidden)
ema = copy.deepcopy(tr).requires_grad_(False), copy.deepcopy(emb).requires_grad_(False)
params = [*tr.parameters(), *emb.parameters()]
def is_hidden(n, p): return p.ndim == 2 and ("blocks" in n) and "norm" not in n
if opt == "muon":
    hidden = [p for n, p in tr.named_parameters() if is_hidden(n, p)]
    ids = {id(p) for p in hidden}
    opts = [torch.optim.Muon(hidden, lr=lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"), torch.optim.AdamW([p for p in params if id(p) not in ids], lr=lr, betas=(.9,.95), weight_decay=0.01)]
else:
    opts = [torch.optim.AdamW(params, lr=lr, betas=(.9,.95), weight_decay=0.01)]
ii = image_ids(G); ti = torch.zeros(5, 3); ti[:,1] = ti[:,2] = torch.arange(5)
ids = torch.cat([ti, ii])
def vel(t, e, x, s, a): return predict_velocity(t, x, s, e(a), ids)
@torch.no_grad()
def sample(t, e, a, steps=20, seed=5):
    n = len(a); x = torch.randn(n, G.image_tokens, 64, generator=torch.Generator().manual_seed(seed))
    s = torch.linspace(1, 1/steps, steps); s = math.exp(mu)/(math.exp(mu)+(1/s-1)); s = torch.cat([s, torch.zeros(1)])
    for i in range(steps): x = x + (s[i+1]-s[i])*vel(t, e, x, torch.full((n,), s[i].item()), a)
    return x
@torch.no_grad()
def evaluate():
    x = sample(*ema, AH); h = G.latent_side
    z = x.view(-1, h//2, h//2, 16, 2, 2).permute(0,3,1,4,2,5).reshape(-1,16,h,h)
    d = vae.decode(z/vae.config.scaling_factor+vae.config.shift_factor)[0].clamp(-1,1)
    im = ((d+1)*127.5).round().to(torch.uint8).permute(0,2,3,1).numpy()
    faults = [check(p, i.captions[0].claims) for p, i in zip(im, held)]
    import numpy as np
    from PIL import Image
    Image.fromarray(np.concatenate([np.concatenate(list(im[r*8:r*8+8]),1) for r in range(4)],0)).resize((1024,512)).save(out/"grid.png")
    return sum(not f for f in faults), faults[:4]
t0 = time.time(); step = 0; gen = torch.Generator().manual_seed(3); acc = []; nexte = 240; val = []
while True:
    el = time.time()-t0
    if el > seconds: break
    share = el/seconds; rate = lr*min(1,(step+1)/100)*(0.02+0.98*0.5*(1+math.cos(math.pi*share)))
    for o in opts:
        for g in o.param_groups: g["lr"] = rate
    rows = torch.randint(len(lat), (B,), generator=gen); x1 = lat[rows]; n = torch.randn(x1.shape, generator=gen)
    s = draw_sigmas(B, mu+offset, spread, gen); a = A[rows]
    a = torch.where(torch.rand(B,1,generator=gen) < .1, 13, a)
    xt = (1-s)[:,None,None]*x1 + s[:,None,None]*n
    l = (vel(tr, emb, xt, s, a) - (n-x1)).square().mean()
    l.backward(); torch.nn.utils.clip_grad_norm_(params, 1.0)
    for o in opts: o.step(); o.zero_grad(set_to_none=True)
    w = 1-min(.999,(1+step)/(10+step))
    with torch.no_grad():
        for m, e in zip((tr, emb), ema): torch._foreach_lerp_(list(e.parameters()), [p.detach() for p in m.parameters()], w)
    acc.append(l.item()); step += 1
    if el > nexte:
        nexte += 240; m, f = evaluate()
        print(f"{el:.0f} s step {step} samples {step*B} loss {sum(acc[-500:])/len(acc[-500:]):.4f} met {m} of 64 {f}", flush=True)
torch.save({"tr": ema[0].state_dict(), "emb": ema[1].state_dict()}, out/"ema.pt")
m, f = evaluate(); print(f"END step {step} samples {step*B} loss {sum(acc[-500:])/len(acc[-500:]):.4f} met {m} of 64", flush=True)
