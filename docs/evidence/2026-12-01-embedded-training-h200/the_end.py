"""The end of the training, all text tokens: the_end.py CHECKPOINT RUN DEVICE GEOMETRY SECONDS SPENT SCENES"""
import dataclasses, json, sys, time, torch
from pathlib import Path
T0 = time.time()
from training import stages, replayed_muon
from training.train import main
ckpt, run, dev, geometry, seconds, spent = sys.argv[1:7]
if dev == "cuda":
    def five(kind):
        g = torch.Generator().manual_seed(1)
        ws = [torch.nn.Parameter(torch.randn(s, generator=g).cuda()) for s in ((256, 1024), (1024, 256), (256, 256))]
        m = kind(ws, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
        for i in range(6):
            m.param_groups[0]["lr"] = 1e-3 * (1 + i)
            for w in ws: w.grad = torch.randn(w.shape, generator=g).cuda()
            m.step()
        return ws
    off = max(float((a - b).abs().max()) for a, b in zip(five(replayed_muon.ReplayedMuon), five(torch.optim.Muon)))
    print(f"replayed Muon off by {off:.3g} [{time.time()-T0:.0f} s]", flush=True)
    if not off < 1e-4:
        import training.optimizers as o
        o.ReplayedMuon = torch.optim.Muon; print("PLAIN MUON", flush=True)
p = Path(ckpt) / "training.json"; kept = json.loads(p.read_text()); kept["spent_s"] = float(spent); p.write_text(json.dumps(kept))
chosen = stages.chosen
def mine(settings, options):
    s = chosen(settings, options)
    return dataclasses.replace(s, decay=0.998, full_text_from=0.0, save_every_s=45.0)
stages.chosen = mine
rc = main(["--stage", "transformer", "--run", run, "--geometry", geometry, "--device", dev, "--begin-from", ckpt, "--seconds", seconds, "--total-seconds", str(float(spent) + float(seconds)), "--scenes", sys.argv[7], *sys.argv[8:]])
print(f"rc {rc} [{time.time()-T0:.0f} s]")
