"""Raw frames: reference backend against native + fast paths + graphs, dummy weights. video_bits.py OUT.json [family ...]"""
import gc, hashlib, json, subprocess, sys, time
from pathlib import Path
import numpy as np, torch
from PIL import Image
from fuseproof.pipelines.conditioning import ConditioningImage
from fuseproof.pipelines.dummy import load_dummy_pipeline
from fuseproof.pipelines.families import FAMILIES
from fuseproof.pipelines.progress import SILENT
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.session import Session, SessionSettings
SMALL = not torch.cuda.is_available()
dev = torch.device("cpu" if SMALL else "cuda:0"); dtype = torch.float32 if SMALL else torch.bfloat16
res = {"card": "cpu" if SMALL else torch.cuda.get_device_name(), "torch": torch.__version__, "weights": "dummy", "models": {}}
rng = np.random.default_rng(0); base = np.kron(rng.integers(0, 255, (8, 12, 3), np.uint8), np.ones((96, 96, 1), np.uint8))
def image(w, h): return ConditioningImage(Image.fromarray(base).resize((w, h), Image.BICUBIC), "0" * 64, w, h)
CASES = {
  "wan2.2-ti2v-5b": [dict(kind="t2v", steps=6, g=5.0), dict(kind="i2v", steps=6, g=5.0), dict(kind="t2v", steps=4, g=1.0)],
  "longlive2": [dict(kind="t2v", steps=4, g=1.0), dict(kind="i2v", steps=4, g=1.0)],
}
def make(family, case):
    w, h, n = (64, 32, 5) if SMALL else (832, 480, 61)
    if SMALL and family == "longlive2": n = 61
    return GenerationRequest(prompt="A curious raccoon walks along a river at dawn", negative_prompt=None, width=w, height=h, num_inference_steps=4 if SMALL else case["steps"],
        guidance_scale=case["g"], seed=42, generator_device="cpu", enable_cfg_renorm=False, cfg_renorm_min=0.0, enable_prompt_rewrite=False, quality="lossless",
        image=image(w, h) if case["kind"] == "i2v" else None, num_frames=n)
def tiny(name):
    from fuseproof.pipelines.checkpoints import check_checkpoint
    from fuseproof.pipelines.loading import load_pipeline
    folder = Path(f"/tmp/tiny-{name}")
    if not folder.exists(): subprocess.run([sys.executable, "-m", "fuseproof", "models", "make-tiny", name, str(folder)], check=True)
    return load_pipeline(check_checkpoint(folder), dtype=dtype, device=dev)
sha = lambda a: hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest()
for family_name in sys.argv[2:] or CASES:
    family = FAMILIES[family_name]; t0 = time.time()
    pipe = tiny(family_name) if SMALL else load_dummy_pipeline(family, dtype=dtype, device=dev, geometry=None)
    rows = res["models"][family_name] = {}; print(family_name, "loaded", round(time.time() - t0, 1), flush=True)
    reference = "reference" if family_name == "longlive2" else "diffusers"
    arms = {reference: SessionSettings(backend=reference, fastpaths="off"), "native, off": SessionSettings(backend="native", fastpaths="off"),
            "native, auto": SessionSettings(backend="native", fastpaths="auto"), "native, auto, graph": SessionSettings(backend="native", fastpaths="auto", enable_breakable_cuda_graph=True)}
    if SMALL: arms.pop("native, auto, graph")
    import os
    if os.environ.get("ONLY"): arms = {k: v for k, v in arms.items() if k == reference or k in os.environ["ONLY"].split("|")}
    for arm, settings in arms.items():
        t0 = time.time(); out = {}; row = rows[arm] = {"requests": out}
        try:
            with Session(pipe, settings, dev, dtype, SILENT) as session:
                for case in CASES[family_name]:
                    request = make(family_name, case)
                    session.warm_up(request, 4)
                    SMALL or torch.cuda.reset_peak_memory_stats()
                    t1 = time.time(); r = session.run(request); wall = time.time() - t1
                    out[json.dumps(case)] = {"raw": sha(r.image), "latents": sha(r.latents), "shape": list(r.image.shape), "wall_s": round(wall, 3), "stages_ms": {k: round(v, 1) for k, v in dict(getattr(r, "stage_ms", None) or getattr(r, "stages_ms", None) or {}).items()} if isinstance(getattr(r, "stage_ms", None) or getattr(r, "stages_ms", None) or {}, dict) else str(getattr(r, "stages", ""))[:300],
                        "denoise_ms": round(sum(r.denoise_steps_ms), 1), "finite": bool(np.isfinite(r.image).all()), "peak_gib": 0 if SMALL else round(torch.cuda.max_memory_allocated() / 2**30, 2)}
                report = session.fastpaths_report()
                row["sites"] = {k: {x: v[x] for x in ("state", "reason", "calls_fused", "calls_eager", "verified_keys", "first_sight_ms") if x in v} for k, v in report["sites"].items()}
                row["graphs"] = session.graphs_report() if hasattr(session, "graphs_report") else None
        except Exception as e:
            import traceback; row["error"] = traceback.format_exc()[-2500:]; print(row["error"], flush=True)
        bad = {k: (v["state"], str(v["reason"])[:260]) for k, v in row.get("sites", {}).items() if v["state"] in ("rejected", "eager", "declined")}
        ref = rows[reference]["requests"]
        row["equal"] = [c in ref and v["raw"] == ref[c]["raw"] and v["latents"] == ref[c]["latents"] for c, v in out.items()]
        print(f"{family_name} | {arm} | {time.time()-t0:.1f} s | equal {row['equal']} |", [(v["wall_s"], v["denoise_ms"], v["peak_gib"], v["finite"]) for v in out.values()], bad, {k: g for k, g in (row.get("graphs") or {}).items() if k in ("captured", "replayed", "missed", "rejected", "unsupported")}, flush=True)
        json.dump(res, open(sys.argv[1], "w"), indent=1)
    del pipe; gc.collect(); SMALL or torch.cuda.empty_cache()
