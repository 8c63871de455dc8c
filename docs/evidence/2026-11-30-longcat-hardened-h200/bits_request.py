from pathlib import Path
from tests.pipelines.input_pictures import as_input
from fuseproof.pipelines.conditioning import canvas_size
from fuseproof.pipelines.requests import GenerationRequest
CASES = {
  "longcat-image": [dict(seed=0, g=4.5, steps=8), dict(seed=1, g=4.5, steps=8), dict(seed=2**63 + 5, g=4.5, steps=8), dict(seed=7, g=1.0, steps=8)],
  "longcat-image-edit": [dict(seed=42, g=4.5, steps=4), dict(seed=3, g=4.5, steps=4)],
  "longcat-image-edit-turbo": [dict(seed=42, g=1.0, steps=8), dict(seed=3, g=1.0, steps=8), dict(seed=4, g=1.0, steps=8)],
}
def make_request(family, case, small=False):
    edit = "edit" in family
    image = None; width = height = 64 if small else 1024; canvas = None
    if edit:
        image = as_input(Path("schedules/plans/assets/window-cat.jpg").read_bytes())
        canvas = 112 * 112 if small else 1024 * 1024
        width, height = canvas_size(image.width, image.height, canvas)
    return GenerationRequest(prompt="Make the cat wear a red hat." if edit else "A red panda reading a book beside a sunlit window.",
        negative_prompt=None, width=width, height=height, num_inference_steps=case["steps"], guidance_scale=case["g"], seed=case["seed"],
        generator_device="cpu", enable_cfg_renorm=not edit, cfg_renorm_min=0.0, enable_prompt_rewrite=False, quality="lossless",
        image=image, canvas_pixels=canvas)
