"""python begin_copying_small.py CHECKPOINT copying|plain STEPS: does Edit learn faster with a head that copies?

CHECKPOINT is a drawing model (the folder longcat-image). 128 x 128, 1000 edits in batches of 12, editing alone, the
text encoder standing still, six times the rate for the norms of queries and keys, one CPU thread. Every 60 steps the
loss of 48 other edits, apart for tokens whose latents stay (kept) and for those that change.
"""

import dataclasses
import math
import sys
import time

import torch
from diffusers import LongCatImagePipeline

from training import stages
from training.copying import begin_copying
from training.edit_prompts import EditTemplate, edit_ids, embed_instructions
from training.edit_stage import EditSet, EditSettings, Tasks, draw_edit_batch, edit_losses, predict_edit_velocity
from training.edits import draw_edits
from training.geometry import GEOMETRIES
from training.optimizers import muon_and_adamw
from training.tokens import Template

folder, mode, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
geometry, settings, cpu = dataclasses.replace(GEOMETRIES["full"], side=128), EditSettings(), torch.device("cpu")
pipe = LongCatImagePipeline.from_pretrained(folder, dtype=torch.float32, text_processor=None)
transformer, text_encoder = pipe.transformer, pipe.text_encoder
template = EditTemplate.of(pipe.tokenizer, geometry.side, cpu)
tasks = Tasks(Template.of(pipe.tokenizer, cpu), geometry, stages.shift_mu(pipe.scheduler, geometry), template)
seen, unseen = (
    EditSet.encode(pipe.vae, draw_edits(seed, count, 1), pipe.tokenizer, geometry.side, cpu)
    for seed, count in ((91, 1000), (92, 48))
)


@torch.no_grad()
def unseen_losses():
    kept, changed = [], []
    for first in range(0, 48, 12):
        rows = torch.arange(first, first + 12)
        batch = draw_edit_batch(unseen, rows, 1000 + first, tasks.mu, settings, full_text=False)
        sigmas = batch.sigmas[:, None, None]
        noisy = (1 - sigmas) * batch.latents + sigmas * batch.noise
        embeds = embed_instructions(text_encoder, batch.ids, batch.positions, template)
        ids = edit_ids(geometry, batch.positions, template)
        velocity = predict_edit_velocity(transformer, noisy, batch.given, batch.sigmas, embeds, ids)
        errors = (velocity - (batch.noise - batch.latents)).square().mean(-1)
        stays = (batch.latents - batch.given).square().mean(-1) < 0.02
        kept.append(errors[stays])
        changed.append(errors[~stays])
    return f"kept {torch.cat(kept).mean():.4f} changed {torch.cat(changed).mean():.4f}"


if mode == "copying":
    begin_copying(transformer)
text_encoder.requires_grad_(False)
optimizer = muon_and_adamw(transformer, [], 0.01, cpu, sharpness_share=settings.sharpness_share)
generator, started = torch.Generator().manual_seed(0), time.time()
print(mode, "before", unseen_losses(), flush=True)
for step in range(steps):
    rate = 6e-4 * min(1, (step + 1) / 60) * (0.5 * (1 + math.cos(math.pi * step / steps)) * 0.9 + 0.1)
    rows = torch.randint(1000, (12,), generator=generator)
    batch = draw_edit_batch(seen, rows, step, tasks.mu, settings, full_text=False)
    edit_losses(transformer, text_encoder, batch, template, geometry).mean().backward()
    optimizer.step(rate, 1.0)
    if (step + 1) % 60 == 0:
        print(mode, step + 1, f"{time.time() - started:.0f} s", unseen_losses(), flush=True)
