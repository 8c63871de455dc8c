"""LongLive 2's transformer on a card: bits of whole clips and of every kernel, then times. `longlive_card.py OUT.json [--small]`.

Dummy longlive2 (Wan 2.2 TI2V-5B's sizes) at 832x480: chunks of 8 latent frames, 3120 tokens each. Clips through the
loop of the session (four steps, the pass over clean latents): reference == eager == fused == graph, velocities, latents
and what stays in the caches; T2V and I2V of 2 chunks, then one of 6 chunks of one step, whose window (32 frames) wraps.
Sections in order of importance; each is written to OUT.json as soon as it is done, an error in one leaves the others,
past --limit seconds the rest is left out and says so. --small: a tiny model on the CPU in Triton's interpreter.
"""
import argparse, collections, contextlib, json, os, re, statistics, sys, time, traceback
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("--small", action="store_true")
parser.add_argument("--limit", type=float, default=70.0)
parser.add_argument("--rounds", type=int, default=4)
options = parser.parse_args()
if options.small:
    os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
START = time.perf_counter()

import torch  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from diffusers import WanTransformer3DModel  # noqa: E402
from fuseproof.fastpaths import mount  # noqa: E402
from fuseproof.fastpaths.benchmarking import CudaStopwatch, measure  # noqa: E402
from fuseproof.fastpaths.bits import bit_difference, bits_equal  # noqa: E402
from fuseproof.fastpaths.check_values import filler  # noqa: E402
from fuseproof.fastpaths.graph_device import CudaCapture  # noqa: E402
from fuseproof.fastpaths.sites import longlive2_transformer  # noqa: E402
from fuseproof.fastpaths.verification import cases_for, check  # noqa: E402
from fuseproof.pipelines import dummy_wan  # noqa: E402
from fuseproof.pipelines.dummy_geometry import WAN22  # noqa: E402
from fuseproof.pipelines.dummy_weights import materialise  # noqa: E402
from fuseproof.pipelines.families import FAMILIES  # noqa: E402
from fuseproof.pipelines.fastpath_workloads import ODD, Workload, in_dtype, site_calls  # noqa: E402
from fuseproof.pipelines.graphs import TransformerGraphs  # noqa: E402
from fuseproof.pipelines.longlive2_model import as_longlive2  # noqa: E402
from fuseproof.pipelines.longlive2_steps import ChunkSteps, denoise, draw_noise  # noqa: E402
from fuseproof.pipelines.reference_longlive2 import generate_reference  # noqa: E402

SMALL = options.small
device = torch.device("cpu" if SMALL else "cuda")
DTYPE = torch.bfloat16
HEIGHT, WIDTH, TEXT = (2, 2, 3) if SMALL else (30, 52, 512)
STEPS = 1 if SMALL else 4
CHUNK = 8
TINY = {"num_attention_heads": 2, "attention_head_dim": 128, "in_channels": 48, "out_channels": 48, "text_dim": 64, "ffn_dim": 256, "num_layers": 2}
if SMALL:
    from fuseproof.fastpaths.interpreter_rounding import exact_rounding
    ROUNDING = exact_rounding(); ROUNDING.__enter__()
    SITE_REASONS, longlive2_transformer.site_reasons = longlive2_transformer.site_reasons, lambda transformer: {}
res = {"torch": torch.__version__, "card": "cpu" if SMALL else torch.cuda.get_device_name(), "sections": {}, "left_out": []}
try:
    import triton
    res["triton"] = triton.__version__
except ImportError:
    pass

def elapsed(): return time.perf_counter() - START
def sync():
    if not SMALL: torch.cuda.synchronize()
def save():
    res["elapsed_s"] = round(elapsed(), 1)
    Path(options.out).write_text(json.dumps(res, indent=1, default=str))
@contextlib.contextmanager
def section(name):
    found = res["sections"].setdefault(name, {})
    began = elapsed()
    try:
        yield found
    except Exception as error:  # noqa: BLE001
        found["error"] = f"{type(error).__name__}: {error}"[:600]; found["trace"] = traceback.format_exc()[-1800:]
        print("ERROR in", name, found["error"], found["trace"], flush=True)
    finally:
        found["seconds"] = round(elapsed() - began, 1); save()
        print(f"== {name}: {found['seconds']} s, {elapsed():.0f} s in all", flush=True)
def has_time(name):
    if SMALL or elapsed() < options.limit: return True
    res["left_out"].append(name); print("left out:", name, flush=True); save(); return False
