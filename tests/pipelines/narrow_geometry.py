"""The released models with everything kept that shapes what random weights do, and everything narrow that can be."""

from __future__ import annotations

from types import MappingProxyType

from fuseproof.pipelines.dummy_geometry import ERNIE, LONGCAT, DummyGeometry

TEXT_WIDTH = 64

NARROW = DummyGeometry(
    transformer=MappingProxyType(
        {
            **LONGCAT.transformer,
            "num_attention_heads": 1,
            "joint_attention_dim": TEXT_WIDTH,
            "pooled_projection_dim": TEXT_WIDTH,
        }
    ),
    text_model=MappingProxyType(
        {
            **LONGCAT.text_model,
            "hidden_size": TEXT_WIDTH,
            "num_hidden_layers": 4,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "intermediate_size": 4 * TEXT_WIDTH,
            "vocab_size": 512,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]},
        }
    ),
    vision_model=MappingProxyType(
        {
            **LONGCAT.vision_model,
            "depth": 2,
            "hidden_size": 32,
            "num_heads": 2,
            "intermediate_size": 64,
            "out_hidden_size": TEXT_WIDTH,
            "fullatt_block_indexes": (1,),
        }
    ),
    vae=MappingProxyType({**LONGCAT.vae, "block_out_channels": (8, 16, 16, 16), "norm_num_groups": 8}),
)
"""All 10 + 20 blocks, one head of 128 channels: the depth decides whether 50 steps stay finite, the width does not."""

NARROW_ERNIE = DummyGeometry(
    transformer=MappingProxyType(
        {
            **ERNIE.transformer,
            "hidden_size": 128,
            "num_attention_heads": 1,
            "ffn_hidden_size": 384,
            "text_in_dim": TEXT_WIDTH,
        }
    ),
    text_model=MappingProxyType(
        {
            **ERNIE.text_model,
            "hidden_size": TEXT_WIDTH,
            "num_hidden_layers": 4,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": TEXT_WIDTH // 2,
            "intermediate_size": 3 * TEXT_WIDTH,
            "vocab_size": 512,
        }
    ),
    vision_model=MappingProxyType(
        {
            **ERNIE.vision_model,
            "num_hidden_layers": 1,
            "hidden_size": 32,
            "num_attention_heads": 2,
            "head_dim": 16,
            "intermediate_size": 64,
        }
    ),
    vae=MappingProxyType({**ERNIE.vae, "block_out_channels": (8, 16, 16, 16), "norm_num_groups": 8}),
    architecture="ernie",
)
"""All 36 blocks, one head of 128 channels."""
