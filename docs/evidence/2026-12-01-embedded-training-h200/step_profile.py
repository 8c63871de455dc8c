"""Full geometry on the card: a step plain and replayed, 64 and 512 text tokens; where the time goes."""
import json, sys, time, torch
from fuseproof.pipelines.libraries import silence_libraries
from training import flow_stage, stages
from training.compiling import Compiled
from training.geometry import FULL, SMOKE, build_text_encoder, build_transformer
from training.gradients import step_of
from training.replaying import Replayed
from training.tokens import Template, build_tokenizer, LONGEST_PROMPT
from training.data import batches
silence_libraries(); T0 = time.time()
dev = torch.device(sys.argv[1]); cuda = dev.type == "cuda"; G = FULL if cuda else SMOKE
torch.backends.cuda.matmul.allow_tf32 = True; torch.backends.cuda.enable_cudnn_sdp(False)
B = 256 if cuda else 4
tok = build_tokenizer(); s = flow_stage.FlowSettings(batch=B)
te, tr = build_text_encoder(G, tok).to(dev), build_transformer(G).to(dev)
state = flow_stage.new_state(tr, te, s, dev); task = flow_stage.Task(Template.of(tok, dev), G, 0.9)
N = 4096
ids = torch.full((flow_stage.CAPTIONS_EACH * N, LONGEST_PROMPT), -1, dtype=torch.int32, device=dev); ids[:, :14] = torch.randint(0, 200, (flow_stage.CAPTIONS_EACH * N, 14), device=dev)
data = flow_stage.LatentSet(torch.randn(N, G.image_tokens, 64, device=dev).bfloat16(), ids)
lo = flow_stage.losses_of(state, task)
rows = torch.arange(B, device=dev)
def rehearse(full): return lo(flow_stage.draw_batch(data, rows, 0, 0.9, s, full_text=full))[0].mean()
comp = Compiled(tr, state, rehearse) if cuda else None
weights = [w for m in state.modules.values() for w in m.parameters() if w.requires_grad]
rep = Replayed(lo, weights); plain = step_of(lo)
sync = torch.cuda.synchronize if cuda else (lambda: None)
log = flow_stage.RunningLosses(dev); count = [0]
def one(step, full, rows):
    b = flow_stage.draw_batch(data, rows, count[0], 0.9, s, full_text=full); (l,) = step(b)
    state.optimizer.step(1e-4, 1.0)
    for a in state.averages.values(): a.update(count[0])
    log.add(l, b.sigmas); count[0] += 1
out = {}
def timed(name, step, full, n):
    it = batches(N, B, 1, 0, dev)
    for _ in range(3): one(step, full, next(it))
    sync(); t = time.perf_counter(); issue = 0.0
    for _ in range(n): one(step, full, next(it))
    issue = time.perf_counter() - t; sync(); t = time.perf_counter() - t
    out[name] = {"ms": 1000 * t / n, "issued_ms": 1000 * issue / n, "loss": log.means()["loss"]}
    print(f"[{time.time()-T0:.0f} s] {name}: {out[name]}", flush=True)
def pieces(full):
    b = flow_stage.draw_batch(data, rows, 0, 0.9, s, full_text=full)
    def t(f, n=20):
        for _ in range(2): f()
        sync(); x = time.perf_counter()
        for _ in range(n): f()
        i = time.perf_counter() - x; sync(); return [round(1000 * (time.perf_counter() - x) / n, 2), round(1000 * i / n, 2)]
    print("draw", t(lambda: flow_stage.draw_batch(data, rows, 0, 0.9, s, full_text=full)), "replay", t(lambda: rep(b)))
    def opt():
        for w in weights: w.grad = torch.zeros_like(w) if w not in keep else keep[w]
        state.optimizer.step(0.0, 1.0)
    rep(b); keep = {w: w.grad for w in weights}
    print("optimizer (with 100 pointers)", t(opt), "average", t(lambda: [a.update(5) for a in state.averages.values()]), flush=True)
def profile(full):
    if not cuda: return
    from torch.profiler import profile as P, ProfilerActivity as A
    it = batches(N, B, 1, 0, dev)
    with P(activities=[A.CUDA]) as p:
        for _ in range(4): one(rep, full, next(it))
        sync()
    ev = sorted((e for e in p.key_averages() if e.self_device_time_total), key=lambda e: -e.self_device_time_total)
    tot = sum(e.self_device_time_total for e in ev)
    print(f"profile full={full}: {tot/4000:.2f} ms a step in {sum(e.count for e in ev)//4} kernels")
    for e in ev[:32]: print(f"  {e.self_device_time_total/4000:7.3f} ms {e.count//4:5d}x {e.key[:110]}")
    sys.stdout.flush()
for full in (False, True):
    if comp: comp(full)
    timed(f"plain full={full}", plain, full, 15 if cuda else 1)
    timed(f"replayed full={full}", rep, full, 40 if cuda else 1)
    if cuda: timed(f"plain again full={full}", plain, full, 15)
    pieces(full); profile(full)
json.dump(out, open(sys.argv[2], "w"))
