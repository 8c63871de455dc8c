"""What may leave this machine in a report: environment variables by allow-list, texts without tokens or home paths.

A campaign folder is made to be pasted into a pull request, so nothing that is written there may hold a credential or
the name of somebody's home folder. Variables are recorded only when a measurement can depend on them.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

REDACTED = "[redacted]"

ALLOWED_VARIABLE_PREFIXES = (
    "CUDA_",
    "CUBLAS_",
    "CUDNN_",
    "DIFFUSERS_",
    "FUSEPROOF_",
    "GOMP_",
    "KMP_",
    "MALLOC_",
    "MKL_",
    "NCCL_",
    "OMP_",
    "PYTORCH_",
    "SGLANG_",
    "TORCH",
    "TRITON_",
)
ALLOWED_VARIABLES = frozenset(
    {
        "HF_HUB_CACHE",
        "HF_HUB_DISABLE_XET",
        "HF_HUB_OFFLINE",
        "LD_PRELOAD",
        "NVIDIA_TF32_OVERRIDE",
        "NVIDIA_VISIBLE_DEVICES",
        "OPENBLAS_CORETYPE",
        "OPENBLAS_NUM_THREADS",
        "PYTHONHASHSEED",
        "TRANSFORMERS_OFFLINE",
    }
)

_FORBIDDEN_WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "AUTH")
_SECRET_NAME = re.compile(
    r"(^|[_.-])(token|secret|password|passwd|credentials?|api[_-]?key|access[_-]?key|private[_-]?key|authorization)$",
    re.IGNORECASE,
)
_SECRET_WORD = r"(?:token|secret|password|passwd|credentials?|api[_-]?key|access[_-]?key|private[_-]?key)"
_SECRET_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?:hf|api_org)_[A-Za-z0-9]{16,}"), REDACTED),
    (re.compile(r"\b(?:gh[opsur]|github_pat|glpat|xox[abprs])[_-][A-Za-z0-9_-]{16,}"), REDACTED),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{16,}"), REDACTED),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), REDACTED),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+"), REDACTED),
    (re.compile(r"(\bBearer\s+)[^\s\"']+", re.IGNORECASE), rf"\g<1>{REDACTED}"),
    (re.compile(r"(\b[a-z][a-z0-9+.-]{0,30}://)[^\s/@\"']+@", re.IGNORECASE), rf"\g<1>{REDACTED}@"),
    (
        re.compile(rf"((?:^|[\s\"'?&])-{{0,2}}(?:[\w-]*[_-])?{_SECRET_WORD}=)[^\s&\"']+", re.IGNORECASE),
        rf"\g<1>{REDACTED}",
    ),
    (re.compile(rf"((?:^|\s)--(?:[\w-]*-)?{_SECRET_WORD}\s+)(?!-)\S+", re.IGNORECASE), rf"\g<1>{REDACTED}"),
)
_SHORTEST_SECRET = 8


def may_be_recorded(variable: str) -> bool:
    """Whether an environment variable belongs in a description of the machine; names of credentials never do."""
    name = variable.upper()
    if any(word in name for word in _FORBIDDEN_WORDS):
        return False
    return name in ALLOWED_VARIABLES or name.startswith(ALLOWED_VARIABLE_PREFIXES)


def allowed_variables(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """The recordable part of ``variables`` (default: this process's environment), sorted by name, values redacted."""
    source = os.environ if variables is None else variables
    return {name: redact(source[name]) for name in sorted(source) if may_be_recorded(name)}


def redact(text: str) -> str:
    """``text`` without known forms of credentials, without the values of credential variables, home folder as ``~``."""
    for secret in _secret_values(os.environ):
        text = text.replace(secret, REDACTED)
    for pattern, replacement in _SECRET_PATTERNS:
        text = pattern.sub(replacement, text)
    for pattern in _home_patterns(os.environ.get("HOME", "")):
        text = pattern.sub("~", text)
    return text


def redact_mapping(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of ``mapping`` with every string in it redacted, at any depth, in keys too.

    A text under a key that names a credential (``hf_token``, ``api_key``) is replaced whole; numbers stay, so counters
    such as ``transformer_tokens`` are safe.
    """
    return {redact(str(key)): _redact_value(value, str(key)) for key, value in mapping.items()}


def _redact_value(value: Any, key: str = "") -> Any:
    if isinstance(value, str):
        return REDACTED if value and _names_a_secret(key) else redact(value)
    if isinstance(value, os.PathLike):
        return redact(os.fspath(value))
    if isinstance(value, Mapping):
        return redact_mapping(value)
    if isinstance(value, tuple | list):
        return [_redact_value(item, key) for item in value]
    return value


@lru_cache(maxsize=4096)
def _names_a_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def _secret_values(variables: Mapping[str, str]) -> Iterable[str]:
    """Values of credential variables, longest first; very short ones would blank out ordinary words."""
    values = {variables[name] for name in variables if _names_a_secret(name)}
    return sorted((value for value in values if len(value) >= _SHORTEST_SECRET), key=len, reverse=True)


@lru_cache(maxsize=8)
def _home_patterns(home_variable: str) -> tuple[re.Pattern[str], ...]:
    """Patterns of the home folder as named and as resolved. The root is nobody's home; an account may have none."""
    folders = {Path(home_variable)}
    with contextlib.suppress(RuntimeError):
        folders.add(Path.home())
    folders |= {folder.resolve() for folder in folders if folder.is_absolute()}
    names = {str(folder) for folder in folders if folder.is_absolute() and folder.parent != folder}
    return tuple(_path_pattern(name) for name in sorted(names, key=len, reverse=True))


def _path_pattern(folder: str) -> re.Pattern[str]:
    """Matches ``folder`` as whole path components: neither inside a longer path nor as the start of a longer name.

    A compiler-style flag may touch the path (``-I/home/anna``).
    """
    return re.compile(rf"(?:(?<![\w.~-])|(?<=[\s\"']-\w)){re.escape(folder)}(?![\w-]|\.\w)")
