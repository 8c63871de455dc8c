"""Any program as an arm: compresses a generated file with gzip and writes how long that took."""

import argparse
import hashlib
import json
import random
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

MEBIBYTES = 24

parser = argparse.ArgumentParser()
parser.add_argument("level")
parser.add_argument("--perf-dump", type=Path, required=True)
options = parser.parse_args()

generator = random.Random(42)
words = [bytes(generator.choices(b"abcdefghijklmnopqrstuvwxyz ", k=8)) for _ in range(4096)]
content = b"".join(generator.choices(words, k=MEBIBYTES * 2**17))
started = time.perf_counter()
packed = subprocess.run(["gzip", f"-{options.level}", "-n"], input=content, capture_output=True, check=True).stdout
spent_ms = 1000 * (time.perf_counter() - started)
dump = {
    "timestamp": datetime.now(UTC).isoformat(),
    "total_duration_ms": spent_ms,
    "steps": [{"name": "CompressionStage", "duration_ms": spent_ms}],
    "denoise_steps_ms": [],
    "meta": {"prompt": hashlib.sha256(content).hexdigest(), "model": "gzip"},
}
options.perf_dump.write_text(json.dumps(dump))
print(f"{len(content)} -> {len(packed)} bytes in {spent_ms:.1f} ms")
