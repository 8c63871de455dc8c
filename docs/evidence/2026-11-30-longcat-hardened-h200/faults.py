"""Faults by hand, embedded model on the card. faults.py OUT.json"""
import json, os, subprocess, sys, time
OUT = sys.argv[1]; rows = []
BASE = ["--prompt", "a red panda", "--seed", "7", "--num-inference-steps", "4", "--no-save-output"]
def run(name, args, expect, command="generate", base=BASE):
    if os.environ.get("ONLY", name) != name: return
    dump = f"/tmp/fault-{len(rows)}.json"
    cmd = [sys.executable, "-m", "fuseproof", command, *args, *(base + ["--perf-dump-path", dump] if command == "generate" else [])]
    t = time.time(); p = subprocess.run(cmd, capture_output=True, text=True, timeout=200)
    row = {"name": name, "args": args, "rc": p.returncode, "expected_rc": expect, "stderr": p.stderr[-1500:], "seconds": round(time.time() - t, 1)}
    if command == "generate" and os.path.exists(dump):
        d = json.load(open(dump)); row["raw"] = [o["raw_sha256"] for o in d["outputs"]]
        row["sites"] = {k: [v["state"], v.get("reason"), v.get("calls_fused")] for k, v in d["fastpaths"]["sites"].items()}; row["graphs"] = d["graphs"]
    else: row["stdout"] = p.stdout[-1500:]
    rows.append(row); json.dump(rows, open(OUT, "w"), indent=1)
    print(f"== {name}: rc {p.returncode} (expected {expect}) raw {[r[:8] for r in row.get('raw', [])]} {row['seconds']} s", flush=True)
    for l in p.stderr.strip().splitlines()[-4:]: print("    ", l[:260])
    for k, v in row.get("sites", {}).items():
        if k in ("mine", "layernorm_modulate") or v[0] in ("rejected", "declined"): print("     site", k, v[0], str(v[1])[:200], v[2])
run("reference: diffusers", ["--backend", "diffusers"], 0)
run("all fast paths", [], 0)
run("wrong bits", ["--fastpaths-from", "wrong.py"], 0)
run("wrong bits, required", ["--fastpaths-from", "wrong.py", "--require-fastpaths"], 6)
run("wrong bits, with graphs", ["--fastpaths-from", "wrong.py", "--enable-breakable-cuda-graph", "--warmup-steps", "2"], 0)
run("raises at first sight", ["--fastpaths-from", "raises.py"], 0)
run("raises after verification", ["--fastpaths-from", "late.py", "--num-inference-steps", "50"], 1, base=[*BASE[:4], "--no-save-output"])
run("graph missed", ["--enable-breakable-cuda-graph", "--warmup-mode", "server", "--warmup-resolutions", "128x128", "--warmup-steps", "2", "--width", "64", "--height", "64"], "6 or 0 when captured besides")
run("graph asked, one step warm-up", ["--enable-breakable-cuda-graph"], 0)
run("graph and compile", ["--enable-breakable-cuda-graph", "--enable-torch-compile"], 2)
run("float16", ["--dtype", "float16"], 0)
run("float16 diffusers", ["--dtype", "float16", "--backend", "diffusers"], 0)
run("float32", ["--dtype", "float32"], 0)
run("float32 diffusers", ["--dtype", "float32", "--backend", "diffusers"], 0)
run("high", ["--quality", "high"], 0)
run("extra-high", ["--quality", "extra-high"], 0)
run("on the CPU of a GPU machine", ["--device", "cpu"], 0)
run("odd size 48x80", ["--width", "48", "--height", "80"], 0)
run("odd size 48x80 diffusers", ["--width", "48", "--height", "80", "--backend", "diffusers"], 0)
run("abba says so", ["--allow-busy", "--blocks", "1", "--output", "/tmp/fault-campaign", "--baseline", "--fastpaths=auto", "--candidate", "--fastpaths=auto --fastpaths-from wrong.py", "--flags", "--prompt 'a red panda' --num-inference-steps 4"], 0, "abba")
print(rows[-1]["stdout"][-1500:])
