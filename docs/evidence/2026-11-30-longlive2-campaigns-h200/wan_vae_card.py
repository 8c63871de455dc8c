"""On a card: bits of the Wan VAE's kernels and of whole decodes, then times. `python .exp/wan_vae_card.py OUT.json`.

`--small` runs tiny sizes on the CPU in Triton's interpreter (TRITON_INTERPRET=1), to try the script itself.
Every section is written as soon as it is done; past --limit seconds the rest is left out and says so.
"""
import argparse
import contextlib
import copy
import hashlib
import json
import math
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from fuseproof.fastpaths import interpreter_rounding  # noqa: E402
from fuseproof.fastpaths.approximation import ApproximateGate  # noqa: E402
from fuseproof.fastpaths.bits import bit_difference  # noqa: E402
from fuseproof.fastpaths.gates import Gate  # noqa: E402
from fuseproof.fastpaths.kernels import (  # noqa: E402
    causal_conv_input, channel_norms, duplicate_upsample_add, nearest_upsample, wan_norm_silu,
)
from fuseproof.fastpaths.kernels.launching import is_interpreted  # noqa: E402
from fuseproof.fastpaths.sites import autoencoder_kl_wan  # noqa: E402
from diffusers import AutoencoderKLWan  # noqa: E402
from diffusers.models.autoencoders.autoencoder_kl_wan import DupUp3D, WanRMS_norm  # noqa: E402

BF16, FP32 = torch.bfloat16, torch.float32
SHAPES = [(1, 1024, 1, 30, 52), (1, 1024, 2, 60, 104), (1, 1024, 4, 120, 208), (1, 512, 4, 240, 416), (1, 256, 4, 240, 416)]
WAN22 = dict(base_dim=160, decoder_base_dim=256, z_dim=48, dim_mult=[1, 2, 4, 4], num_res_blocks=2, attn_scales=[],
             temperal_downsample=[False, True, True], is_residual=True, in_channels=12, out_channels=12, patch_size=2,
             scale_factor_spatial=16, scale_factor_temporal=4, latents_mean=[0.0] * 48, latents_std=[1.0] * 48)
TINY = dict(base_dim=4, decoder_base_dim=6, z_dim=4, dim_mult=[2, 2], num_res_blocks=1, temperal_downsample=[True],
            is_residual=True, in_channels=12, out_channels=12, patch_size=2, scale_factor_spatial=4,
            latents_mean=[0.0] * 4, latents_std=[1.0] * 4)
MODES = {"autocast": (FP32, True), "bf16": (BF16, False), "fp32": (FP32, False)}

parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("--small", action="store_true")
parser.add_argument("--limit", type=float, default=200.0)
options = parser.parse_args()
device = torch.device("cpu" if options.small else "cuda")
started = time.monotonic()
report = {"torch": torch.__version__, "device": str(device), "sections": {}, "left_out": []}
if device.type == "cuda":
    report["card"] = torch.cuda.get_device_name()


def save():
    report["elapsed_s"] = round(time.monotonic() - started, 1)
    Path(options.out).write_text(json.dumps(report, indent=1))


@contextlib.contextmanager
def section(name):
    try:
        if time.monotonic() - started > options.limit:
            report["left_out"].append(name)
            yield None
            return
        report["sections"][name] = {}
        yield report["sections"][name]
    except Exception as error:  # noqa: BLE001 - the rest still runs; the report says what failed
        report["sections"].setdefault(name, {})["error"] = f"{type(error).__name__}: {error}"
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()
        save()
        print(name, json.dumps(report["sections"].get(name, "left out"))[:700], flush=True)


def micros(call, runs=20):
    if device.type == "cpu":
        return None
    for _ in range(3):
        call()
    times = []
    for _ in range(runs):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return round(statistics.median(times), 2)


def numbers(*shape, dtype=FP32, seed=0):
    return torch.randn(shape, device=device, generator=torch.Generator(device).manual_seed(seed)).to(dtype)


def differs(expected, actual):
    one = bit_difference(actual, expected)
    return {"differing_share": one.differing_share, "largest_ulp": one.largest_ulp}


def last(x):
    return x.contiguous(memory_format=torch.channels_last_3d)


