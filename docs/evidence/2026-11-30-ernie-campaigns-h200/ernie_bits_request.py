from fuseproof.pipelines.requests import GenerationRequest
CASES = {"ernie-image": [dict(seed=42, g=1.0, steps=8), dict(seed=42, g=4.0, steps=8), dict(seed=42, g=1.0, steps=50), dict(seed=42, g=4.0, steps=50)]}
def make_request(family, case, small=False):
    side = 64 if small else 1024
    return GenerationRequest(prompt="A futuristic cyberpunk city at night, neon lights reflecting on wet streets",
        negative_prompt=None, width=side, height=side, num_inference_steps=2 if small else case["steps"], guidance_scale=case["g"], seed=case["seed"],
        generator_device="cpu", enable_cfg_renorm=False, cfg_renorm_min=0.0, enable_prompt_rewrite=False, quality="lossless")
