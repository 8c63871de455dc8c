"""Mounting where it must work or decline: LoRA, autograd, compile, fp16, offload hooks. Real-size blocks, two layers."""
import torch, json, sys
from types import SimpleNamespace
from diffusers import LongCatImageTransformer2DModel
from fuseproof.fastpaths import mount
dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
def build(dtype=torch.bfloat16):
    torch.manual_seed(0)
    m = LongCatImageTransformer2DModel(in_channels=64, num_layers=1, num_single_layers=2, attention_head_dim=128, num_attention_heads=4, joint_attention_dim=256, pooled_projection_dim=256, axes_dims_rope=[16, 56, 56])
    return m.to(dev, dtype).eval()
T, N = 64, 256
def args(dtype, seed=1):
    g = torch.Generator(dev).manual_seed(seed)
    ids = torch.stack([torch.ones(N), torch.arange(N) // 16, torch.arange(N) % 16], -1).to(dev)
    txt = torch.stack([torch.zeros(T), torch.arange(T), torch.arange(T)], -1).to(dev)
    return dict(hidden_states=torch.randn(1, N, 64, device=dev, generator=g).to(dtype), encoder_hidden_states=torch.randn(1, T, 256, device=dev, generator=g).to(dtype),
                timestep=torch.full((1,), 0.5, device=dev, dtype=dtype), img_ids=ids, txt_ids=txt, return_dict=False)
def show(name, m, ok):
    bad = {k: (v["state"], (v["reason"] or "")[:120]) for k, v in m.report()["sites"].items() if v["state"] not in ("fused", "unreached")}
    print("==", name, "OK" if ok else "DIFFERENT", json.dumps(bad)[:1200], flush=True)
def bits(x, y): return torch.equal(x, y)
for dtype in (torch.bfloat16, torch.float16, torch.float32):
    model = build(dtype); a = args(dtype)
    with torch.no_grad():
        want = model(**a)[0]
        with mount(SimpleNamespace(transformer=model)) as m: got = [model(**a)[0] for _ in range(3)]
    show(f"plain {dtype}", m, all(bits(want, g) for g in got))
from torch.nn.attention import sdpa_kernel, SDPBackend
BACKEND = SDPBackend.MATH
model = build(); a = args(torch.bfloat16)
def grads():
    model.zero_grad()
    with sdpa_kernel([BACKEND]):
        out = model(**a)[0]; out.float().square().mean().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None], out.detach()
wantg, wanto = grads()
again, _ = grads()
print('== control: two eager backwards equal', all(bits(x, y) for x, y in zip(wantg, again)), flush=True)
from torch.nn.attention import sdpa_kernel, SDPBackend
with mount(SimpleNamespace(transformer=model)) as m:
    with torch.no_grad(), sdpa_kernel([BACKEND]): [model(**a) for _ in range(2)]
    gotg, goto = grads()
show("gradients after verification", m, len(wantg) == len(gotg) and all(bits(x, y) for x, y in zip(wantg, gotg)) and bits(wanto, goto))
with torch.no_grad():
    model = build(); want = model(**a)[0]
    try:
        comp = torch.compile(model)
        wantc = comp(**a)[0]
        with mount(SimpleNamespace(transformer=model)) as m: got = [comp(**a)[0] for _ in range(2)]
        show("compiled, then mounted", m, all(bits(wantc, g) for g in got))
        def body(**k):
            with mount(SimpleNamespace(transformer=model)) as inner: return model(**k)[0]
        try:
            got = torch.compile(body)(**a); print("== mount inside torch.compile", "equal to eager" if bits(got, want) else "differs from eager (compile)", "equal to compile" if bits(got, wantc) else "")
        except Exception as e: print("== mount inside torch.compile raised", type(e).__name__, str(e)[:300])
    except Exception as e: print("== compile failed", type(e).__name__, str(e)[:300])
    try:
        from peft import LoraConfig
        model = build(); torch.manual_seed(3)
        model.add_adapter(LoraConfig(r=4, target_modules=["to_q", "to_k", "proj_out"], init_lora_weights=False))
        model.to(dev, torch.bfloat16); want = model(**a)[0]
        with mount(SimpleNamespace(transformer=model)) as m: got = [model(**a)[0] for _ in range(3)]
        show("LoRA (peft)", m, all(bits(want, g) for g in got))
    except ImportError as e: print("== no peft", e)
    model = build(); want = model(**a)[0]; seen = []
    h = model.transformer_blocks[0].attn.to_q.register_forward_hook(lambda *_: seen.append(1))
    with mount(SimpleNamespace(transformer=model)) as m: got = [model(**a)[0] for _ in range(3)]
    show(f"hooked to_q (hook ran {len(seen)} times of 3)", m, all(bits(want, g) for g in got)); h.remove()
    if dev.type == "cuda":
        try:
            from accelerate import cpu_offload
            model = build().cpu(); cpu_offload(model, dev); want = model(**a)[0]
            with mount(SimpleNamespace(transformer=model)) as m: got = [model(**a)[0] for _ in range(3)]
            show("offloaded (accelerate)", m, all(bits(want, g) for g in got))
        except Exception as e: print("== offload raised", type(e).__name__, str(e)[:300])
        model = build(); want = model(**a)[0]
        with mount(SimpleNamespace(transformer=model)) as m:
            s = torch.cuda.Stream(); torch.cuda.synchronize()
            with torch.cuda.stream(s):
                model_out = None; g = torch.cuda.CUDAGraph()
                try:
                    with torch.cuda.graph(g): model_out = model(**a)[0]
                    g.replay(); torch.cuda.synchronize(); show("captured before any verification", m, bits(want, model_out))
                except Exception as e: print("== capture raised", type(e).__name__, str(e)[:300])
