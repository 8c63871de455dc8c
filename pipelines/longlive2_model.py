"""LongLive 2's transformer: Wan 2.2 TI2V-5B's parameters, run causally over chunks of latent frames with a KV cache.

Absent from diffusers 0.42.1. The parameters are those of ``WanTransformer3DModel``, by name and by shape (weights under
their published names load too: :mod:`fuseproof.pipelines.longlive2_weights`); the arithmetic is that of
``WanTransformerBlock``, rounding by rounding, but

- a chunk attends to the clean frames before it as well (:mod:`fuseproof.pipelines.longlive2_caches`), turned to the
  absolute position of each frame in the clip, and every one of its tokens sees all of them and all of its own;
- each latent frame is told its own timestep, and modulation is one row a frame, broadcast over the frame's tokens where
  diffusers materialises one a token (the same bits);
- keys and values of the text are made once a request (the same bits).

``docs/longlive2.md`` says what of this the public description leaves open, and how it was decided.
:mod:`fuseproof.pipelines.reference_longlive2` does the same on diffusers' own blocks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import WanTransformer3DModel
from diffusers.configuration_utils import register_to_config

from fuseproof.pipelines.longlive2_blocks import block_forward, modulated, split_heads
from fuseproof.pipelines.longlive2_caches import CHUNK_FRAMES, WINDOW_FRAMES, LongLive2Caches
from fuseproof.pipelines.longlive2_weights import has_published_names, load_published

WAN_CLASS = "WanTransformer3DModel"


class LongLive2Transformer3DModel(WanTransformer3DModel):
    """``WanTransformer3DModel`` whose forward is one pass over one chunk; its default sizes are the released ones."""

    @register_to_config
    def __init__(
        self,
        patch_size: tuple[int, ...] = (1, 2, 2),
        num_attention_heads: int = 24,
        attention_head_dim: int = 128,
        in_channels: int = 48,
        out_channels: int = 48,
        text_dim: int = 4096,
        freq_dim: int = 256,
        ffn_dim: int = 14336,
        num_layers: int = 30,
        cross_attn_norm: bool = True,
        qk_norm: str | None = "rms_norm_across_heads",
        eps: float = 1e-6,
        image_dim: None = None,
        added_kv_proj_dim: None = None,
        rope_max_seq_len: int = 1024,
        pos_embed_seq_len: None = None,
    ) -> None:
        super().__init__(
            patch_size=patch_size,
            num_attention_heads=num_attention_heads,
            attention_head_dim=attention_head_dim,
            in_channels=in_channels,
            out_channels=out_channels,
            text_dim=text_dim,
            freq_dim=freq_dim,
            ffn_dim=ffn_dim,
            num_layers=num_layers,
            cross_attn_norm=cross_attn_norm,
            qk_norm=qk_norm,
            eps=eps,
            image_dim=image_dim,
            added_kv_proj_dim=added_kv_proj_dim,
            rope_max_seq_len=rope_max_seq_len,
            pos_embed_seq_len=pos_embed_seq_len,
        )

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Any) -> Any:
        """As diffusers loads a model, and from published weights as well, of which it takes ``dtype`` and
        ``output_loading_info``.
        """
        if not has_published_names(Path(folder)):
            return super().from_pretrained(folder, **options)
        model, report = load_published(cls, Path(folder), options.get("dtype") or torch.float32)
        return (model, report) if options.get("output_loading_info") else model

    def new_caches(
        self,
        batch: int,
        latent_height: int,
        latent_width: int,
        device: torch.device,
        dtype: torch.dtype,
        frames: int,
    ) -> LongLive2Caches:
        """Memory for clips of at most ``frames`` latent frames of [latent_height, latent_width].

        No longer than the window of 32 frames, whatever the clip: the released model takes 137 MiB a latent frame of
        832x480 pixels in bf16.
        """
        heads, width = self.config.num_attention_heads, self.config.attention_head_dim
        _, rows, columns = self.config.patch_size
        plane = latent_height // rows, latent_width // columns
        tokens = plane[0] * plane[1]
        shape = (batch, min(frames, WINDOW_FRAMES) * tokens, heads, width)
        chunk = (1, CHUNK_FRAMES * tokens, 1, width)
        return LongLive2Caches(
            keys=[torch.zeros(shape, dtype=dtype, device=device) for _ in self.blocks],
            values=[torch.zeros(shape, dtype=dtype, device=device) for _ in self.blocks],
            cosine=torch.zeros(chunk, dtype=self.rope.freqs_cos.dtype, device=device),
            sine=torch.zeros(chunk, dtype=self.rope.freqs_sin.dtype, device=device),
            plane=plane,
        )

    def forward_chunk(
        self,
        hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        caches: LongLive2Caches,
        start_frame: int,
        write: bool,
    ) -> torch.Tensor:
        """The velocity [B, C, F, h, w] of a chunk, in its dtype; every forward of one chunk says the same
        ``start_frame``.

        ``hidden_states`` [B, C, F, h, w] are the chunk's latents in the transformer's dtype, ``timestep`` [B, F] fp32
        those of its frames (0 where a frame is clean), ``encoder_hidden_states`` [B, text tokens, text channels] the
        text. ``write`` ends the chunk: what this forward wrote is what later chunks see. A ValueError for a chunk that
        does not follow the one written last, and for one beyond the model's longest clip.
        """
        velocity: torch.Tensor = self(
            hidden_states=hidden_states,
            timestep=timestep,
            encoder_hidden_states=encoder_hidden_states,
            caches=caches,
            start_frame=start_frame,
            write=write,
        )
        return velocity

    def forward(  # the signature of a chunk, not of a clip
        self,
        hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        caches: LongLive2Caches,
        start_frame: int,
        write: bool,
    ) -> torch.Tensor:
        """As :meth:`forward_chunk`, in three parts: what is done once a chunk, the pass itself, and what ends it."""
        self.prepare_chunk(encoder_hidden_states, caches, start_frame, hidden_states.shape[2])
        velocity = self.forward_prepared(hidden_states, timestep, caches)
        if write:
            caches.commit_chunk()
        return velocity

    def prepare_chunk(self, text: torch.Tensor, caches: LongLive2Caches, start_frame: int, frames: int) -> None:
        """Make room in ``caches`` for a chunk and lay down its rotary tables; keys and values of a new text.

        In later forwards of the chunk there is nothing left to do. What a captured graph must not hold stands here.
        """
        if start_frame + frames > self.config.rope_max_seq_len:
            raise ValueError(
                f"frames {start_frame} to {start_frame + frames} of a clip; the longest one has "
                f"{self.config.rope_max_seq_len} latent frames"
            )
        if caches.begin_chunk(start_frame, frames):
            self._lay_rotary_tables(caches, start_frame, frames)
        if not caches.holds_text(text):
            self._write_text(caches, text)

    def forward_prepared(
        self, hidden_states: torch.Tensor, timestep: torch.Tensor, caches: LongLive2Caches
    ) -> torch.Tensor:
        """The pass over the chunk at work in ``caches``: reads and writes fixed memory, asks the host nothing."""
        batch, _, frames, height, width = hidden_states.shape
        hidden = self.patch_embedding(hidden_states).flatten(2).transpose(1, 2).contiguous()
        temb, modulation = self.modulation_rows(timestep, hidden.dtype)
        for index in range(len(self.blocks)):
            hidden = self.forward_block(index, hidden, modulation, caches)
        normed = self.modulated_output(hidden, temb)
        return self._unpatchified(self.proj_out(normed), batch, frames, height, width)

    def forward_block(
        self, index: int, hidden: torch.Tensor, modulation: torch.Tensor, caches: LongLive2Caches
    ) -> torch.Tensor:
        """``hidden`` [B, S, D] of the chunk at work after block ``index``, whose keys and values stay in ``caches``."""
        return block_forward(self.blocks[index], hidden, modulation, caches, index)

    def modulated_output(self, hidden: torch.Tensor, temb: torch.Tensor) -> torch.Tensor:
        """The last norm of ``hidden`` [B, S, D], modulated by ``temb`` [B, F, D]."""
        shift, scale = (self.scale_shift_table.unsqueeze(0) + temb.unsqueeze(2)).chunk(2, dim=2)
        return modulated(self.norm_out(hidden.float()), shift, scale).type_as(hidden)

    def modulation_rows(self, timestep: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """What is made of ``timestep`` [B, F], in ``dtype``: its embedding [B, F, D], which the last norm is told, and
        the modulation [B, F, 6, D] that every block is told. There is a row for each frame, equal ones as well.
        """
        embedder = self.condition_embedder
        rows = embedder.timesteps_proj(timestep.flatten()).unflatten(0, timestep.shape)
        temb = embedder.time_embedder(rows.to(embedder.time_embedder.linear_1.weight.dtype)).to(dtype)
        return temb, embedder.time_proj(embedder.act_fn(temb)).unflatten(2, (6, -1))

    def _lay_rotary_tables(self, caches: LongLive2Caches, start_frame: int, frames: int) -> None:
        """Write cosines and sines of the chunk's frames, at their places in the clip, into ``caches``."""
        for table, target in ((self.rope.freqs_cos, caches.cosine), (self.rope.freqs_sin, caches.sine)):
            by_axis = table.split([self.rope.t_dim, self.rope.h_dim, self.rope.w_dim], dim=1)
            rows, columns = caches.plane
            grid = target[0, : frames * caches.tokens_per_frame, 0].view(frames, rows, columns, -1)
            along_time, along_rows, along_columns = grid.split([part.shape[1] for part in by_axis], dim=3)
            along_time.copy_(by_axis[0][start_frame : start_frame + frames, None, None])
            along_rows.copy_(by_axis[1][None, :rows, None])
            along_columns.copy_(by_axis[2][None, None, :columns])

    def _write_text(self, caches: LongLive2Caches, text: torch.Tensor) -> None:
        embedded = self.condition_embedder.text_embedder(text)
        attentions = [block.attn2 for block in self.blocks]
        keys = [split_heads(attention, attention.norm_k(attention.to_k(embedded))) for attention in attentions]
        values = [split_heads(attention, attention.to_v(embedded)) for attention in attentions]
        caches.write_text(text, keys, values)

    def _unpatchified(self, tokens: torch.Tensor, batch: int, frames: int, height: int, width: int) -> torch.Tensor:
        """Tokens [B, S, patch x C] as latents [B, C, F, h, w]; a patch counts its channels last."""
        depth, rows, columns = self.config.patch_size
        patches = tokens.reshape(batch, frames // depth, height // rows, width // columns, depth, rows, columns, -1)
        return patches.permute(0, 7, 1, 4, 2, 5, 3, 6).flatten(6, 7).flatten(4, 5).flatten(2, 3)


def as_longlive2(transformer: WanTransformer3DModel) -> LongLive2Transformer3DModel:
    """``transformer`` itself, from now on a LongLive 2: nothing is copied, its parameters are the same ones.

    A ValueError for any other class than ``WanTransformer3DModel``.
    """
    if type(transformer) is not WanTransformer3DModel:
        raise ValueError(f"the transformer is {type(transformer).__name__}, and LongLive 2 is made of {WAN_CLASS}")
    transformer.__class__ = LongLive2Transformer3DModel
    return transformer