def rnd(*shape, seed, dtype=DTYPE):
    g = torch.Generator(device).manual_seed(seed)
    return torch.randn(*shape, device=device, generator=g).to(dtype)
def differing(a, b):
    """None where bits and strides are equal, else how far apart."""
    if a.shape != b.shape or a.dtype != b.dtype: return f"{a.shape} {a.dtype} / {b.shape} {b.dtype}"
    if bits_equal(a, b): return None if a.stride() == b.stride() else f"strides {a.stride()} / {b.stride()}"
    return asdict(bit_difference(a, b))
def timed(call, n=3):
    if SMALL:
        t = time.perf_counter(); call(); return (time.perf_counter() - t) * 1e3
    s, e = torch.cuda.Event(True), torch.cuda.Event(True)
    s.record()
    for _ in range(n): call()
    e.record(); sync()
    return s.elapsed_time(e) / n

GEMM = re.compile(r"gemm|cutlass|nvjet|gemv|splitK|cublas|xmma", re.I)
ATT = re.compile(r"fmha|flash|attention|cudnn_generated|sdpa|mha_", re.I)
CONV = re.compile(r"conv|implicit|wgrad|fprop", re.I)
def classify(name):
    if ATT.search(name): return "attention"
    if name.startswith("_"): return "triton"
    if CONV.search(name): return "convolution"
    return "gemm" if GEMM.search(name) else "other"
def profiled(call, steps=2):
    call(); sync()
    kinds = [ProfilerActivity.CPU] if SMALL else [ProfilerActivity.CUDA, ProfilerActivity.CPU]
    with profile(activities=kinds) as p:
        for _ in range(steps): call()
        sync()
    t = collections.defaultdict(lambda: [0, 0.0])
    for ev in p.events():
        if ev.device_type == torch.autograd.DeviceType.CUDA and not ev.name.startswith("Memcpy HtoD"):
            t[ev.name][0] += 1; t[ev.name][1] += ev.device_time if hasattr(ev, "device_time") else ev.cuda_time
    rows = [{"name": n[:120], "calls": c / steps, "ms": us / 1e3 / steps, "class": classify(n)} for n, (c, us) in t.items()]
    rows.sort(key=lambda r: -r["ms"])
    totals = {k: sum(r["ms"] for r in rows if r["class"] == k) for k in ("gemm", "attention", "convolution", "triton", "other")}
    return {"kernels": sum(r["calls"] for r in rows), "totals_ms": totals, "kernel_ms": sum(totals.values()), "rows": rows[:40]}
def show_profile(name, p, rows=0):
    print(f"    {name}: {p['kernels']:.0f} kernels, {p['kernel_ms']:.2f} ms", {k: round(v, 2) for k, v in p["totals_ms"].items()}, flush=True)
    for r in p["rows"][:rows]: print("        %8.3f ms %6.1f %s %s" % (r["ms"], r["calls"], r["class"], r["name"][:100]))
def show_sites(sites):
    for name, v in sites.items():
        print("     ", name, v["state"], (v["reason"] or "")[:300], "fused", v["calls_fused"], "eager", v["calls_eager"], "keys", v["verified_keys"], "first sight ms", v["first_sight_ms"], flush=True)
        for one in v.get("rejections", ())[:6]: print("         rejected:", str(one["key"])[:160], "|", one["reason"][:200])

def build(arguments):
    with torch.device("meta"): model = as_longlive2(WanTransformer3DModel(**arguments).eval())
    materialise(model, "transformer", dtype=DTYPE, device=device, seed=0, gain=dummy_wan.GAINS["transformer"])
    dummy_wan.point_velocity_along_latents(model)
    return model.requires_grad_(False)

class Recorder:
    """The transformer as the loop sees it; keeps every velocity, and waits for nothing."""
    def __init__(self, model): self.model, self.dtype, self.velocities = model, model.dtype, []
    def forward_chunk(self, *args, **kwargs):
        out = self.model.forward_chunk(*args, **kwargs); self.velocities.append(out.clone()); return out

def inputs_of(kind, chunks, seed=0):
    noise = draw_noise((1, 48, CHUNK * chunks, HEIGHT, WIDTH), torch.Generator(device).manual_seed(seed), device)
    image = rnd(1, 48, 1, HEIGHT, WIDTH, seed=900 + seed, dtype=torch.float32) if kind == "i2v" else None
    return noise, rnd(1, TEXT, TEXT_DIM, seed=200 + seed), image
