"""A campaign of many cells over a Ray cluster of two simulated nodes, one of which dies, and then the program itself.

Run from the root of a checkout whose Python has Ray: python docs/evidence/2026-11-30-ray-simulated/simulate.py OUT.
Every slot runs tests/harness/fake_arm.py, a fresh Python that writes a perf dump and a tiny picture, so that what is
measured is what the tool adds. OUT is a new folder; OUT/summary.json holds the numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from ray.cluster_utils import Cluster

ABBA = (sys.executable, "-m", "fuseproof", "abba")
LANES = ("--executor", "ray", "--gpus-per-block", "0", "--allow-busy")
STORE_BYTES = 80 * 2**20
POLL_S = 1.0
NODES, CPUS = 2, 2


def main() -> int:
    options = parse()
    options.out.mkdir(parents=True)
    plan, campaign = options.out / "plan.toml", options.out / "campaign"
    plan.write_text(plan_text(options.cells), encoding="utf-8")
    node_args = {"num_cpus": CPUS, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args=node_args | {"include_dashboard": False})
    nodes = [cluster.add_node(**node_args) for _ in range(NODES - 1)]
    environment = {**os.environ, "RAY_ADDRESS": cluster.address, "RAY_USAGE_STATS_ENABLED": "0"}
    sessions: list[dict[str, Any]] = []
    with (options.out / "abba.log").open("wb") as log:
        first = start([*ABBA, str(plan), "--output", str(campaign), *LANES], environment, log)
        began_s = time.monotonic()
        wait_for_slots(campaign, first, options.cells * 4 // 3)
        kill_node(nodes[0])
        sessions.append({"event": "kill -9 of a node's raylet and workers", "slots_on_disk": slots_on_disk(campaign)})
        wait_for_slots(campaign, first, options.cells * 4 * 2 // 3)
        first.send_signal(signal.SIGKILL)
        first.wait()
        first_s = time.monotonic() - began_s
        sessions.append({"event": "kill -9 of abba itself", "slots_on_disk": slots_on_disk(campaign)})
        before = finished_blocks(campaign)
        cluster.add_node(**node_args)
        began_s = time.monotonic()
        second = start([*ABBA, "--resume", str(campaign), *LANES], environment, log)
        code = second.wait()
        second_s = time.monotonic() - began_s
    cluster.shutdown()
    began_s = time.monotonic()
    verified = subprocess.run([sys.executable, "-m", "fuseproof", "verify", str(campaign)], check=False)
    verify_s = time.monotonic() - began_s
    summary = summarised(campaign, before) | {
        "cells": options.cells,
        "nodes": NODES,
        "lanes": NODES * CPUS,
        "sessions": sessions,
        "first_session_s": round(first_s, 1),
        "second_session_s": round(second_s, 1),
        "resume_exit_code": code,
        "verify_exit_code": verified.returncode,
        "verify_s": round(verify_s, 1),
        "arm_alone_s": round(arm_alone_s(options.out), 4),
        "versions": {name: importlib.metadata.version(name) for name in ("ray", "fuseproof", "psutil")},
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": [round(value, 1) for value in os.getloadavg()],
    }
    (options.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(summary, indent=2) + "\n")
    return 0 if code == 0 and verified.returncode == 0 else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cells", type=int, default=1000)
    return parser.parse_args()


def fake_command(**options: object) -> str:
    words = [sys.executable, "-S", "-E", "tests/harness/fake_arm.py", "--perf-dump", "{perf_dump}"]
    words += ["--outputs", "{output_dir}"]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


def plan_text(cells: int) -> str:
    arms = {"baseline": fake_command(worker_ms=1000), "candidate": fake_command(worker_ms=900)}
    lines = ["schema = 1", 'name = "simulated"', "blocks = 1", "warmup_slots = 0", "retries = 1"]
    for arm, command in arms.items():
        lines += [f"[arms.{arm}]", f'name = "{arm}"', f"command = {json.dumps(command)}"]
    for number in range(cells):
        lines += ["[[cells]]", f'name = "cell-{number:04d}"']
    return "\n".join(lines) + "\n"


def start(argv: list[str], environment: dict[str, str], log: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(argv, env=environment, stdout=log, stderr=log)


def kill_node(node: Any) -> None:
    """SIGKILL to a node's raylet and to the workers below it, as if the machine had lost its power.

    What the workers had started is left to itself: the slot's own watchdog has to end it.
    """
    raylets = [psutil.Process(info.process.pid) for info in node.all_processes["raylet"]]
    for process in [*(child for raylet in raylets for child in raylet.children()), *raylets]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def slots_on_disk(campaign: Path) -> int:
    return sum(1 for _ in campaign.glob("slots/*/*/result.json"))


def wait_for_slots(campaign: Path, process: subprocess.Popen[bytes], wanted: int) -> None:
    while slots_on_disk(campaign) < wanted:
        if process.poll() is not None:
            raise SystemExit(f"abba ended with {process.returncode} before slot {wanted}; see abba.log")
        time.sleep(POLL_S)


def finished_blocks(campaign: Path) -> int:
    """Blocks that were whole when the program was killed; --resume must not run them again."""
    from fuseproof.harness.campaign.folder import Campaign

    opened = Campaign.open(campaign)
    return sum(len(opened.complete_blocks(cell.name)) for cell in opened.plan.cells)


def summarised(campaign: Path, before: int) -> dict[str, Any]:
    from fuseproof.harness.campaign.folder import Campaign

    opened = Campaign.open(campaign)
    slots = opened.slots()
    states: dict[str, int] = {}
    for slot in slots:
        states[slot.state] = states.get(slot.state, 0) + 1
    began: dict[str, list[tuple[float, float]]] = {}
    for slot in slots:
        if slot.state == "done" and slot.started_monotonic_s is not None and slot.ended_monotonic_s is not None:
            key = f"{slot.cell}/{slot.block}.{slot.attempt}"
            began.setdefault(key, []).append((slot.started_monotonic_s, slot.ended_monotonic_s))
    spans = [max(end for _, end in times) - min(begin for begin, _ in times) for times in began.values()]
    done = sum(len(times) for times in began.values())
    return {
        "status": opened.status,
        "complete_blocks": sum(len(opened.complete_blocks(cell.name)) for cell in opened.plan.cells),
        "complete_blocks_before_resume": before,
        "slots": len(slots),
        "slot_states": dict(sorted(states.items())),
        "blocks_begun_again": sorted({f"{slot.cell}/{slot.block:02d}" for slot in slots if slot.attempt > 1}),
        "nodes_used": len({slot.device.node for slot in slots if slot.device is not None}),
        "slot_wall_median_s": sorted(slot.wall_s for slot in slots if slot.wall_s is not None)[done // 2],
        "block_s_per_slot": round(sum(spans) / done, 4),
    }


def arm_alone_s(out: Path, runs: int = 20) -> float:
    """The fake arm without the tool, one after the other."""
    folder = out / "alone"
    (folder / "outputs").mkdir(parents=True)
    command = fake_command(worker_ms=1000)
    places = {"perf_dump": folder / "perf.json", "output_dir": folder / "outputs"}
    words = [word.format(**places) for word in shlex.split(command)]
    began_s = time.monotonic()
    for _ in range(runs):
        subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
    return (time.monotonic() - began_s) / runs


if __name__ == "__main__":
    sys.exit(main())
