"""python norms_alone.py CHECKPOINT norms|all RATE STEPS: does the editing model gain where few weights learn on?

CHECKPOINT is the folder longcat-image of both tasks. AdamW, batches of 8 edits out of 400, all text tokens, on the CPU:
the weights of norm_q and norm_k alone, or all of the transformer. Every 20 steps the loss of 96 other edits.
"""

import sys

import torch
from diffusers import LongCatImagePipeline

from training import stages
from training.edit_prompts import EditTemplate
from training.edit_stage import EditSet, EditSettings, Tasks, draw_edit_batch, edit_losses
from training.edits import draw_edits
from training.geometry import GEOMETRIES
from training.tokens import Template

folder, which, rate, steps = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
geometry, settings, cpu = GEOMETRIES["full"], EditSettings(), torch.device("cpu")
pipe = LongCatImagePipeline.from_pretrained(folder, dtype=torch.float32, text_processor=None)
template = EditTemplate.of(pipe.tokenizer, geometry.side, cpu)
tasks = Tasks(Template.of(pipe.tokenizer, cpu), geometry, stages.shift_mu(pipe.scheduler, geometry), template)
seen, unseen = (
    EditSet.encode(pipe.vae, draw_edits(seed, count, 1), pipe.tokenizer, geometry.side, cpu)
    for seed, count in ((91, 400), (92, 96))
)


def losses(data, rows, step):
    batch = draw_edit_batch(data, rows, step, tasks.mu, settings, full_text=True)
    return edit_losses(pipe.transformer, pipe.text_encoder, batch, template, geometry)


@torch.no_grad()
def loss_of_unseen():
    return torch.cat([losses(unseen, torch.arange(i, i + 16), 1000 + i) for i in range(0, 96, 16)]).mean().item()


pipe.text_encoder.requires_grad_(False)
for name, weight in pipe.transformer.named_parameters():
    weight.requires_grad_(which == "all" or "norm_q" in name or "norm_k" in name)
learning = [weight for weight in pipe.transformer.parameters() if weight.requires_grad]
optimizer = torch.optim.AdamW(learning, lr=rate, betas=(0.9, 0.95), weight_decay=0)
print(f"{which}, {rate}: before {loss_of_unseen():.5f}", flush=True)
generator = torch.Generator().manual_seed(0)
for step in range(steps):
    optimizer.param_groups[0]["lr"] = rate * min(1, (step + 1) / 10) * (1 if step < 0.6 * steps else 0.3)
    loss = losses(seen, torch.randint(400, (8,), generator=generator), step).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (step + 1) % 20 == 0:
        print(f"{which}, {rate}: after {step + 1} steps {loss_of_unseen():.5f}", flush=True)
