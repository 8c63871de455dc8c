"""probe RUN EMA: pass rate by mu, steps; and from noised truth."""
import sys, math, torch
torch.set_num_threads(1)
sys.path.insert(0, ".")
from pathlib import Path
from training.stages import stored_vae, shift_mu
from training.folders import Run
from training.described import draw_described
from training.data import Drawings
from training.checker import check
from training.geometry import *
from training.flow_stage import predict_velocity
run, out = sys.argv[1], Path(sys.argv[2]); N = 64
dev = torch.device("cpu"); G = SMOKE
vae = stored_vae(Run(Path(run)), dev)
held = draw_described(77, N, 1, held_out=False, subset="simple")
SH = sorted({"circle","square","triangle","cross"}); CO = sorted({"red","green","blue","yellow"}); BG = ["white","black"]; SZ = ["medium","large"]; from training.vocabulary import PLACES; PL = list(PLACES)
def attrs(it):
    s = it.scene; t = s.things[0]
    return [SH.index(t.shape), 4+CO.index(t.colour), 8+BG.index(s.background), 10+(SZ.index(t.size) if t.size in SZ else 2), 14+PL.index(t.place)]
AH = torch.tensor([attrs(i) for i in held]); NULL = torch.full_like(AH, 13)
sd = torch.load(out/"ema.pt"); tr = build_transformer(G); tr.load_state_dict(sd["tr"]); emb = torch.nn.Embedding(23, G.text_hidden); emb.load_state_dict(sd["emb"])
ii = image_ids(G); ti = torch.zeros(5, 3); ti[:,1] = ti[:,2] = torch.arange(5); ids = torch.cat([ti, ii])
def vel(x, s, a): return predict_velocity(tr, x, torch.full((len(x),), s), emb(a), ids)
D = Drawings.of([i.scene for i in held], dev)
def met(x):
    h = G.latent_side
    z = x.view(-1, h//2, h//2, 16, 2, 2).permute(0,3,1,4,2,5).reshape(-1,16,h,h)
    d = vae.decode(z/vae.config.scaling_factor+vae.config.shift_factor)[0].clamp(-1,1)
    im = ((d+1)*127.5).round().to(torch.uint8).permute(0,2,3,1).numpy()
    f = [check(p, i.captions[0].claims) for p, i in zip(im, held)]
    n0 = sum(any("0 things" in t for t in q) for q in f); nm = sum(any("things, not" in t for t in q) for q in f)
    return f"{sum(not q for q in f)} of {N} met ({n0} empty, {nm-n0} too many)"
def run_from(x, sig, g=1.0):
    for a, b in zip(sig, sig[1:]):
        v = vel(x, a, AH)
        if g != 1: v = vel(x, a, NULL) + g*(v - vel(x, a, NULL))
        x = x + (b-a)*v
    return x
def sched(mu, steps):
    t = torch.linspace(1, 1/steps, steps); s = math.exp(mu)/(math.exp(mu)+(1/t-1)); return [*s.tolist(), 0.0]
with torch.no_grad():
    lat = pack((vae.encode(D.render(torch.arange(N), 64)).latent_dist.mode() - vae.config.shift_factor)*vae.config.scaling_factor)
    noise = torch.randn(lat.shape, generator=torch.Generator().manual_seed(5))
    m = shift_mu(build_scheduler(), G); print("own mu", m)
    for mu, steps, g in ((m,20,1),(m,20,2.5),(m,20,4.5),(m,60,1),(1.5,20,1),(2.0,20,1),(2.0,20,2.5),(2.0,60,1),(m,200,1)):
        print(f"mu {mu:.2f} steps {steps} guidance {g}: {met(run_from(noise, sched(mu, steps), g))}", flush=True)
    for s0 in (.98,.95,.92,.9,.85,.8,.7,.6,.4,.2):
        x = (1-s0)*lat + s0*noise
        sig = [s for s in sched(m, 40) if s < s0]
        x0 = x - s0*vel(x, s0, AH)
        print(f"from truth noised to {s0}: {met(run_from(x, [s0, *sig]))}; x0 error {(x0-lat).square().mean():.4f}", flush=True)
