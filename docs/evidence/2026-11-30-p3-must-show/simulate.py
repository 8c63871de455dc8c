"""The tables of simulated campaigns: `python docs/evidence/2026-11-30-p3-must-show/simulate.py` from the checkout."""

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path.cwd()))
from tests.harness.simulated_campaigns import candidate_sign, shares, white
from tests.harness.test_verdict_simulations import NOISES, NULL_SCENARIOS, ORDERS, seeded

false_verdicts = {
    name: {
        order: {
            str(blocks): [
                round(shares(scenario(seeded(name, blocks, cv), blocks, cv), order).directional, 2) for cv in NOISES
            ]
            for blocks in (2, 4)
        }
        for order in ORDERS
    }
    for name, scenario in NULL_SCENARIOS.items()
}
power = {}
for cv, effect in [(0.003, 0.0115), (0.005, 0.015), (0.01, 0.02), (0.02, 0.03), (0.02, 0.04), (0.05, 0.1)]:
    row = []
    for blocks in (2, 3, 4, 6, 8):
        times = white(seeded("more", blocks, cv, effect), blocks, cv)
        times = times + np.log1p(-effect) * candidate_sign(blocks, "mirrored")
        row.append(round(shares(times, "mirrored").faster, 2))
    power[f"cv {cv:.1%}, effect {effect:.2%}"] = row
print(json.dumps({"campaigns": 10_000, "noises": NOISES, "false_percent": false_verdicts, "power_percent": power}))
