"""Wan's transformer on a card: bits of every kernel and of whole forwards, then times. `wan_card.py OUT.json [--small]`.

Dummy wan2.2-ti2v-5b at 832x480, 61 frames (6240 tokens): T2V (one timestep) and I2V (0 in the first latent frame).
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
parser.add_argument("--limit", type=float, default=115.0)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--wan21", action="store_true", help="also Wan 2.1 1.3B at 832x480, 81 frames, bits only")
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
from fuseproof.fastpaths.sites import wan_transformer  # noqa: E402
from fuseproof.fastpaths.sites.wan_transformer import timestep_rows  # noqa: E402
from fuseproof.fastpaths.verification import cases_for, check  # noqa: E402
from fuseproof.pipelines import dummy_wan  # noqa: E402
from fuseproof.pipelines.dummy_geometry import WAN21, WAN22  # noqa: E402
from fuseproof.pipelines.dummy_weights import materialise  # noqa: E402
from fuseproof.pipelines.families import FAMILIES  # noqa: E402
from fuseproof.pipelines.fastpath_workloads import ODD, Workload, in_dtype, site_calls  # noqa: E402
from fuseproof.pipelines.graphs import TransformerGraphs  # noqa: E402

SMALL = options.small
device = torch.device("cpu" if SMALL else "cuda")
DTYPE = torch.bfloat16
FRAMES, HEIGHT, WIDTH, TEXT = (2, 2, 4, 5) if SMALL else (16, 30, 52, 512)
TINY = {"num_attention_heads": 2, "attention_head_dim": 128, "in_channels": 48, "out_channels": 48, "text_dim": 64, "ffn_dim": 256, "num_layers": 2}
if SMALL:
    from fuseproof.fastpaths.interpreter_rounding import exact_rounding
    ROUNDING = exact_rounding(); ROUNDING.__enter__()
    SITE_REASONS, wan_transformer.site_reasons = wan_transformer.site_reasons, lambda transformer: {}
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
        found["error"] = f"{type(error).__name__}: {error}"[:600]; found["trace"] = traceback.format_exc()[-1500:]
        print("ERROR in", name, found["error"], found["trace"], flush=True)
    finally:
        found["seconds"] = round(elapsed() - began, 1); save()
        print(f"== {name}: {found['seconds']} s, {elapsed():.0f} s in all", flush=True)
def has_time(name):
    if elapsed() < options.limit: return True
    res["left_out"].append(name); print("left out:", name, flush=True); save(); return False
def rnd(*shape, seed, scale=1.0, dtype=DTYPE):
    g = torch.Generator(device).manual_seed(seed)
    return (torch.randn(*shape, device=device, generator=g) * scale).to(dtype)
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
    with torch.device("meta"): model = WanTransformer3DModel(**arguments).eval()
    materialise(model, "transformer", dtype=DTYPE, device=device, seed=0, gain=dummy_wan.GAINS["transformer"])
    dummy_wan.point_velocity_along_latents(model)
    return model.requires_grad_(False)
def told(kind, value, frames, tokens):
    if kind == "2.1": return torch.full((1,), int(value), device=device)
    t = torch.full((1, frames * tokens), float(value), device=device)
    if kind == "i2v": t[:, :tokens] = 0
    return t
def calls_of(model, kind, frames, height, width):
    """Two steps of two branches: the loop's own arguments, cond and uncond sharing a timestep tensor."""
    channels, text_dim = model.config.in_channels, model.config.text_dim
    texts = [rnd(1, TEXT, text_dim, seed=200 + i) for i in range(2)]
    steps = [told(kind, value, frames, height * width // 4) for value in (987.0, 431.0)]
    latents = [rnd(1, channels, frames, height, width, seed=100 + i) for i in range(2)]
    return steps, [dict(hidden_states=latents[i], timestep=steps[i], encoder_hidden_states=text, return_dict=False) for i in range(2) for text in texts]

def check_forwards(model, kind, frames, height, width, r, expected):
    """Eager == fused == graph for every call of the loop; leaves the mount and graphs open and returns them."""
    pipe = SimpleNamespace(transformer=model)
    steps, calls = calls_of(model, kind, frames, height, width)
    mounted = mount(pipe)
    began = time.perf_counter()
    mounted.announce_steps(steps)
    first = [model(**call)[0] for call in calls]; sync()
    r["first_calls_s"] = round(time.perf_counter() - began, 2)
    r["first_differs"] = [differing(a, b) for a, b in zip(expected, first, strict=True)]
    del first
    mounted.restart_counting()
    again = [model(**call)[0] for call in calls]; sync()
    r["fused_differs"] = [differing(a, b) for a, b in zip(expected, again, strict=True)]
    r["sites"] = mounted.report()["sites"]
    forward = mounted.graph_target().owner
    r["row_counts"] = [f"{key[2]} row(s): products over {count}" for key, count in forward.rows._counts.items()]
    print(f"  {kind}: first {r['first_differs']} fused {r['fused_differs']} first calls {r['first_calls_s']} s; rows {r['row_counts']}", flush=True)
    show_sites(r["sites"]); save()
    if SMALL:
        sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
        from tests.fastpaths.fake_capture import FakeCapture
        mounted.unmount()  # the recorder knows aten's operations alone: this half of the try-out has no kernels
        no_reasons, wan_transformer.site_reasons = wan_transformer.site_reasons, SITE_REASONS
        mounted = mount(pipe); mounted.announce_steps(steps); [model(**call) for call in calls]
        wan_transformer.site_reasons = no_reasons
        forward = mounted.graph_target().owner
        fake = FakeCapture(); capture = fake
        torch.cuda.is_initialized, torch.cuda.is_current_stream_capturing = (lambda: fake.is_recording), (lambda: fake.is_recording)
    else:
        capture = CudaCapture(device)
    graphs = TransformerGraphs(model, mounted, capture)
    with graphs.capturing(): captured = [model(**call)[0] for call in calls]
    sync(); del captured
    graphs.restart_counting()
    replayed = [model(**call)[0] for call in calls]; sync()
    r["graph_differs"] = [differing(a, b) for a, b in zip(expected, replayed, strict=True)]
    r["graphs"] = graphs.report()
    print(f"  {kind}: graph {r['graph_differs']}", {k: v for k, v in r["graphs"].items() if k != "breaks"}, flush=True)
    return mounted, graphs, calls, forward

def report_rows(model, forward, timestep, kind, r):
    """Why a number of rows was chosen: how the products of fewer rows differ from those of all, stage by stage."""
    tokens = timestep_rows.tokens_of(timestep)
    rows = timestep_rows.TimestepRows(model, None)
    every = rows._embedded(timestep, DTYPE)
    picked = timestep_rows._picked(every, tokens.first)
    spread = timestep_rows._spread(picked, tokens, timestep.shape[1])
    found = {"tokens agree in eager": [bits_equal(a, b) for a, b in zip(every, spread)]}
    for count in (1, *timestep_rows.ROW_COUNTS, 2048, 4096):
        if len(tokens) <= count < timestep.shape[1]:
            some = rows._of_count(timestep, tokens, DTYPE, count)
            found[count] = [differing(a, b) and differing(a, b)["differing_share"] for a, b in zip(picked, some)]
    for count in (2, 128, 1024, timestep.shape[1]):
        if not SMALL and count >= len(tokens): found[f"ms over {count}"] = round(timed(lambda: rows._of_count(timestep, tokens, DTYPE, count)), 3)
    r["rows"] = found
    print(f"  {kind}: embedding, temb, projection of fewer rows: share of values that differ", found, flush=True)

def times(model, mounted, graphs, calls, r):
    """Eager, fused and graph by turns, the order turned round each time: wall ms a forward; then profiles and peaks."""
    call, forward = calls[0], mounted.graph_target().owner
    runner, core = forward.core, forward.run_core
    def plain(): return type(model).forward(model, **call)[0]
    def fused():
        forward.core = core
        try: return model(**call)[0]
        finally: forward.core = runner
    def graph(): return model(**call)[0]
    arms = {"eager": plain, "fused": fused, "graph": graph}
    for arm in arms.values(): arm()
    sync()
    r["rounds_ms"] = {name: [] for name in arms}
    for turn in range(1 if SMALL else options.rounds):
        for name in (list(arms) if turn % 2 == 0 else list(arms)[::-1]):
            r["rounds_ms"][name].append(timed(arms[name]))
    r["median_ms"] = {name: statistics.median(values) for name, values in r["rounds_ms"].items()}
    for name, values in r["rounds_ms"].items(): print("    rounds", name, "median %.2f" % r["median_ms"][name], [round(v, 1) for v in values], flush=True)
    save()
    if SMALL: return
    r["peak_gib"] = {}
    weights = torch.cuda.memory_allocated() / 2**30
    for name, arm in arms.items():
        torch.cuda.reset_peak_memory_stats(); arm(); sync()
        r["peak_gib"][name] = torch.cuda.max_memory_allocated() / 2**30
    print("    peak GiB", {k: round(v, 2) for k, v in r["peak_gib"].items()}, "held before", round(weights, 2), "graph pool GiB", round(r["graphs"]["pool_bytes"] / 2**30, 2), flush=True)
    for name, arm in arms.items():
        r[f"{name}_profile"] = profiled(arm, 1 if name == "eager" else 2); show_profile(name, r[f"{name}_profile"], 24 if name == "graph" else 6)
    for name in ("eager", "graph"):
        t = r[f"{name}_profile"]["totals_ms"]; floor = t["gemm"] + t["attention"]
        r[f"times_floor_of_{name}"] = {arm: ms / floor for arm, ms in r["median_ms"].items()}
        print(f"    wall / (gemm + attention of {name}, {floor:.2f} ms):", {k: round(v, 3) for k, v in r[f"times_floor_of_{name}"].items()}, flush=True)
    print("    eager / fused %.3f, eager / graph %.3f" % (r["median_ms"]["eager"] / r["median_ms"]["fused"], r["median_ms"]["eager"] / r["median_ms"]["graph"]), flush=True)

def kernel_cases(model_arguments, workload, family, edge):
    with torch.device("meta"): narrow = WanTransformer3DModel(**{**model_arguments, "num_layers": 2}).eval()
    return cases_for(site_calls(in_dtype(narrow, DTYPE), workload, FAMILIES[family]), workload.name, edge_values=edge)

def check_kernels(r, cases, bench):
    r["cases"] = []
    watch = None if SMALL else CudaStopwatch(device)
    for case in cases:
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
    with section("build") as r:
        model = build(arguments); sync()
        r["parameters"] = sum(p.numel() for p in model.parameters()); r["tokens"] = FRAMES * HEIGHT * WIDTH // 4
        print("built", round(r["parameters"] / 1e9, 3), "B,", r["tokens"], "tokens", flush=True)
    eager = {}
    for kind in ("t2v", "i2v"):
        with section(f"{kind} forwards") as r:
            _, calls = calls_of(model, kind, FRAMES, HEIGHT, WIDTH)
            eager[kind] = [model(**call)[0] for call in calls]; sync()
            r["finite"] = all(bool(one.isfinite().all()) for one in eager[kind])
            r["branches differ"] = not torch.equal(eager[kind][0], eager[kind][1])
            r["eager_repeats"] = differing(eager[kind][0], model(**calls[0])[0])
            mounted, graphs, calls, forward = check_forwards(model, kind, FRAMES, HEIGHT, WIDTH, r, eager[kind])
            try:
                report_rows(model, forward, calls[0]["timestep"], kind, r); save()
                if kind == "t2v" or has_time(f"{kind} times"): times(model, mounted, graphs, calls, r)
            finally:
                graphs.close(); mounted.unmount()
            r["eager_after_differs"] = differing(eager[kind][0], model(**calls[0])[0])
            print("  eager after unmount", r["eager_after_differs"], flush=True)
        if not SMALL: torch.cuda.empty_cache()
    real = Workload("2+3 rows", 2, 3) if SMALL else Workload("832x480, 61 frames", 512, 6240)
    if has_time("kernels at real sizes"):
        with section("kernels at real sizes") as r: check_kernels(r, kernel_cases(arguments, real, "wan2.2-ti2v-5b", False), True)
    if not SMALL and has_time("kernels with hard values"):
        with section("kernels with hard values") as r:
            cases = [case for odd in ODD for case in kernel_cases(arguments, odd, "wan2.2-ti2v-5b", True)]
            check_kernels(r, cases, False)
    if options.wan21 and not SMALL and has_time("wan2.1"):
        del model, eager; torch.cuda.empty_cache()
        with section("wan2.1 forwards") as r:
            model = build(dict(WAN21.transformer))
            _, calls = calls_of(model, "2.1", 21, 60, 104)
            expected = [model(**call)[0] for call in calls]
            mounted, graphs, calls, forward = check_forwards(model, "2.1", 21, 60, 104, r, expected)
            graphs.close(); mounted.unmount()
verdict = {name: {k: found.get(k) for k in ("first_differs", "fused_differs", "graph_differs", "eager_after_differs", "eager_repeats", "error")} for name, found in res["sections"].items() if "forwards" in name}
res["exact"] = all(not found["error"] and found["first_differs"] is not None and not any(found["first_differs"]) and not any(found["fused_differs"]) and not any(found["graph_differs"] or [1]) for found in verdict.values())
res["not_fused"] = {f"{name}: {site}": f"{v['state']}: {v['reason']}"[:300] for name, found in res["sections"].items() for site, v in found.get("sites", {}).items() if v["state"] != "fused" or v["reason"]}
for name, why in res["not_fused"].items(): print("NOT ALL FUSED", name, why, flush=True)
print("EXACT" if res["exact"] else "NOT EXACT", "done in", round(elapsed(), 1), "s; left out:", res["left_out"], flush=True)
save()