def caches_of(model, chunks): return model.new_caches(1, HEIGHT, WIDTH, device, DTYPE, CHUNK * chunks)
def announce(mounted, inputs, steps):
    """As the session does: before the loop, every tensor that it will tell as timesteps."""
    if mounted is not None: mounted.announce_steps([*(steps.timesteps_behind_image if inputs[2] is not None else ()), *steps.timesteps, steps.clean])
def clip(model, inputs, steps, caches, mounted=None):
    """Velocities of every forward, and the clip's latents."""
    announce(mounted, inputs, steps)
    recorder = Recorder(model)
    latents = torch.cat(list(denoise(recorder, *inputs, steps, caches)), dim=2)
    sync()
    return recorder.velocities, latents
def held(caches): return [t.clone() for t in (*caches.keys, *caches.values, *caches.text_keys, *caches.text_values)]
def compare(r, name, expected, found, kept, caches):
    r[f"{name}_velocities"] = [differing(a, b) for a, b in zip(expected[0], found[0], strict=True)]
    r[f"{name}_latents"] = differing(expected[1], found[1])
    tensors = (*caches.keys, *caches.values, *caches.text_keys, *caches.text_values)
    r[f"{name}_caches"] = next((f"{i}: {d}" for i, (a, b) in enumerate(zip(kept, tensors, strict=True)) if (d := differing(a, b))), None)
    r[f"{name}_equal"] = not any(r[f"{name}_velocities"]) and r[f"{name}_latents"] is None and r[f"{name}_caches"] is None
    print(f"  {name}:", "EQUAL" if r[f"{name}_equal"] else ("DIFFERS", r[f"{name}_velocities"], r[f"{name}_latents"], r[f"{name}_caches"]), flush=True)
    save()

