"""The perf dump of a finished run, and what in it makes the run a failed check or an invalid measurement."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseproof.cli import clip_warmups, edit_inputs
from fuseproof.cli.clip_outputs import rate_of
from fuseproof.cli.fastpath_choices import ChosenCertificate, has_lost_fastpaths, lost_coverage, unmet_text
from fuseproof.cli.hash_seed import hash_seed_record, hash_seed_warning
from fuseproof.cli.perf_record import RunRecord, assemble
from fuseproof.cli.thread_count import thread_count_warning
from fuseproof.cli.video_file import DEFAULT_QUALITY
from fuseproof.harness.perf.graphs import graph_shortfall
from fuseproof.pipelines.dummy_geometry import weights_identity

if TYPE_CHECKING:
    from fuseproof.cli.generate_images import Finished
    from fuseproof.cli.generation import Job
    from fuseproof.pipelines.session import Session


def perf_dump(
    job: Job, session: Session, finished: list[Finished], machine: Mapping[str, Any], certificate: ChosenCertificate
) -> dict[str, Any]:
    """What the run did and what it may not be taken for, JSON-ready."""
    fastpaths = session.fastpaths_report()
    if job.options.verify_every_step:
        fastpaths = {**fastpaths, "mismatches": session.mismatches()}
    coverage = None if job.options.require_fastpaths else lost_coverage(fastpaths, certificate.certificate)
    found = [
        *(job.model.warnings if job.model else ()),
        *job.options.warnings(makes_video=job.family.makes_video),
        *job.warnings,
        *session.warnings,
        *(text for one in finished for text in one.warnings),
    ]
    said = (
        certificate.warning,
        coverage,
        clip_warmups.other_geometry_warning(job.requests[0], _other_warmups(job, session)),
        hash_seed_warning(),
        thread_count_warning(os.environ),
    )
    found += [text for text in said if text is not None]
    run = RunRecord(
        model=job.options.model_path,
        config=_config(job, session),
        environment={**machine, **session.environment(), **hash_seed_record()},
        load_ms=session.load_ms,
        warmup_ms=session.warmup_ms,
        compile_ms=session.compile_ms,
        memory=session.memory_checkpoints(),
        fastpaths=fastpaths,
        graphs=session.graphs_report(),
        warnings=tuple(found),
    )
    folder = Path(job.options.perf_dump_path).parent if job.options.perf_dump_path else Path()
    dump = assemble([one.record for one in finished], run, folder)
    missing = [text for text in (missing_graphs(dump), missing_fastpaths(dump)) if text]
    wrong = [f"this check failed: {text}" for text in (failed_check(dump),) if text]
    wrong += [f"this measurement is invalid: {text}" for text in missing]
    watched = {"profiled": True} if job.options.profile else {}
    return dump | watched | {"warnings": [*dump["warnings"], *wrong]}


def missing_fastpaths(dump: Mapping[str, Any]) -> str | None:
    """Which fast paths a run with ``--require-fastpaths`` lacks, as a sentence; None where it lacks none."""
    unmet = unmet_text(dump["fastpaths"]) if dump["config"].get("require_fastpaths") else None
    return None if unmet is None else f"--require-fastpaths: {unmet}."


def failed_check(dump: Mapping[str, Any]) -> str | None:
    """Where ``--verify-every-step`` found other bits than eager's, as a sentence; None where it found none."""
    found = dump["fastpaths"].get("mismatches") or {}
    told = "; ".join(f"site {name} is {text}" for name, text in found.items())
    return f"--verify-every-step: {told}." if told else None


def missing_graphs(dump: Mapping[str, Any]) -> str | None:
    """How the CUDA graphs that a run asked for fall short, as a sentence; None where nothing is missing."""
    shortfall = graph_shortfall(dump["config"], dump["graphs"], dump["requests"])
    return None if shortfall is None else f"CUDA graphs were asked for: {shortfall}."


def _config(job: Job, session: Session) -> dict[str, Any]:
    """Every effective flag, with what the model and the machine decided filled in."""
    first = job.requests[0]
    return job.options.as_config() | {
        "resolved_revision": job.model.revision if job.model else None,
        "model_source": job.model.source if job.model else "dummy",
        "model_sha256": job.model.content_sha256 if job.model else None,
        "weights": None if job.model else weights_identity(),
        "weights_kind": job.weights_kind,
        "family": job.family.name,
        "backend_used": session.backend,
        "fallback_reason": session.fallback_reason,
        "device": session.device,
        "dtype": session.dtype,
        "fastpaths": "off" if has_lost_fastpaths(job.options, session.backend) else job.options.effective_fastpaths,
        "warmup_steps": session.warmup_steps if job.warmups else None,
        "width": first.width,
        "height": first.height,
        "num_inference_steps": first.num_inference_steps,
        "guidance_scale": first.guidance_scale,
        "guidance_skipped_steps": list(session.guidance_skipped_steps(first)),
        "enable_cfg_renorm": first.enable_cfg_renorm,
        "fixed_prompt": [request.fixed_prompt for request in job.requests if request.fixed_prompt is not None],
        "image_path": [image.source for image in job.images],
        "image_sha256": [image.sha256 for image in job.images],
        "image_conversions": list(job.canvas.image.conversions) if job.canvas else [],
        "canvas_pixels": first.canvas_pixels,
        "requested_size": edit_inputs.requested_size(job.options),
        "fastpaths_from_sha256": job.user_sites.sha256 if job.user_sites is not None else None,
        **_clip_config(job, session),
    }


def _other_warmups(job: Job, session: Session) -> list[dict[str, int | None]]:
    """What was warmed in the place of a clip's own size and length; empty for single images."""
    if not job.family.makes_video:
        return []
    return clip_warmups.other_geometry(job.requests[0], job.warmups, session.warmup_steps)


def _clip_config(job: Job, session: Session) -> dict[str, Any]:
    """What a clip's flags come to; nothing for a family that makes single images."""
    if not job.family.makes_video:
        return {}
    return {
        "num_frames": job.requests[0].num_frames,
        "fps": rate_of(job.options, job.family),
        "warmup_num_frames": job.warmups[0].num_frames if job.warmups else None,
        "warmup_geometry": _other_warmups(job, session),
        "output_quality": job.options.output_quality or DEFAULT_QUALITY,
    }
