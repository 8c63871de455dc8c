"""python attention_to_given.py PART: how sharply the editing transformer looks at the token it has to copy.

PART is a folder longcat-image-edit with its neighbour longcat-image. Of every layer and head, over the noisy tokens of
one held-out edit at 4 steps and guidance 1: the attention that goes to the given picture's token at the same place
(own), to all of the given picture (given), to the noisy picture (self) and to the text.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F

from training.evaluate_edits import Sampling, evaluation_edits, load, make, rendered
from training.parts import whole

TOKENS = 256
rows, attention = [], F.scaled_dot_product_attention


def recording(query, key, value, **options):
    length = query.shape[2]
    if query.shape[1] == 2 and length > 900:
        noisy, given = slice(length - 2 * TOKENS, length - TOKENS), slice(length - TOKENS, length)
        weights = (query[:1, :, noisy].float() @ key[:1].float().mT / query.shape[-1] ** 0.5).softmax(-1)[0]
        own = weights[:, torch.arange(TOKENS), torch.arange(length - TOKENS, length)].mean(-1)
        sums = [weights[..., part].sum(-1).mean(-1) for part in (given, noisy, slice(0, length - 2 * TOKENS))]
        rows.append([values.tolist() for values in (own, *sums)])
    return attention(query, key, value, **options)


with whole(Path(sys.argv[1])) as folder:
    checkpoint, pipe = load(folder, torch.device("cpu"))
    edit = evaluation_edits(3)[2]
    (given,) = rendered([edit.before], pipe.vae.config.sample_size)
    F.scaled_dot_product_attention = recording
    make(pipe, edit, given, checkpoint.canvas_pixels, Sampling(4, 1.0, 0), 2)
for number, values in enumerate(rows):
    for head in (0, 1):
        own, to_given, to_self, text = (value[head] for value in values)
        where = f"step {number // 6} layer {number % 6} head {head}"
        print(f"{where}: own {own:.3f} given {to_given:.2f} self {to_self:.2f} text {text:.2f}")