def small_mount(model, inputs, steps, chunks):
    """Where graphs are recorded on a CPU, aten's operations alone are known: this half of the try-out has no kernels."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.fastpaths.fake_capture import FakeCapture
    no_reasons, longlive2_transformer.site_reasons = longlive2_transformer.site_reasons, SITE_REASONS
    mounted = mount(SimpleNamespace(transformer=model))
    longlive2_transformer.site_reasons = no_reasons
    clip(model, inputs, steps, caches_of(model, chunks), mounted)
    fake = FakeCapture()
    torch.cuda.is_initialized, torch.cuda.is_current_stream_capturing = (lambda: fake.is_recording), (lambda: fake.is_recording)
    return mounted, fake

def check_clips(model, kind, chunks, count, r, has_reference=True):
    """Reference == eager == fused == graph of a whole clip; leaves mount and graphs open and returns them."""
    inputs, steps, caches = inputs_of(kind, chunks), ChunkSteps(count, device), caches_of(model, chunks)
    began = time.perf_counter()
    expected = clip(model, inputs, steps, caches)
    r["eager_s"] = round(time.perf_counter() - began, 2)
    kept = held(caches)
    r["finite"] = all(bool(one.isfinite().all()) for one in (*expected[0], expected[1]))
    r["chunks differ"] = not torch.equal(expected[1][:, :, :CHUNK], expected[1][:, :, CHUNK : 2 * CHUNK])
    compare(r, "eager again", expected, clip(model, inputs, steps, caches), kept, caches)
    if has_reference:
        began = time.perf_counter()
        r["reference_latents"] = differing(expected[1], generate_reference(model, *inputs, count)); sync()
        r["reference_s"] = round(time.perf_counter() - began, 2)
        print("  reference:", "EQUAL" if r["reference_latents"] is None else r["reference_latents"], r["reference_s"], "s", flush=True)
    if not SMALL: torch.cuda.empty_cache()
    # torch's CPU sums a norm's statistics in another order than its cards do: there one call tells nothing of the next.
    mounted = mount(SimpleNamespace(transformer=model), verifies_every_call=SMALL)
    began = time.perf_counter()
    compare(r, "first", expected, clip(model, inputs, steps, caches, mounted), kept, caches)
    r["first_clip_s"] = round(time.perf_counter() - began, 2)
    mounted.end_request(); mounted.restart_counting()
    compare(r, "fused", expected, clip(model, inputs, steps, caches, mounted), kept, caches)
    r["sites"] = mounted.report()["sites"]
    r["frames share a row"] = list(map(bool, mounted.graph_target().owner.told_alike._have_equal_rows.values()))
    print("  equal timesteps have rows of equal bits in eager:", r["frames share a row"], flush=True)
    print(f"  {kind}: eager {r['eager_s']} s, first mounted {r['first_clip_s']} s, finite {r['finite']}", flush=True)
    show_sites(r["sites"]); save()
    if SMALL:
        mounted.unmount()
        mounted, capture = small_mount(model, inputs, steps, chunks)
    else:
        capture = CudaCapture(device)
    graphs = TransformerGraphs(model, mounted, capture)
    began = time.perf_counter()
    with graphs.capturing(): compare(r, "capturing", expected, clip(model, inputs, steps, caches, mounted), kept, caches)
    r["capturing_s"] = round(time.perf_counter() - began, 2)
    graphs.restart_counting()
    compare(r, "graph", expected, clip(model, inputs, steps, caches, mounted), kept, caches)
    r["graphs"] = graphs.report()
    print("  graphs", {k: v for k, v in r["graphs"].items() if k != "breaks"}, flush=True)
    other = inputs_of(kind, chunks, seed=7)
    graphed = clip(model, other, steps, caches, mounted)
    graphed_caches = held(caches)
    r["misses of another clip"] = graphs.report()["missed"]
    r["graph differs between clips"] = not torch.equal(graphed[1], expected[1])
    runner, target = mounted.graph_target().owner.core, mounted.graph_target().owner
    target.core = target.run_core
    compare(r, "fused of another clip", graphed, clip(model, other, steps, caches, mounted), graphed_caches, caches)
    target.core = runner
    return mounted, graphs, caches, inputs, steps

def times(model, mounted, caches, inputs, steps, chunk, r):
    """A forward of chunk ``chunk`` (it writes its place, and ends nothing), eager, fused and graph by turns."""
    forward = mounted.graph_target().owner
    runner, core = forward.core, forward.run_core
    noise, text, _ = inputs
    announce(mounted, inputs, steps)
    caches.reset()
    for before in range(chunk):
        model.forward_chunk(noise[:, :, before * CHUNK : (before + 1) * CHUNK].to(DTYPE), steps.clean, text, caches, before * CHUNK, write=True)
    call = dict(hidden_states=noise[:, :, chunk * CHUNK : (chunk + 1) * CHUNK].to(DTYPE), timestep=steps.timesteps[0], encoder_hidden_states=text, caches=caches, start_frame=chunk * CHUNK, write=False)
    def plain(): return type(model).forward(model, **call)
    def fused():
        forward.core = core
        try: return model(**call)
        finally: forward.core = runner
    def graph(): return model(**call)
    arms = {"eager": plain, "fused": fused, "graph": graph}
    outputs = [arm().clone() for arm in arms.values()]
    sync()
    r["differs"] = [differing(outputs[0], one) for one in outputs[1:]]
    r["one row of modulation"] = forward.prepare(**{k: v for k, v in call.items() if k != "write"})[2] is None
    print("    one row of modulation:", r["one row of modulation"], flush=True)
    del outputs
    r["rounds_ms"] = {name: [] for name in arms}
    for turn in range(1 if SMALL else options.rounds):
        for name in (list(arms) if turn % 2 == 0 else list(arms)[::-1]): r["rounds_ms"][name].append(timed(arms[name]))
    r["median_ms"] = {name: statistics.median(values) for name, values in r["rounds_ms"].items()}
    print("    fused, graph differ from eager:", r["differs"], flush=True)
    for name, values in r["rounds_ms"].items(): print("    rounds", name, "median %.2f" % r["median_ms"][name], [round(v, 1) for v in values], flush=True)
    save()
    if SMALL: return
    r["peak_gib"] = {}
    before = torch.cuda.memory_allocated() / 2**30
    for name, arm in arms.items():
        torch.cuda.reset_peak_memory_stats(); arm(); sync()
        r["peak_gib"][name] = torch.cuda.max_memory_allocated() / 2**30
    print("    peak GiB", {k: round(v, 2) for k, v in r["peak_gib"].items()}, "held before", round(before, 2), flush=True)
    for name, arm in arms.items():
        r[f"{name}_profile"] = profiled(arm, 1 if name == "eager" else 2); show_profile(name, r[f"{name}_profile"], 20 if name == "graph" else 4)
    for name in ("eager", "graph"):
        t = r[f"{name}_profile"]["totals_ms"]; floor = t["gemm"] + t["attention"]
        r[f"times_floor_of_{name}"] = {arm: ms / floor for arm, ms in r["median_ms"].items()}
        print(f"    wall / (gemm + attention of {name}, {floor:.2f} ms):", {k: round(v, 3) for k, v in r[f"times_floor_of_{name}"].items()}, flush=True)
    print("    eager / fused %.3f, eager / graph %.3f" % (r["median_ms"]["eager"] / r["median_ms"]["fused"], r["median_ms"]["eager"] / r["median_ms"]["graph"]), flush=True)
    torch.cuda.set_sync_debug_mode("error")
    try: fused(); graph(); r["waits"] = None
    except RuntimeError as error: r["waits"] = str(error)[:300]
    finally: torch.cuda.set_sync_debug_mode("default")
    print("    waits for the card:", r["waits"], flush=True)

def kernel_cases(arguments, workload, edge):
    with torch.device("meta"): narrow = as_longlive2(WanTransformer3DModel(**{**arguments, "num_layers": 2}).eval())
    return cases_for(site_calls(in_dtype(narrow, DTYPE), workload, FAMILIES["longlive2"]), workload.name, edge_values=edge)
def check_kernels(r, cases, bench):
    r["cases"] = []
    watch = None if SMALL else CudaStopwatch(device)
    for case in cases:
        if not SMALL and elapsed() > options.limit + 10: r["cut"] = True; break
        o = check(case, device)
        row = {"kernel": o.operation, "workload": o.workload, "values": o.values, "shapes": o.shapes, "state": str(o.state), "reason": o.reason}
        if bench and not SMALL and case.values == "random" and elapsed() < options.limit:
            m = measure(case.call, o, device, lambda index: filler("random", index, device), watch)
            if m.fused is not None: row |= {"us": m.fused.median_us, "eager_us": m.eager.median_us, "floor_us": m.floor.median_us, "times_floor": m.times_floor}
        r["cases"].append(row)
        if row["state"] != "equal" or "us" in row:
            print("   ", row["state"], row["kernel"], row["workload"], row["values"], (row["reason"] or "")[:200], {k: round(v, 2) for k, v in row.items() if isinstance(v, float)}, flush=True)
    print("   ", collections.Counter(row["state"] for row in r["cases"]), flush=True)

with torch.no_grad():
    arguments = TINY if SMALL else dict(WAN22.transformer)
    TEXT_DIM = arguments["text_dim"] if "text_dim" in arguments else 4096
    with section("build") as r:
        model = build(arguments); sync()
        r["parameters"] = sum(p.numel() for p in model.parameters()); r["tokens"] = CHUNK * HEIGHT * WIDTH // 4
        print("built", round(r["parameters"] / 1e9, 3), "B,", r["tokens"], "tokens a chunk", flush=True)
    for kind in ("t2v", "i2v"):
        with section(f"{kind} clips") as r:
            mounted, graphs, caches, inputs, steps = check_clips(model, kind, 2, STEPS if kind == "t2v" else min(STEPS, 2), r)
            try:
                for chunk in (0, 1) if kind == "t2v" else ():
                    with section(f"{kind} times of chunk {chunk}") as t: times(model, mounted, caches, inputs, steps, chunk, t)
            finally:
                graphs.close(); mounted.unmount()
            del mounted, graphs, caches
        if not SMALL: torch.cuda.empty_cache()
    if has_time("wrapped clips"):
        with section("wrapped clips") as r:  # chunks 3, 4 and 5 see a full window, behind which frames were dropped
            mounted, graphs, caches, inputs, steps = check_clips(model, "t2v", 6, 1, r)
            try:
                if not SMALL and has_time("times of a full window"):
                    with section("times of chunk 4, a full window") as t: times(model, mounted, caches, inputs, steps, 4, t)
            finally:
                graphs.close(); mounted.unmount()
            del mounted, graphs, caches
    real = Workload("2+8 rows", 2, 8) if SMALL else Workload("832x480, a chunk", 512, 3120)
    if has_time("kernels at real sizes"):
        with section("kernels at real sizes") as r: check_kernels(r, kernel_cases(arguments, real, False), True)
    if not SMALL and has_time("kernels with hard values"):
        with section("kernels with hard values") as r: check_kernels(r, [case for odd in ODD for case in kernel_cases(arguments, odd, True)], False)
clips = {name: found for name, found in res["sections"].items() if name.endswith("clips")}
names = ("eager again_equal", "first_equal", "fused_equal", "capturing_equal", "graph_equal", "fused of another clip_equal")
verdict = {name: {k: found.get(k) for k in (*names, "reference_latents", "misses of another clip", "error")} for name, found in clips.items()}
res["verdict"] = verdict
res["exact"] = bool(clips) and all("error" not in found and all(found.get(k) for k in names) and found.get("reference_latents", "?") is None for found in clips.values())
for name, found in verdict.items(): print(name, found)
print("EXACT" if res["exact"] else "NOT EXACT", "done in", round(elapsed(), 1), "s; left out:", res["left_out"], flush=True)
save()