def norm_sections():
    shapes = [(1, 8, 2, 3, 4)] if options.small else SHAPES
    for shape in shapes:
        for name, (x_dtype, gamma_dtype) in {"fp32": (FP32, FP32), "bf16": (BF16, BF16), "mixed": (BF16, FP32)}.items():
            for layout in ("planes", "channels-last"):
                with section(f"norm {name} {layout} {list(shape)}") as found:
                    if found is None:
                        continue
                    norm = WanRMS_norm(shape[1], images=False).to(device, gamma_dtype)
                    norm.gamma.copy_(numbers(shape[1], 1, 1, 1, dtype=gamma_dtype, seed=1))
                    x = numbers(*shape, dtype=x_dtype)
                    x = last(x) if layout != "planes" else x
                    eager = lambda: F.silu(norm(x))  # noqa: E731
                    def post():
                        d = x.float().norm(2, 1, keepdim=True).clamp_min(1e-12)
                        return wan_norm_silu.fused(x, d.contiguous(), norm.gamma, None, norm.scale)
                    wanted = eager()
                    found["post_ops"] = differs(wanted, post())
                    found["strides_equal"] = wanted.stride() == post().stride()
                    order = channel_norms.order_on(x, layout != "planes") if name == "mixed" or options.small else None
                    found["order"] = None if order is None else [order.lanes, order.blocks, order.vector]
                    to_bf16 = (x_dtype, gamma_dtype) == (BF16, FP32)
                    own = None
                    if order is not None:
                        def own():
                            return causal_conv_input.fused(x, norm.gamma, None, None, None, norm.scale, True, 2, 1, 1,
                                                           True, to_bf16, (order.lanes, order.blocks, order.vector))
                        inside = own()[0][:, :, 2:, 1:-1, 1:-1]
                        found["one_pass"] = differs(wanted.to(inside.dtype).contiguous(), inside.contiguous())
                    found["eager_us"], found["post_ops_us"] = micros(eager), micros(post)
                    found["one_pass_with_padding_us"] = None if own is None else micros(own)
                    del wanted


def every_value():
    with section("every finite bf16 value") as found:
        if found is None:
            return
        every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(BF16)
        x = every[every.isfinite()].view(1, 3, 1, 136, 160).to(device)
        ones = torch.ones(1, 1, 1, 136, 160, device=device)
        for dtype in (BF16, FP32):
            for factor, scale in ((1.0, 1.0), (0.7, 3**0.5)):
                gamma = torch.tensor([0.75, -1.3, 3e-5] if factor != 1 else [1.0] * 3, device=device).to(dtype).view(3, 1, 1, 1)
                call = (x, ones * factor, gamma, None, scale)
                found[f"{dtype} {factor}"] = differs(wan_norm_silu.reference(*call), wan_norm_silu.fused(*call))


