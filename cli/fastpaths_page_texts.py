"""The prose of ``docs/fast-paths.md`` around what is written from docstrings."""

from __future__ import annotations

INTRODUCTION = """\
Use this guide when a trace of a diffusion model shows a hot spot: it maps the spot to a fast path that exists \
already, says what keeps that path from running, and how to see its bits and its time for yourself. Reuse and \
configuration come first; a new kernel is for what no path here covers \
([CONTRIBUTING](../CONTRIBUTING.md#add-a-kernel) has the checklist).

| question | command |
|---|---|
| what would run on this machine, and why not the rest? | `fuseproof fastpaths list --model MODEL`, `fuseproof doctor \
--model MODEL` |
| what does one path do, exactly? | `fuseproof fastpaths explain NAME` |
| are its bits those of eager, on this card? | `fuseproof fastpaths verify --model MODEL` |
| in this very request, at every call? | `fuseproof generate --verify-every-step …` |
| how long does it take, against eager and against the memory it moves? | `fuseproof fastpaths bench --site NAME` |
| has a kernel become slower? what did the hardware count? | `fuseproof fastpaths bench --baseline FILE`, `--ncu NAME` \
([more](fast-path-work.md)) |
| who writes the next one, with what? | `fuseproof fastpaths task NAME`: a folder that needs torch alone \
([more](fast-path-work.md#a-task-to-hand-over)) |
| on the tensors of a real request? | `fuseproof fastpaths capture NAME --step N --output FILE …`, then `verify \
--from FILE`, `bench --from FILE` |
| did it run, and what is it worth from prompt to picture? | `fuseproof abba --baseline "--fastpaths off" --candidate \
"--fastpaths auto" …` |"""
GLOSSARY = """\
| word | meaning |
|---|---|
| eager, fused | the chain of torch operations as diffusers runs it; one kernel, or a rewrite, in its place |
| card | the NVIDIA GPU that a request runs on |
| site | a place in a model where an eager chain can be replaced |
| fast path | the replacement: a Triton kernel, a rewrite of modules, or a result that is held and reused |
| hoist | to compute once what is the same in every step or guidance branch, and hold it |
| mount | the sites of one pipeline while they are switched on; **epoch** is a number that differs between any two \
states of what is mounted |
| gate | the check in front of every site: it lets the fused form run only where its bits have been compared |
| key | what a gate decides for: shapes, strides, dtypes, device, alignment, eps and flags of a call |
| first sight | the first call with a new key, in which both forms run and their bits are compared |
| decided | a key that was seen: **verified** (equal bits, fused from now on) or **rejected** (eager from now on) |
| undecided | a call at which no comparison was possible, such as one with gradients |
| certificate | a file that names verified keys, so that they need no first sight where nothing has changed since |
| quality, tier | what a request permits: `lossless` (only the bits of eager), `extra-high`, `high`; the approximate \
sites of one quality are a tier, mounted together or not at all |
| ulp | unit in the last place: the distance between two neighbouring numbers of a dtype. Beside 0 it is next to \
nothing, so a sum in another order can be thousands of ulp there; the value that eager has at that place, the largest \
difference in value and the relative error (the 2-norm of the difference over that of eager's result) stand beside it \
|"""
LIFE = """\
A **site** is a place in a model where an eager chain can be replaced; a **mount** switches the sites of a model on \
and off. Every site sits behind a **gate**. At the first sight of a key (shapes, strides, dtypes, device, alignment, \
eps, flags) the gate runs the fused and the eager form and compares integer bits: equal, and the fused form runs from \
then on; different, and that key is rejected with its reason and the eager result is returned. Under gradients, \
`torch.compile`, or an unverified capture the eager form runs and nothing is decided. An exception at first sight \
rejects the key; one after verification, and every CUDA error, fails the request.

`fastpaths verify` does all of this ahead of time and writes a certificate. It holds where the versions of torch, \
CUDA, cuDNN, Triton and diffusers, the card, and every source file that decides a certified site are the same; there a \
certified key needs no first sight. It certifies nothing when any site differs.

On a machine without a card, `TRITON_INTERPRET=1 fuseproof fastpaths verify` runs every kernel on a few elements. That \
finds faults and certifies nothing: where a CPU's own reference differs from a card's (another order of a sum, another \
`tanh`), up to 1 % of differing values count as undecided. `bench` needs a card.

| state in the report | meaning |
|---|---|
| `fused`, `certified` | runs; its bits were compared here, or by a certificate that holds here |
| `approximate` | runs; not exact, permitted by `--quality`, with its deviation |
| `declined` | cannot take this model or these arguments; the reason names what was seen and what is needed |
| `rejected` | disagreed with eager, or raised: the eager result was returned |
| `observed` | under `--gate observe` every call was compared, those of warm-ups too, and what fused returned was \
used, equal or not. A site that works around others differs where one of them does; it is told last, with their names |
| `unchecked` | under `--gate off` it ran, and nothing was compared |
| `eager` | ran eager because no call could be decided; the reason counts why |
| `not needed` | has nothing to do in such a request (no guidance, a single step) |
| `unreached` | no call came by |
| `replaced` | a site of your own stands in for it |
| `off` | not asked for |"""
WORKFLOW = """\
1. Read the report of the run that was traced (`fastpaths` in the perf dump, or the last lines of `generate`). A site \
that is `declined`, `rejected` or `unreached` explains its chain in the trace; its reason says what to change.
2. A site that is `fused` with eager calls beside it names the arguments that it declined, and how often.
3. First sights and compilation inside a timed request make a time wrong, and the dump warns of them: use `--warmup`, \
or a certificate.
4. Only when every site of the model is `fused` is what remains a new opportunity. Look for the chain in the table \
below first: the same chain may have a path in another family."""
GRAPHS = """\
- A graph bakes in the branches that ran while it was captured. Its key holds the mount's epoch and the quality, so a \
graph that was captured before another mount is never replayed.
- Gates decide in the eager run before a capture; a key first seen inside a capture stays eager in that graph.
- `--verify-every-step` and `--gate observe` need real calls, so they exclude CUDA graphs.
- A cell that asked for graphs and missed one is invalid (exit code 6), not slow."""
CONSTRAINTS = """\
- Kernels need Linux, Triton and a CUDA device; the sites without a kernel run anywhere. Elsewhere every kernel site \
declines with its reason, and nothing else changes.
- All kernels are launched from static tables, with `enable_fp_fusion=False`: nothing is tuned while a request runs.
- A path that is exact today may be rejected tomorrow, by another torch or another card. The gate finds out, not the \
user.
- Adapters, quantised layers, hooks and offloading make the rewritten blocks decline: code that reads `module.weight` \
itself would pass them by."""
OWN = """\
`--fastpaths-from my_kernels.py` (for `generate`, and for `fastpaths list`, `verify`, `bench` and `capture`) mounts \
sites of your own beside the built-in ones.

```python
from fuseproof.fastpaths import UserSite


def fused(module, x):
    return my_kernel(x, module.weight, module.bias)


def reject_reason(module, x):
    return None if x.is_cuda else f"x is on {x.device}; my kernel needs CUDA"


SITES = [UserSite("my_norm", fused=fused, reject_reason=reject_reason, modules="transformer_blocks.*.norm2")]
```

**In place of modules.** `modules` is a glob over the names of the transformer's modules (`*` stops at a dot, `**` \
does not). `fused(module, ...)` takes what the module's forward takes, and returns what that returns. Names are the \
model's own: the blocks are `transformer_blocks.*` and `single_transformer_blocks.*` in LongCat-Image \
(`transformer_blocks.*.norm2`), `layers.*` in ERNIE-Image (`layers.*.adaLN_sa_ln`, \
`layers.*.self_attention.norm_q`, `layers.*.mlp`), and `blocks.*` in Wan (`blocks.*.norm2`, \
`blocks.*.ffn`). A glob that names none is answered with those nearest to it.

**In place of a kernel.** `replaces="layernorm_modulate"` stands in for a built-in kernel. `fused` is called with that \
kernel's parameters, by position; `fuseproof fastpaths explain KERNEL`, and its section above, give their order \
(*Parameters*), shapes and dtypes (*Shapes*). Buffers are passed by keyword: `fused` must accept them, and may write \
into them or return fresh tensors of the same shapes and dtypes. What it returns counts. A buffer may be the memory of \
an input (*Shapes* says which), so read before you write. Kernels that can be replaced:

{kernels}

`reject_reason` takes what `fused` takes, and returns why it cannot run, or None. It is asked once a layout, so it may \
look at shapes, dtypes and devices, not at values. `reference`, which is optional, takes the same (without buffers) \
and says in plain torch what you believe is replaced; `verify` checks that it is. What counts as correct is never your \
reference but the module's own forward, or the replaced kernel's reference.

**What the gate checks at first sight.** Eager runs, then `fused` runs twice, and all of this must hold:

- count, shapes, dtypes, devices, and without buffers strides, of the results are eager's; so are all bits, both times;
- no input was written to (except a buffer that was handed over for it), and no weight: a changed input is put back \
and the key rejected, a changed weight ends the request;
- results are fresh memory: no view of an input or weight unless eager's is the same view, and nothing that is handed \
out twice or kept, which a later call would overwrite;
- torch's random generators, number of threads, gradient mode, default dtype, matmul precision, and its settings for \
deterministic algorithms and cuDNN are left as they were.

**What it cannot see.** A site that behaves otherwise after its key was verified is caught only by \
`--verify-every-step`, which compares every call. Effects outside torch (files, environment variables, other \
libraries' settings) and torch settings besides those above are not looked at.

**Where built-in sites stay.** A site on a module inside the rewritten blocks makes the rewrite decline by that \
module's name, since it would pass it by: for the whole run, even where the gate then rejects every call of the site. \
What else goes with it, a warning of the run says by name:

| model | a site on a module in | takes away | leaves mounted |
|---|---|---|---|
| LongCat-Image | `transformer_blocks.*`, `single_transformer_blocks.*` | `packed_blocks` and what works in \
it | `guidance_step`, `context_embedding`, `rotary_tables`, `timestep_embedding`, `modulation`, the VAE's |
| ERNIE-Image | `layers.*` | `stream_blocks` and every other site of the transformer, `text_projection`, \
`rotary_angles` and `image_rows` too: all belong to one rewritten forward | the VAE's |
| Wan | `blocks.*`, `condition_embedder` | `video_blocks` and every other site of the transformer, `text_keys_values`, \
`rotary_grid` and `timestep_rows` too: all belong to one rewritten forward | the VAE's |

One on a module before or after the blocks (LongCat-Image: `x_embedder`, `norm_out`, `proj_out`; ERNIE-Image: \
`x_embedder`, `final_norm`, `final_linear`, `time_embedding`, `adaLN_modulation`; Wan: `patch_embedding`, `norm_out`, \
`proj_out`, `rope`) leaves the blocks mounted and is \
called. So does `replaces`, which costs nothing else.

**Checking and measuring.** On a card, `fastpaths verify --site NAME --fastpaths-from FILE` compares it over real \
shapes and hard values, and `bench` times it. Without a card, `TRITON_INTERPRET=1` lets `verify` run it on the CPU, at \
small sizes. `generate` computes in float32 on a CPU unless told otherwise, and there a kernel that rounds where eager \
does not, or rounds once where eager rounds twice, may have eager's bits and be `fused`: add `--dtype bfloat16`, which \
is what runs on a card. `verify --output c.json` writes a certificate for `generate --fastpaths-from FILE \
--certificate c.json`. It holds while your file, and every Python or extension module loaded from outside the standard \
library and site-packages, has the same bytes. It does not cover packages in site-packages besides those named above, \
libraries loaded by hand (`ctypes`, `torch.ops.load_library`), or data files: verify again when one of these changes. \
A module that is first imported inside a function, after loading, makes the certificate refuse to hold: import at the \
top."""
