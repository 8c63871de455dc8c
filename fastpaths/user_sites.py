"""Fast paths of your own: a Python file with ``SITES = [UserSite(...)]``, gated and reported as the built-in ones are.

A site goes to modules of the model, found by a glob over their names, or takes a built-in kernel's place::

    from fuseproof.fastpaths import UserSite

    def fused(module, x):
        return my_kernel(x, module.weight)

    def reject_reason(module, x):
        return None if x.is_cuda else f"x is on {x.device}; my kernel needs CUDA"

    SITES = [UserSite("my_norm", fused=fused, reject_reason=reject_reason, modules="transformer_blocks.*.norm2")]

What counts as correct is never the site's own word: the gate compares with the module's own forward, or with the
reference of the kernel that was replaced. A site may write into nothing but the outputs it is handed, must return fresh
memory at each call, and must leave torch's settings alone: that is checked at first sight, and at every call under
``--verify-every-step``. What the file prints goes to stderr.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fuseproof.errors import UsageError
from fuseproof.fastpaths.torch_settings import TorchSettings
from fuseproof.fastpaths.wording import plain_text

logger = logging.getLogger(__name__)

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
RESERVED_NAMES = frozenset({"auto", "off"})
EXAMPLE = "from fuseproof.fastpaths import UserSite; SITES = [UserSite(name, fused=..., modules=...)]"
HOW_TO_BEGIN = f"Name a file that holds, at the least: {EXAMPLE}."
HOW_TO_MEND = "Mend it there; `python FILE` shows the whole error."
LARGEST_FILE_BYTES = 4 * 1024 * 1024


def takes_everything(*_arguments: Any, **_outputs: Any) -> None:
    """The reject reason of a site that has none."""


@dataclass(frozen=True)
class UserSite:
    """One fast path of your own; raises :class:`UsageError` for a value that cannot be used.

    ``name`` (lower case) is what ``--fastpaths`` and every report call it. Exactly one of these says where it goes:

    - ``modules``: a glob over the names of the transformer's modules (``transformer_blocks.*.norm2``; ``*`` stops at a
      dot). ``fused(module, *args, **kwargs)`` stands in for each one's forward and returns what that returns.
    - ``replaces``: a built-in kernel's name (``layernorm_modulate``). ``fused`` takes that kernel's parameters; it may
      write into the outputs it is handed (``out=``) or return fresh tensors.

    ``reject_reason`` takes the same arguments as ``fused`` and returns why these cannot run fused, or None. It is asked
    once for each layout of arguments, so it may look at shapes, dtypes and devices, not at values. ``reference``, in
    plain torch, says what you believe is replaced: ``fastpaths verify`` checks that it is.
    """

    name: str
    fused: Callable[..., Any]
    reject_reason: Callable[..., str | None] = takes_everything
    reference: Callable[..., Any] | None = None
    modules: str | None = None
    replaces: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name) or self.name in RESERVED_NAMES:
            raise UsageError(
                f"a site is named {self.name!r}; a name has up to 64 of a-z, 0-9, _ and -, and is not auto or off.",
                next_step="Name it as my_norm.",
            )
        for attribute in ("fused", "reject_reason", "reference"):
            value = getattr(self, attribute)
            if not callable(value) and not (attribute == "reference" and value is None):
                raise UsageError(
                    f"{attribute} of site {self.name!r} is {value!r}; a function was expected.",
                    next_step=f"Give the function itself, as {attribute}=my_function.",
                )
        places = {"modules": self.modules, "replaces": self.replaces}
        given = {key: value for key, value in places.items() if value is not None}
        if len(given) != 1:
            raise UsageError(
                f"site {self.name!r} has {'both modules and' if given else 'neither modules nor'} replaces; "
                "one of them says where it goes.",
                next_step='Give modules="transformer_blocks.*.norm2" (a glob), or replaces="layernorm_modulate".',
            )
        for key, value in given.items():
            if not isinstance(value, str) or not value:
                raise UsageError(
                    f"{key} of site {self.name!r} is {value!r}; a name was expected.",
                    next_step='Give it as text: modules="transformer_blocks.*.norm2" or replaces="layernorm_modulate".',
                )


@dataclass(frozen=True)
class UserSites:
    """The sites of one file, and the SHA-256 of its bytes."""

    path: Path
    sha256: str
    sites: tuple[UserSite, ...]


def load_user_sites(path: str | Path) -> UserSites:
    """Run the Python file at ``path`` and take its ``SITES``. Every fault in it is a :class:`UsageError`."""
    file = Path(path).expanduser()
    source = _read(file)
    sha256 = hashlib.sha256(source).hexdigest()
    module = _executed(file, source, sha256)
    if not hasattr(module, "SITES"):
        raise UsageError(f"{file} defines no SITES.", next_step=f"Write {EXAMPLE}.")
    sites = module.SITES
    if not isinstance(sites, list | tuple) or not sites:
        raise UsageError(
            f"SITES of {file} is {_shortened(sites)}; a list of UserSite was expected, with at least one.",
            next_step=f"Write {EXAMPLE}.",
        )
    for index, site in enumerate(sites):
        if not isinstance(site, UserSite):
            raise UsageError(
                f"SITES[{index}] of {file} is {_shortened(site)}; a UserSite was expected.",
                next_step=f"Write {EXAMPLE}.",
            )
    refuse_duplicates(sites)
    return UserSites(file, sha256, tuple(sites))


def refuse_duplicates(sites: Iterable[UserSite]) -> None:
    """Two sites of one name, or two in the place of one kernel, are a :class:`UsageError`."""
    names: set[str] = set()
    replaced: dict[str, str] = {}
    for site in sites:
        if site.name in names:
            raise UsageError(f"two sites are named {site.name!r}.", next_step="Give each its own name.")
        names.add(site.name)
        if site.replaces is None:
            continue
        if site.replaces in replaced:
            raise UsageError(
                f"sites {replaced[site.replaces]!r} and {site.name!r} both replace {site.replaces!r}.",
                next_step="Mount one of them.",
            )
        replaced[site.replaces] = site.name


def _read(file: Path) -> bytes:
    try:
        if not file.is_file():
            what = "a folder" if file.is_dir() else "a special file" if file.exists() else "no file"
            raise UsageError(f"--fastpaths-from {file} is {what}; a Python file was expected.", next_step=HOW_TO_BEGIN)
        with file.open("rb") as stream:
            source = stream.read(LARGEST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"--fastpaths-from {str(file)!r} cannot be read: {reason}.", next_step=HOW_TO_BEGIN) from error
    if len(source) > LARGEST_FILE_BYTES:
        raise UsageError(
            f"--fastpaths-from {file} is larger than {LARGEST_FILE_BYTES >> 20} MiB, as no module is.",
            next_step=HOW_TO_BEGIN,
        )
    return source


def _executed(file: Path, source: bytes, sha256: str) -> ModuleType:
    """The module, under a name of its own; Triton reads a kernel's source from the file, so it keeps its path."""
    name = f"fuseproof_user_sites_{sha256[:16]}"
    spec = importlib.util.spec_from_loader(name, loader=None, origin=str(file))
    if spec is None:
        raise UsageError(f"--fastpaths-from {file} cannot be made a module.")
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(file.absolute())
    try:
        code = compile(source, str(file.absolute()), "exec")
    except (RecursionError, MemoryError) as error:
        raise UsageError(
            f"--fastpaths-from {file} is nested too deeply, or too long in one place, to compile.",
            next_step="Split what is generated, or read it from a file of its own.",
        ) from error
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        message = error.msg if isinstance(error, SyntaxError) else error
        raise UsageError(
            f"--fastpaths-from {file} is no Python{line}: {plain_text(message)}.", next_step=HOW_TO_MEND
        ) from error
    sys.modules[name] = module
    settings = TorchSettings()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            exec(code, module.__dict__)
    except UsageError as error:
        raise UsageError(f"{file}: {error.message}", next_step=error.next_step) from error
    except (Exception, SystemExit) as error:
        what = plain_text(f"{type(error).__name__}: {error}").rstrip(".")
        raise UsageError(
            f"--fastpaths-from {file} fails{_line_in(file, error)}: {what}.", next_step=HOW_TO_MEND
        ) from error
    finally:
        changed = settings.put_back(random=False)
    if changed is not None:
        logger.warning("%s changed %s while it was imported; it was put back", file, changed)
    return module


def _line_in(file: Path, error: BaseException) -> str:
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(file.absolute()):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" in line {line}" if line is not None else ""


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
