"""Raw bits: diffusers' own call against native + fast paths (+ graph) and every step verified. bits.py OUT.json [tiny]"""
import hashlib, json, os, sys, time
import torch
from pathlib import Path
from fuseproof.pipelines.families import FAMILIES
from fuseproof.pipelines.session import Session, SessionSettings
from fuseproof.pipelines.dummy import load_dummy_pipeline
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.progress import SILENT
SMALL = not torch.cuda.is_available()
dev = torch.device("cpu" if SMALL else "cuda:0")
dtype = torch.float32 if SMALL else torch.bfloat16
res = {"card": "cpu" if SMALL else torch.cuda.get_device_name(), "torch": torch.__version__, "weights": "dummy", "models": {}}
from ernie_bits_request import make_request, CASES
def tiny(name):
    from fuseproof.pipelines.checkpoints import check_checkpoint
    from fuseproof.pipelines.loading import load_pipeline
    import subprocess
    folder = f"/tmp/tiny-{name}"
    if not os.path.exists(folder): subprocess.run([sys.executable, "-m", "fuseproof", "models", "make-tiny", name, folder], check=True)
    return load_pipeline(check_checkpoint(Path(folder)), dtype=dtype, device=dev)
sha = lambda a: hashlib.sha256(a.tobytes()).hexdigest()
ARMS = {
  "diffusers": SessionSettings(backend="diffusers", fastpaths="off"),
  "native, auto, graph": SessionSettings(backend="native", fastpaths="auto", enable_breakable_cuda_graph=True),
}
for family_name, cases in CASES.items():
    t0 = time.time()
    family = FAMILIES[family_name]
    pipe = tiny(family_name) if SMALL else load_dummy_pipeline(family, dtype=dtype, device=dev, geometry=None)
    rows = res["models"][family_name] = {}
    print(family_name, "loaded", round(time.time() - t0, 1), flush=True)
    for arm, settings in ARMS.items():
        if SMALL and "graph" in arm: continue
        t0 = time.time()
        with Session(pipe, settings, dev, dtype, SILENT) as session:
            out = {}
            for case in cases:
                request = make_request(family_name, case, SMALL)
                session.warm_up(request, 2)
                r = session.run(request)
                out[json.dumps(case)] = {"raw": sha(r.image), "latents": sha(r.latents), "denoise_ms": sum(r.denoise_steps_ms), "finite": bool(torch.isfinite(torch.from_numpy(r.image)).all())}
            report = session.fastpaths_report()
            sites = {k: {x: v[x] for x in ("state", "reason", "calls_fused", "calls_eager", "verified_keys", "first_sight_ms") if x in v} for k, v in report["sites"].items()}
            graphs = session.graphs_report() if hasattr(session, "graphs_report") else None
        rows[arm] = {"requests": out, "sites": sites, "graphs": graphs, "reserved_gib": 0 if SMALL else torch.cuda.max_memory_reserved() / 2**30}
        bad = {k: v for k, v in sites.items() if v["state"] in ("rejected", "eager", "declined")}
        print(f"{family_name} | {arm} | {time.time()-t0:.1f} s |", {k: (v["state"], str(v["reason"])[:160]) for k, v in bad.items()}, {k: g for k, g in (graphs or {}).items() if k in ("captured", "replayed", "missed", "rejected", "unsupported")}, flush=True)
    ref = rows["diffusers"]["requests"]
    for arm in rows:
        eq = {c: rows[arm]["requests"][c]["raw"] == ref[c]["raw"] and rows[arm]["requests"][c]["latents"] == ref[c]["latents"] for c in ref}
        rows[arm]["equal"] = eq
        print(f"{family_name} | {arm} | equal {list(eq.values())}", [v["raw"][:8] for v in rows[arm]["requests"].values()], flush=True)
    json.dump(res, open(sys.argv[1], "w"), indent=1)
    del pipe; SMALL or torch.cuda.empty_cache()
