"""Whole requests with every call of every site checked: what sites without a kernel are certified by."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from fuseproof.cli.generate_options import GenerateOptions
from fuseproof.cli.generation import Job, open_session, prepare

STEPS = 2
"""The second step meets what the first one held."""
PROMPT = "a red panda asleep on a mossy branch, soft light"
INPUT_SIZE = (1264, 848)


def checked_requests(model: str, fastpaths_from: str | None) -> tuple[dict[str, frozenset[str]], dict[str, str]]:
    """Run one request of ``model``'s usual size: keys verified by site, and reasons of sites that were rejected."""
    from fuseproof.pipelines.progress import SILENT

    with tempfile.TemporaryDirectory(prefix="fuseproof-verify-") as folder:
        job = _job(model, fastpaths_from, Path(folder))
        click.echo(f"fuseproof: one request of {job.family.title}, every call checked", err=True)
        session = open_session(job, SILENT)
        try:
            session.run(job.requests[0])
            report = session.fastpaths_report()["sites"]
            rejected = {name: str(site["reason"]) for name, site in report.items() if site["state"] == "rejected"}
            keys = session.verified_keys()
        finally:
            session.close()
    return {site: found for site, found in keys.items() if site not in rejected}, rejected


def _job(model: str, fastpaths_from: str | None, folder: Path) -> Job:
    from fuseproof.pipelines.families import family_of_model_id
    from fuseproof.pipelines.skeletons import released_family

    released = released_family(model)
    family = released or family_of_model_id(model.removeprefix("embedded:"))
    images = (_input_image(folder),) if family is not None and family.takes_image else ()
    return prepare(
        GenerateOptions(
            model_path=model if released is None else released.name,
            load_format="auto" if released is None else "dummy",
            prompt=(PROMPT,),
            image_path=images,
            num_inference_steps=STEPS if family is None or family.only_steps is None else family.only_steps,
            no_save_output=True,
            verify_every_step=True,
            fastpaths_from=fastpaths_from,
        )
    )


def _input_image(folder: Path) -> str:
    """A picture of smooth colours for models that edit one."""
    import numpy as np
    from PIL import Image

    width, height = INPUT_SIZE
    rows, columns = np.linspace(0, 255, height), np.linspace(0, 255, width)
    pixels = np.stack(np.broadcast_arrays(rows[:, None], columns[None, :], 128.0), axis=-1).astype(np.uint8)
    path = folder / "input.png"
    Image.fromarray(pixels).save(path)
    return str(path)