def movement_sections():
    c, t, h, w = (8, 2, 3, 4) if options.small else (512, 2, 120, 208)
    with section("duplicate and upsample") as found:
        if found is None:
            return
        shortcut, x = last(numbers(1, c, t, h, w, dtype=BF16)), last(numbers(1, c // 2, 2 * t, 2 * h, 2 * w, dtype=BF16))
        bias = numbers(c // 2, seed=2)
        up = DupUp3D(c, c // 2, 2, 2)
        eager = lambda: (x + bias.bfloat16().view(-1, 1, 1, 1)) + up(shortcut)  # noqa: E731
        ours = lambda: duplicate_upsample_add.fused(x, bias, shortcut, None, 2, 2, 0, True)  # noqa: E731
        found["duplicate"] = differs(eager().contiguous(), ours().contiguous()) | {"eager_us": micros(eager), "us": micros(ours)}
        call = (shortcut, numbers(c, seed=3), 2)
        eager, ours = lambda: nearest_upsample.reference(*call), lambda: nearest_upsample.fused(*call)
        found["upsample"] = differs(eager(), ours()) | {"eager_us": micros(eager), "us": micros(ours)}
        cache = last(numbers(1, c, 2, h, w, dtype=BF16, seed=4))
        call = (shortcut, None, None, cache, None, 1.0, False, 2, 1, 1, True, False, None)
        eager, ours = lambda: causal_conv_input.reference(*call), lambda: causal_conv_input.fused(*call)
        found["pad_and_cat"] = differs(eager(), ours()) | {"eager_us": micros(eager), "us": micros(ours)}


def sha(video):
    return hashlib.sha256(video.contiguous().view(torch.int16 if video.dtype == BF16 else torch.int32).cpu().numpy().tobytes()).hexdigest()


def same(one, other):
    """Every bit, on the device; layouts aside."""
    kind = torch.int16 if one.dtype == BF16 else torch.int32
    return (one.dtype, one.shape) == (other.dtype, other.shape) and torch.equal(one.contiguous().view(kind), other.contiguous().view(kind))


def seconds(call):
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    result = call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
    return round(time.perf_counter() - begin, 4), peak, result


def kernels_of(call):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    events = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    by_name = {}
    for event in events:
        count, total = by_name.get(event.name, (0, 0.0))
        by_name[event.name] = (count + 1, total + event.device_time / 1e3)
    top = sorted(by_name.items(), key=lambda one: -one[1][1])[:25]
    total = sum(ms for _, ms in by_name.values())
    return len(events), round(total, 1), [[name[:110], count, round(ms, 2)] for name, (count, ms) in top]


def gates_of(gates):
    return {
        name: {"fused": gate.calls_fused, "eager": gate.calls_eager, "first_sights": gate.first_sights,
               "first_sight_ms": round(gate.first_sight_ms), "jit_ms": round(gate.jit_ms), "declined": gate.declined,
               "eager_causes": gate.eager_causes,
               "rejections": [[str(key)[:300], one.reason] for key, one in list(gate.rejections.items())[:12]],
               "rejected_keys": len(gate.rejections)}
        for name, gate in gates.items()
    }


def make_vae(dtype):
    torch.manual_seed(0)
    with torch.device(device):
        vae = AutoencoderKLWan(**(TINY if options.small else WAN22)).eval().to(dtype)
    for parameter in vae.parameters():  # biases and norms away from 0 and 1
        parameter.add_(0.02 * torch.randn_like(parameter))
    return vae


def latents_of(vae, width, height, frames, dtype):
    factor, temporal = vae.spatial_compression_ratio, 2 if options.small else 4
    return numbers(1, vae.config.z_dim, 1 + (frames - 1) // temporal, height // factor, width // factor, dtype=dtype)


def compare(found, eager_vae, vae, run, profiled, pairs=2):
    """Bits, turns A-B-B-A, peaks, gates and kernels of ``run(vae)``, eager against fused; two models, the same weights."""
    eager, fused = lambda: run(eager_vae), lambda: run(vae)
    found["eager_first_s"], _, first = seconds(eager)
    found["eager_warm_s"], found["eager_peak_gib"], wanted = seconds(eager)
    found["eager_deterministic"], found["eager_sha256"] = same(first, wanted), sha(wanted)
    del first
    found["finite"], found["std"] = bool(wanted.isfinite().all()), float(wanted.float().std())
    gates = {name: Gate(name) for name in autoencoder_kl_wan.SITES if autoencoder_kl_wan.QUALITY_OF_SITE[name] == "lossless"}
    found["reject_reason"] = autoencoder_kl_wan.reject_reason(vae)
    installation = autoencoder_kl_wan.install(vae, gates)
    try:
        found["first_s"], found["first_peak_gib"], first = seconds(fused)
        found["first_equal"], found["first_bits"] = same(first, wanted), differs(wanted, first)
        del first
        save()
        for _ in range(4):  # a rejected form gives way to the next at the next call
            before = sum(gate.first_sights for gate in gates.values())
            fused()
            if before == sum(gate.first_sights for gate in gates.values()):
                break
        for gate in gates.values():
            gate.restart_counting()
        found["fused_warm_s"], found["fused_peak_gib"], last_one = seconds(fused)
        found["equal"], found["bits"] = same(last_one, wanted), differs(wanted, last_one)
        found["strides_equal"] = last_one.stride() == wanted.stride()
        del last_one
        found["gates"] = gates_of(gates)
        save()
        turns = {"eager_s": [], "fused_s": []}
        for name in ["eager_s", "fused_s", "fused_s", "eager_s"] * pairs:
            turns[name].append(seconds(eager if name == "eager_s" else fused)[0])
        found |= turns
        found["median_s"] = {name: statistics.median(times) for name, times in turns.items()}
        save()
        if profiled and device.type == "cuda":
            found["fused_kernels"], found["fused_kernel_ms"], found["fused_top"] = kernels_of(fused)
            found["eager_kernels"], found["eager_kernel_ms"], found["eager_top"] = kernels_of(eager)
    finally:
        found.setdefault("gates", gates_of(gates))
        installation.take_off()
    return wanted


def decode_section(mode, width, height, frames, profiled, pairs=2):
    dtype, autocast = MODES[mode]
    with section(f"decode {mode} {width}x{height}x{frames}") as found:
        if found is None:
            return
        vae = make_vae(dtype)
        z = latents_of(vae, width, height, frames, dtype)

        def decode(model):
            with torch.autocast(device.type, BF16, enabled=autocast):
                return model.decode(z, return_dict=False)[0]

        compare(found, copy.deepcopy(vae), vae, decode, profiled, pairs)


def encode_section(mode, width, height, frames, profiled=False, pairs=1):
    dtype, autocast = MODES[mode]
    with section(f"encode {mode} {width}x{height}x{frames}") as found:
        if found is None:
            return
        vae, clip = make_vae(dtype), numbers(1, 3, frames, height, width, dtype=dtype, seed=5).clamp_(-1, 1)

        def encode(model):
            with torch.autocast(device.type, BF16, enabled=autocast):
                return model.encode(clip, return_dict=False)[0].parameters

        compare(found, copy.deepcopy(vae), vae, encode, profiled, pairs)


def tiers_section(mode, width, height, frames, encodes=False, repeats=3):
    """Time, largest difference and PSNR of each approximate site against eager, whose bits lossless has."""
    dtype, autocast = MODES[mode]
    with section(f"tiers {'encode' if encodes else 'decode'} {mode} {width}x{height}x{frames}") as found:
        if found is None:
            return
        vae = make_vae(dtype)
        x = numbers(1, 3, frames, height, width, dtype=dtype, seed=5).clamp_(-1, 1) if encodes else latents_of(vae, width, height, frames, dtype)

        def run():
            with torch.autocast(device.type, BF16, enabled=autocast):
                return vae.encode(x, return_dict=False)[0].parameters if encodes else vae.decode(x, return_dict=False)[0]

        run()
        found["eager_s"], found["eager_peak_gib"], wanted = seconds(run)
        scale = float(wanted.max().float() - wanted.min().float())
        family = autoencoder_kl_wan
        gates = {name: Gate(name) for name in family.EXACT_SITES}
        close = {name: ApproximateGate(name, quality=quality, largest_error=family.LARGEST_ERROR_OF_SITE[name])
                 for name, quality in family.APPROXIMATE_SITES.items()}
        installation = family.install(vae, gates)
        try:
            for name in ("lossless", *close):
                one = found[name] = {}
                installation.choose({} if name == "lossless" else {name: close[name]}, in_all_threads=True)
                one["first_s"] = seconds(run)[0]
                run()
                taken = [seconds(run) for _ in range(repeats)]
                one["s"], one["peak_gib"], result = [turn[0] for turn in taken], taken[-1][1], taken[-1][2]
                taken.clear()
                difference = (result.float() - wanted.float()).abs_()
                one["max_abs"], one["equal"] = float(difference.max()), same(result, wanted)
                error = float(difference.square_().mean())
                one["psnr_db_of_range"] = None if error == 0 else round(10 * math.log10(scale**2 / error), 2)
                del difference, result
                if name != "lossless":
                    gate = close[name]
                    one |= gates_of({name: gate})[name] | {"deviation": gate.deviation and gate.deviation.to_json()}
                save()
                if device.type == "cuda" and not encodes and mode == "autocast":
                    one["kernels"], one["kernel_ms"], one["top"] = kernels_of(run)
        finally:
            installation.take_off()


@torch.no_grad()
def main():
    if options.small:
        decode_section("autocast", 8, 8, 3, False, 1)
        norm_sections()
        movement_sections()
        encode_section("autocast", 8, 8, 5)
        encode_section("fp32", 8, 8, 1)
        tiers_section("autocast", 8, 8, 3, repeats=1)
        tiers_section("fp32", 8, 8, 5, encodes=True, repeats=1)
        every_value()
        return
    import os
    if os.environ.get("REST"):
        decode_section("autocast", 1152, 768, 61, True, 1)
        encode_section("autocast", 832, 480, 61, True)
        encode_section("fp32", 1152, 768, 1)
        encode_section("autocast", 1152, 768, 61)
        tiers_section("autocast", 832, 480, 61)
        decode_section("bf16", 832, 480, 61, False, 1)
        decode_section("fp32", 832, 480, 61, False, 1)
        tiers_section("fp32", 1152, 768, 1, encodes=True)
        tiers_section("fp32", 832, 480, 61, repeats=2)
        movement_sections()
        return
    decode_section("autocast", 832, 480, 61, True)
    norm_sections()
    every_value()
    decode_section("autocast", 1152, 768, 61, False, 1)
    encode_section("autocast", 832, 480, 61, True)
    encode_section("fp32", 1152, 768, 1)
    tiers_section("autocast", 832, 480, 61)
    tiers_section("fp32", 832, 480, 61, repeats=2)
    movement_sections()
    decode_section("fp32", 832, 480, 61, False, 1)
    tiers_section("fp32", 1152, 768, 1, encodes=True)
    decode_section("bf16", 832, 480, 61, False, 1)


with interpreter_rounding.exact_rounding() if is_interpreted() else contextlib.nullcontext():
    main()
save()
