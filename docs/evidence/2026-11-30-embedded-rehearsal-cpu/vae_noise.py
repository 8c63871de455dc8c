import sys, torch
torch.set_num_threads(1)
sys.path.insert(0, ".")
from pathlib import Path
from training.stages import stored_vae, HELD_OUT_SEED
from training.folders import Run
from training.described import draw_described
from training.data import Drawings
from training.checker import check
for x in sys.argv[1:]:
    dev = torch.device("cpu")
    vae = stored_vae(Run(Path(x)), dev)
    items = draw_described(HELD_OUT_SEED, 100, 1, held_out=True, subset="simple")
    pics = Drawings.of([i.scene for i in items], dev).render(torch.arange(100), 64)
    with torch.no_grad():
        z = (vae.encode(pics).latent_dist.mode() - vae.config.shift_factor) * vae.config.scaling_factor
        u, s, v = torch.linalg.svd((z - z.mean((0,2,3), keepdim=True)).permute(0,2,3,1).reshape(-1,16), full_matrices=False)
        print(x, "channel spectrum", [round(t,3) for t in (s/ (len(u)**.5)).tolist()], "rms", z.std().item())
        g = torch.Generator().manual_seed(0)
        for e in (0, .1, .2, .3, .5, .7, 1.0):
            n = z + e*torch.randn(z.shape, generator=g)
            d = vae.decode(n / vae.config.scaling_factor + vae.config.shift_factor)[0].clamp(-1,1)
            psnr = -10*torch.log10(((d-pics)/2).square().mean((1,2,3))).mean().item()
            im = ((d+1)*127.5).round().to(torch.uint8).permute(0,2,3,1).numpy()
            ok = sum(not check(p, i.captions[0].claims) for p, i in zip(im, items))
            print(f"  noise {e}: {psnr:.1f} dB, {ok} of 100 pass")
