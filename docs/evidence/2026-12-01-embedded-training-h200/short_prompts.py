import sys, torch
from training import evaluate as ev
from training.evaluate import *
import diffusers.pipelines.longcat_image.pipeline_longcat_image as P
orig = P.prepare_pos_ids
def ppi(modality_id=0, type="text", start=(0,0), **k):
    if type == "image": start = (512, 512)
    return orig(modality_id=modality_id, type=type, start=start, **k)
P.prepare_pos_ids = ppi
pipe = load(Path(sys.argv[1]), torch.device("cpu")); pipe.tokenizer_max_length = int(sys.argv[2])
caps = evaluation_captions(int(sys.argv[4]))
j = judge(pipe, caps, steps=20, guidance=float(sys.argv[3]), seed=0, batch=4)
print(sys.argv, report(j)); write(Path("short"), "-".join(sys.argv[2:5]), j)
