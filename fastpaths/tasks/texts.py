"""What a kernel task says to its reader: the task itself, the one command, the skeleton, and the two programs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fuseproof.fastpaths.tasks.folder import TaskCall, argument_rows

LABELS = ("Formula", "Shapes", "Rounds", "Replaces", "Exact", "Bytes", "Source")
"""The paragraphs of a kernel's contract that a writer of another one needs."""
COMMAND = "python -m pytest -v test_candidate.py && python bench.py"
PLACES = (
    "A *block* is one piece of memory: tensors of a call with the same block are views into it, as in the model, and "
    "each begins at the block's first element, or *from element* n. Strides and n count elements, not bytes."
)
OUTPUTS = (
    "An *output* is memory for the result that the model has ready, passed by keyword: a candidate may write into it "
    "or leave it alone. What it returns counts."
)

TEST = '''\
"""Every call with every kind of values: the candidate's bits must be the reference's."""

from pathlib import Path

import pytest
import torch

from candidate import candidate
from checking import fault
from inputs import read_calls
from reference import reference, settle

FOLDER = Path(__file__).parent
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CASES = [(call, kind) for call in read_calls(FOLDER, settle) for kind in call.values]


@pytest.mark.parametrize(("call", "kind"), CASES, ids=[f"{call.name}; {kind}" for call, kind in CASES])
def test_the_bits_are_the_references(call, kind):
    wrong = fault(candidate, reference, call, kind, DEVICE, FOLDER)
    if wrong is not None:
        pytest.fail(wrong, pytrace=False)
'''

BENCH = '''\
"""Times of the candidate beside the reference's and a copy's, as a Markdown table; exit code 1 where bits differ."""

import sys
from pathlib import Path

import torch

from candidate import candidate
from inputs import read_calls
from reference import reference, settle
from timing import HEAD, rows

FOLDER = Path(__file__).parent
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main() -> int:
    real = [call for call in read_calls(FOLDER, settle) if call.is_real]
    print(f"{torch.cuda.get_device_name() if DEVICE.type == 'cuda' else 'CPU'}, torch {torch.__version__}")
    print("medians [fastest, slowest round]; copy: the time to copy as many bytes as a call must move")
    if DEVICE.type != "cuda":
        print("wall times of this CPU: they say nothing about a card's, so no ratio is given")
    print(*HEAD, sep="\\n")
    is_wrong = False
    for row in rows(candidate, reference, real, DEVICE, FOLDER):
        print(row, flush=True)
        is_wrong = is_wrong or row.wrong is not None
    return 1 if is_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
'''


def candidate_text(parameters: Sequence[str], buffers: Sequence[str]) -> str:
    """The skeleton: it calls the reference, so every test passes and the ratio is 1."""
    given = ", ".join(re.sub(r"(?<![.\w])Tensor", "torch.Tensor", parameter) for parameter in parameters)
    taken = "".join(f", {_name(buffer)}=None" for buffer in buffers)
    about = " What comes by keyword may be written into or left alone: what is returned counts." if buffers else ""
    return f'''\
"""The kernel in the making. As it stands, it is the reference."""

from __future__ import annotations

import torch  # noqa: F401

from reference import reference


def candidate({given}{taken}):
    """Replace this call.{about}"""
    return reference({", ".join(map(_name, parameters))})
'''


def _name(parameter: str) -> str:
    return parameter.partition(":")[0].partition(" = ")[0]


def readme_text(site: str, kernel: str, model: str) -> str:
    """What to run, and how the result comes home; ``model`` is the one whose calls the task holds."""
    return f"""\
# A kernel to write: {kernel}

[task.md](task.md) says what and why. Write it in `candidate.py`, then:

    {COMMAND}

Needs torch and pytest (Triton if you use it), no network, no fuseproof. With a card the card is used, else the CPU; a
CPU may round sums in another order than a card does, so the last word is a card's, and times are only a card's: on a
CPU the bench gives no ratio. The calls have their true sizes, so on a CPU the test takes minutes.

| file | holds |
|---|---|
| `candidate.py` | your kernel; begins as a call of the reference |
| `reference.py` | the definition of correct, in plain torch |
| `calls.json` | every call: shapes, strides, offsets, shared memory, dtypes, numbers |
| `test_candidate.py` | bits on every call with every kind of values, twice; no memory used again; inputs unchanged |
| `bench.py` | on a card candidate over reference, with spread, and over a copy of as many bytes; bits first |
| `inputs.py`, `values.py`, `comparing.py`, `checking.py`, `timing.py` | what these two use |

To try it in the model, behind fuseproof's gate, write `mine.py` beside them:

    import sys; sys.path.insert(0, "/path/to/this/folder")
    from candidate import candidate
    from fuseproof.fastpaths import UserSite
    SITES = [UserSite("mine", fused=candidate, replaces="{kernel}")]

then, on a machine with a card (the site here is `{site}`),

    fuseproof fastpaths verify --model {model} --site mine --fastpaths-from mine.py
    fuseproof fastpaths bench --model {model} --site mine --fastpaths-from mine.py

Without a card both say so and end with exit code 2, and a request (`fuseproof generate --fastpaths-from mine.py`) runs
on the CPU without reaching the site: its kernels need a card. What does work there is the first of them at small sizes,
with Triton's interpreter, through the same comparison of bits:

    TRITON_INTERPRET=1 fuseproof fastpaths verify --model {model} --site mine --fastpaths-from mine.py
"""


def task_text(
    site: str,
    kernel: str,
    contract: Mapping[str, str],
    parameters: Sequence[str],
    calls: Sequence[TaskCall],
    models: Sequence[str],
    measured: Sequence[str],
) -> str:
    """The task: formula, what exact means, the true calls, the values, and what was measured (lines of Markdown)."""
    lines = [f"# Task: {kernel}", "", f"Site `{site}` of {', '.join(models)}. Beat the reference; change no bit.", ""]
    for label in LABELS:
        if label in contract:
            lines += [f"**{label}.** {contract[label]}", ""]
    lines += [
        "## What exact means",
        "",
        "For every call and every kind of values below, the integer bit patterns of all results equal those of "
        "`reference.py` on the same device: signs of zeros and payloads of NaNs included. Dtype and shape too, and the "
        "strides unless an output was passed. No input may be written to, but for memory that an output shares. The "
        "same call gives the same bits again, in memory that no earlier result lies in. Results are plain tensors. "
        "There is no tolerance.",
        "",
    ]
    if measured:
        lines += ["## Measured", "", *measured, ""]
    lines += [f"## Calls ({len(calls)})", "", PLACES, ""]
    lines += [OUTPUTS, ""] if any(call.layout.keywords for call in calls) else []
    for call in calls:
        size = "a real request" if call.is_real else "a check"
        lines += [f"### {call.name} ({size})", "", "| argument | what it is |", "|---|---|"]
        lines += [f"| {name} | {text} |" for name, text in argument_rows(kernel, parameters, call.layout)]
        lines += ["", f"Values: {', '.join(call.values)}.", ""]
    kinds = dict.fromkeys(kind for call in calls for kind in call.values)
    lines += ["## Values", "", *(f"- {kind}" for kind in kinds), "", "`values.py` makes them, from a seed."]
    return "\n".join(lines) + "\n"
