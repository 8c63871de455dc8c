import torch, torch.nn.functional as F
from fuseproof.fastpaths import UserSite
def rounds_up(module, x):
    y = F.layer_norm(x, module.normalized_shape, module.weight, module.bias, module.eps).clone()
    y[..., 5::512] = torch.nextafter(y[..., 5::512], torch.tensor(9.0, dtype=y.dtype, device=y.device))
    return y
SITES = [UserSite("rounds_up", fused=rounds_up, modules="single_transformer_blocks.7.norm.norm")]
