import torch, time, json, os
from fuseproof.fastpaths.sites import autoencoder_kl as site
from fuseproof.fastpaths.gates import Gate
from diffusers import AutoencoderKL
torch.set_grad_enabled(False); dev=torch.device("cuda")
def ms(f, n=7):
    for _ in range(2): f()
    torch.cuda.synchronize(); ts=[]
    for _ in range(n):
        a,b=torch.cuda.Event(True),torch.cuda.Event(True); a.record(); f(); b.record(); b.synchronize(); ts.append(a.elapsed_time(b))
    ts.sort(); return [round(x,2) for x in (ts[n//2],ts[0],ts[-1])]
eq=lambda a,b: torch.equal(a.contiguous().view(torch.int16), b.contiguous().view(torch.int16))
torch.manual_seed(0)
with dev:
    vae=AutoencoderKL(down_block_types=("DownEncoderBlock2D",)*4,up_block_types=("UpDecoderBlock2D",)*4,block_out_channels=(128,256,512,512),layers_per_block=2,latent_channels=16,norm_num_groups=32,sample_size=1024,use_quant_conv=False,use_post_quant_conv=False).bfloat16().eval()
out=[]
for h,w in ((128,128),(106,158)):
    z=[torch.randn(1,16,h,w,device=dev).bfloat16() for _ in range(3)]; pic=torch.rand(1,3,8*h,8*w,device=dev).bfloat16()
    dec=lambda i=0: vae.decode(z[i],return_dict=False)[0]; enc=lambda: vae.encode(pic).latent_dist.parameters
    torch.cuda.reset_peak_memory_stats(); e=[dec(i) for i in range(3)]; ee=enc(); pk=torch.cuda.max_memory_reserved()/2**30
    row={"size":[8*h,8*w],"eager decode":ms(dec),"eager encode":ms(enc),"reserved":round(pk,2)}
    gates={n:Gate(n) for n in site.SITES}; inst=site.install(vae,gates)
    t=time.time(); f=[dec(i) for i in range(3)]; fe=enc(); torch.cuda.synchronize(); row["first s"]=round(time.time()-t,2)
    f2=[dec(i) for i in range(3)]
    row|={"equal":[eq(a,b) for a,b in zip(e,f)]+[eq(a,b) for a,b in zip(e,f2)]+[eq(ee,fe),eq(ee,enc())],"decode":ms(dec),"encode":ms(enc),"reserved fused":round(torch.cuda.max_memory_reserved()/2**30,2),"rejected":[str((k[0],r.reason))[:200] for g in gates.values() for k,r in g.rejections.items()],"declined":[g.declined for g in gates.values()],"calls":[(g.calls_fused,g.calls_eager,g.verified_keys()) for g in gates.values()]}
    for r in reversed(inst.replacements): r.take_off()
    row["eager again"]=ms(dec); out.append(row); print(json.dumps(row),flush=True)
json.dump({"card":torch.cuda.get_device_name(),"torch":torch.__version__,"rows":out},open(os.environ["OUT"]+"/vae.json","w"),indent=1)
