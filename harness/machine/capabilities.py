"""What can run and what can be measured on a machine: yes or no, and why."""

from __future__ import annotations

from dataclasses import dataclass

from fuseproof.harness.machine.facts import MachineFacts
from fuseproof.harness.machine.gpus import visible_gpus

_MODEL_LIBRARIES = ("torch", "diffusers", "transformers", "tokenizers", "safetensors", "numpy", "pillow")
_STATISTICS_LIBRARIES = ("numpy", "scipy")
_MEDIA_LIBRARIES = ("numpy", "scikit-image", "pillow")
_REPORT_LIBRARIES = (*_STATISTICS_LIBRARIES, *_MEDIA_LIBRARIES, "pydantic", "Jinja2")

COMMAND_LIBRARIES: dict[str, tuple[str, ...]] = {
    "generate": (*_MODEL_LIBRARIES, "huggingface_hub", "filelock", "platformdirs"),
    "abba": (*_REPORT_LIBRARIES, "psutil", "rich"),
    "compare-perf": (*_STATISTICS_LIBRARIES, "rich"),
    "compare-media": (*_MEDIA_LIBRARIES, "rich"),
    "report": _REPORT_LIBRARIES,
    "profile": _REPORT_LIBRARIES,
    "diverge": (*_MODEL_LIBRARIES, "huggingface_hub", "filelock", "platformdirs"),
    "import": _REPORT_LIBRARIES,
    "verify": _REPORT_LIBRARIES,
    "pack": _REPORT_LIBRARIES,
    "fastpaths": (*_MODEL_LIBRARIES, "platformdirs"),
    "models": _MODEL_LIBRARIES,
    "doctor": ("psutil",),
}


@dataclass(frozen=True)
class Capability:
    """``reason`` tells why not, or under which condition."""

    name: str
    is_available: bool
    reason: str | None = None


def command_capabilities(facts: MachineFacts) -> list[Capability]:
    """One entry a command, in the order of ``fuseproof --help``."""
    return [_command(facts, name, libraries) for name, libraries in COMMAND_LIBRARIES.items()]


def _command(facts: MachineFacts, name: str, libraries: tuple[str, ...]) -> Capability:
    missing = _missing(facts, libraries)
    if name == "fastpaths" and missing:
        return Capability(name, True, f"explain only; the rest needs {', '.join(missing)}")
    if name == "models" and missing:
        return Capability(name, True, f"list and show only; make-tiny needs {', '.join(missing)}")
    if missing:
        return Capability(name, False, f"not installed: {', '.join(missing)}")
    absent_for_models = _missing(facts, COMMAND_LIBRARIES["generate"])
    if name == "abba" and absent_for_models:
        return Capability(
            name, True, f"only with --baseline-command and --candidate-command: no {', '.join(absent_for_models)}"
        )
    if name == "profile" and absent_for_models:
        return Capability(name, True, f"only profiles that exist already: no {', '.join(absent_for_models)}")
    if name == "generate":
        gpu = gpu_reason(facts)
        return Capability(name, True, f"on the CPU: {gpu}" if gpu else "on the GPU and the CPU")
    return Capability(name, True)


def measurement_capabilities(facts: MachineFacts) -> list[Capability]:
    """What numbers a campaign on this machine can hold."""
    can_generate = not _missing(facts, COMMAND_LIBRARIES["generate"])
    gpu = gpu_reason(facts)
    is_linux = facts.host.operating_system.system == "Linux"
    no_arms = None if can_generate else "generate cannot run here; foreign arms can be timed"
    return [
        Capability("equal bits (files, pixels, raw arrays)", can_generate, no_arms),
        Capability("CPU time of a request", True, no_arms),
        Capability(
            "peak host memory of an arm", is_linux, None if is_linux else "read from /proc, which only Linux has"
        ),
        Capability("GPU time of a request", gpu is None, gpu),
        Capability("peak GPU memory", gpu is None, gpu),
        Capability("Triton kernels", *_triton(facts, gpu)),
    ]


def gpu_reason(facts: MachineFacts) -> str | None:
    """Why no GPU can be used here, or None when one can."""
    visible, hidden_reason = visible_gpus(facts.gpus.gpus, facts.variables.get("CUDA_VISIBLE_DEVICES"))
    if not facts.gpus.gpus:
        return f"no NVIDIA GPU: {facts.gpus.reason}"
    if not visible:
        return hidden_reason
    if facts.torch is None:
        return "torch is not installed"
    if facts.torch.cuda is None:
        return f"torch {facts.torch.version} is a build without CUDA"
    return None


def _triton(facts: MachineFacts, gpu: str | None) -> tuple[bool, str | None]:
    if facts.host.operating_system.system != "Linux":
        return False, "Triton exists for Linux only; the fast paths that need it decline"
    if _missing(facts, ("triton",)):
        return False, "triton is not installed"
    return gpu is None, gpu


def _missing(facts: MachineFacts, names: tuple[str, ...]) -> list[str]:
    """Required libraries that are known to be absent; without our metadata nothing is known."""
    absent = {library.name.lower() for library in facts.libraries if library.version is None}
    return [name for name in names if name.lower() in absent]
