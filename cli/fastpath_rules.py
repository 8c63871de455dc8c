"""The rules that tie ``generate``'s flags about fast paths together: none of them may be without effect."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fuseproof.errors import UsageError

if TYPE_CHECKING:
    from fuseproof.cli.generate_options import GenerateOptions


def check(options: GenerateOptions) -> None:
    """Raise :class:`UsageError` for the first rule that the flags break."""
    _check_names(options)
    _check_combinations(options)


def _check_names(options: GenerateOptions) -> None:
    names = ("auto" if options.fastpaths is None else options.fastpaths).split(",")
    is_list = "auto" not in names and "off" not in names
    if not all(re.fullmatch(r"[a-z0-9_-]+", name) for name in names) or (len(names) > 1 and not is_list):
        raise UsageError(
            f"--fastpaths is {options.fastpaths!r}; it must be auto, off, or names separated by commas.",
            next_step="The perf dump of an --fastpaths auto run lists the names.",
        )


def _check_combinations(options: GenerateOptions) -> None:
    """What verifies fast paths, or insists on them, needs something to verify."""
    if not options.certificate.strip():
        raise UsageError(f"--certificate is {options.certificate!r}; it must be auto, off, or a file.")
    names_file = options.certificate not in ("auto", "off")
    checks_all = options.verify_every_step
    forbidden = (
        ("--verify-every-step", checks_all, "--enable-breakable-cuda-graph",
         options.enable_breakable_cuda_graph, "a replayed graph makes no calls that could be checked"),
        ("--verify-every-step", checks_all, "--enable-torch-compile",
         options.enable_torch_compile, "compiled blocks make no calls that could be checked"),
        ("--verify-every-step", checks_all, "--gate off",
         options.gate == "off", "one checks every call and the other none"),
        ("--verify-every-step", checks_all, "--certificate FILE",
         names_file, "one checks every call and the other skips the first check"),
        ("--certificate FILE", names_file, f"--gate {options.gate}",
         options.gate != "enforce", "that gate does not skip anything"),
    )  # fmt: skip
    for flag, is_given, other, is_other_given, why in forbidden:
        if is_given and is_other_given:
            raise UsageError(f"{flag} and {other} cannot be combined: {why}.", next_step="Drop one of them.")
    _check_nothing_is_mounted_on_the_reference(options)
    _check_something_is_mounted(options)


def _check_nothing_is_mounted_on_the_reference(options: GenerateOptions) -> None:
    """The eager reference of our own runs as it is written; diffusers' pipelines may carry fast paths by name."""
    if options.backend != "reference":
        return
    found = (
        (f"--fastpaths {options.fastpaths}", options.fastpaths not in (None, "off")),
        ("--enable-breakable-cuda-graph", options.enable_breakable_cuda_graph),
        ("--enable-torch-compile", options.enable_torch_compile),
        (f"--quality {options.quality}", options.quality != "lossless"),
    )
    for flag, is_given in found:
        if is_given:
            raise UsageError(
                f"{flag} and --backend reference cannot be combined: the reference is eager, and nothing is mounted "
                "on it.",
                next_step=f"Drop {flag}, or use --backend native.",
            )


def _check_something_is_mounted(options: GenerateOptions) -> None:
    if options.effective_fastpaths != "off":
        return
    needs = (
        ("--require-fastpaths", options.require_fastpaths, "nothing is mounted that could run"),
        ("--fastpaths-from", options.fastpaths_from is not None, "nothing is mounted"),
        ("--verify-every-step", options.verify_every_step, "nothing is mounted that could be checked"),
        (
            "--certificate FILE",
            options.certificate not in ("auto", "off"),
            "there is nothing to vouch for",
        ),
        (f"--gate {options.gate}", options.gate != "enforce", "there is nothing that it could watch or let through"),
    )
    for flag, is_given, why in needs:
        if is_given and options.fastpaths is None:
            raise UsageError(
                f"{flag} and --backend {options.backend} cannot be combined: fast paths are off there"
                f"{' unless named' if options.backend == 'diffusers' else ''}, so {why}.",
                next_step=f"Add --fastpaths auto, or drop {flag}."
                if options.backend == "diffusers"
                else f"Drop {flag}.",
            )
        if is_given:
            raise UsageError(f"{flag} and --fastpaths off cannot be combined: {why}.", next_step="Drop one of them.")
