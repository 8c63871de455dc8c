"""A child program in which nothing heavy can be imported."""

IMPORTS_NOTHING_HEAVY = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "triton", "diffusers", "transformers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from fuseproof.cli.main import main
"""


def without_torch(expression: str) -> str:
    """Python code that exits with ``expression`` (it may call ``main``), where torch and its like are absent."""
    return f"{IMPORTS_NOTHING_HEAVY}sys.exit({expression})\n"
