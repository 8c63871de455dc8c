"""Which tokens share a timestep: found without waiting in the loop, checked against eager, given up where unsure."""

import pytest
import torch

from fuseproof.fastpaths import mount
from fuseproof.fastpaths.sites.wan_transformer import timestep_rows
from fuseproof.fastpaths.sites.wan_transformer.timestep_rows import tokens_of
from tests.fastpaths.small_wan import TOKENS, TOKENS_OF_A_FRAME, forwards, prompt, small_pipe, step, timestep_of


@pytest.fixture
def pipe():
    return small_pipe()


def state_of(mounted, site="timestep_rows"):
    return mounted.report()["sites"][site]


def same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


ZERO = torch.tensor([[0.0, -0.0]])
TOKEN_CASES = {
    "one": (torch.full((2, 5), 7.0), ([0], None)),
    "one whole number": (torch.full((1, 5), 7), ([0], None)),
    "one token": (torch.tensor([[3.0]]), ([0], None)),
    "an image first": (torch.tensor([[0.0, 0.0, 9.0, 9.0, 9.0]]), ([0, 4], [0, 0, 1, 1, 1])),
    "by turns": (torch.tensor([[0.0, 9.0, 0.0, 9.0]]), ([0, 3], [0, 1, 0, 1])),
    "three": (torch.tensor([[1.0, 5.0, 5.0, 1.0, 3.0, 3.0]]), ([0, 4, 1], [0, 2, 2, 0, 1, 1])),
    "apart in another sample": (torch.tensor([[1.0, 1.0, 2.0, 2.0], [1.0, 3.0, 3.0, 3.0]]), None),
    "two zeros": (ZERO.expand(1, 2), ([0, 1], [0, 1])),
    "not a number": (torch.full((1, 4), float("nan")), ([0], None)),
    "all different": (torch.arange(6.0).unsqueeze(0), None),
}


@pytest.mark.parametrize("case", TOKEN_CASES)
def test_tokens_are_told_apart_by_the_bits_of_their_timesteps(case):
    timesteps, expected = TOKEN_CASES[case]
    found = tokens_of(timesteps)
    if expected is None:
        assert found is None
        return
    rows = None if found.row_of_token is None else found.row_of_token.tolist()
    assert expected == (found.first.tolist(), rows)
    if rows is not None:
        assert torch.int32 == found.row_of_token.dtype
        assert torch.equal(timesteps, timesteps[:, found.first][:, found.row_of_token])


@pytest.fixture
def host_reads(monkeypatch):
    """How often anything was read from the device to find tokens out."""
    seen, real = [], timestep_rows.tokens_of
    monkeypatch.setattr(
        timestep_rows, "tokens_of", lambda timesteps: (seen.append(timesteps.shape), real(timesteps))[1]
    )
    return seen


@torch.no_grad()
@pytest.mark.parametrize("kind", ["text", "image"])
def test_announced_steps_are_read_once_and_both_branches_share_their_rows(pipe, host_reads, kind):
    timesteps, texts = [timestep_of(kind, seed) for seed in range(3)], (prompt(seed=1), prompt(seed=2))
    latents = step(0)["hidden_states"]

    def loop():
        return [pipe.transformer(latents, one, text).sample for one in timesteps for text in texts]

    eager = loop()
    with mount(pipe) as mounted:
        mounted.announce_steps(timesteps)
        assert same(eager, loop())
        assert [(3, TOKENS)] == host_reads
        assert ("fused", 6, 0) == tuple(state_of(mounted)[key] for key in ("state", "calls_fused", "calls_eager"))
        assert 1 == state_of(mounted)["verified_keys"]


@torch.no_grad()
def test_a_direct_caller_is_answered_after_one_look_a_timestep(pipe, host_reads):
    timesteps = [timestep_of("image", seed) for seed in range(2)]
    eager = [pipe.transformer(step(0)["hidden_states"], one, prompt()).sample for one in timesteps for _ in range(2)]
    with mount(pipe):
        text = prompt()
        fused = [pipe.transformer(step(0)["hidden_states"], one, text).sample for one in timesteps for _ in range(2)]
    assert same(eager, fused)
    assert [(1, TOKENS)] * 2 == host_reads


@torch.no_grad()
@pytest.mark.parametrize("announced", [True, False], ids=["announced", "not-announced"])
def test_a_timestep_that_was_written_to_is_looked_at_again(pipe, announced):
    """The very same tensor: an image's frame becomes a step's, and then another pattern altogether."""
    told, latents, text = timestep_of("text", 0), step(0)["hidden_states"], prompt()
    with mount(pipe) as mounted:
        if announced:
            mounted.announce_steps([told])
        for change in (lambda: None, told[:, :TOKENS_OF_A_FRAME].zero_, lambda: told[:, 1:].sub_(5)):
            change()
            fused = pipe.transformer(latents, told, text).sample
            expected = small_pipe().transformer(latents, told, text).sample
            assert torch.equal(expected, fused)


@torch.no_grad()
def test_steps_of_other_patterns_than_announced_together_are_all_right(pipe):
    kinds, latents, text = ("text", "image", "three"), step(0)["hidden_states"], prompt()
    timesteps = [timestep_of(kind, 0) for kind in kinds]
    eager = [pipe.transformer(latents, one, text).sample for one in timesteps]
    with mount(pipe) as mounted:
        mounted.announce_steps(timesteps)
        assert same(eager, [pipe.transformer(latents, one, text).sample for one in timesteps])
        mounted.announce_steps([])
        mounted.announce_steps([timesteps[0], torch.tensor([3])])
        assert same(eager[:1], [pipe.transformer(latents, timesteps[0], text).sample])


def test_one_timestep_a_sample_is_no_work_and_many_are_declined_with_the_reason(pipe):
    with mount(pipe) as mounted:
        forwards(pipe, 1, kind="sample")
        assert "unreached" == state_of(mounted)["state"]
        forwards(pipe, 1, kind="mixed")
        assert state_of(mounted)["reason"].startswith(timestep_rows.MANY_TIMESTEPS)
        assert "fused" == state_of(mounted, "video_blocks")["state"]


def test_where_few_rows_have_other_bits_all_are_computed_and_the_needed_ones_taken(pipe, monkeypatch):
    """A library may choose another kernel for few rows: then no count below that of the tokens will do."""
    eager, real = forwards(pipe, kind="image"), timestep_rows.TimestepRows._embedded
    counts = []

    def embedded(self, timestep, dtype):
        counts.append(timestep.shape[1])
        found = real(self, timestep, dtype)
        if timestep.shape[1] == TOKENS:
            return found
        return found._replace(projection=torch.nextafter(found.projection, torch.tensor(9.0)))

    monkeypatch.setattr(timestep_rows.TimestepRows, "_embedded", embedded)
    with mount(pipe) as mounted:
        assert all(torch.equal(a, b) for a, b in zip(eager, forwards(pipe, kind="image"), strict=True))
        assert "fused" == state_of(mounted)["state"]
        assert state_of(mounted)["reason"] is None
        counts.clear()
        forwards(pipe, 1, kind="image")
    assert [TOKENS] == counts


def test_where_tokens_of_one_timestep_differ_in_eager_each_keeps_its_own_row(pipe, monkeypatch):
    """A product's result may depend on where a row lies in it; then nothing is shared, and nothing is wrong."""
    linear = pipe.transformer.condition_embedder.time_proj

    def uneven(x):
        out = torch.nn.functional.linear(x, linear.weight, linear.bias)
        if out.ndim == 3 and out.shape[1] == TOKENS:
            out[:, 3] = torch.nextafter(out[:, 3], torch.tensor(9.0))
        return out

    monkeypatch.setattr(type(linear), "forward", lambda self, x: uneven(x) if self is linear else
                        torch.nn.functional.linear(x, self.weight, self.bias))  # fmt: skip
    monkeypatch.setattr("fuseproof.fastpaths.sites.wan_transformer.soundness.foreign_reason", lambda modules: None)
    eager = forwards(pipe, kind="image")
    with mount(pipe) as mounted:
        assert same(eager, forwards(pipe, kind="image"))
        assert state_of(mounted)["reason"].startswith(timestep_rows.UNEQUAL_TOKENS)
        assert "fused" == state_of(mounted, "video_blocks")["state"]


@pytest.mark.parametrize("gate", ["observe", "off"])
@pytest.mark.parametrize("kind", ["text", "image"])
def test_other_gates_keep_the_bits_too(pipe, gate, kind):
    eager = forwards(pipe, kind=kind)
    with mount(pipe, gate=gate) as mounted:
        assert same(eager, forwards(pipe, kind=kind))
        assert {"observe": "observed", "off": "unchecked"}[gate] == state_of(mounted)["state"]


def test_under_inference_mode_every_call_is_right_though_nothing_is_held(pipe):
    eager = forwards(pipe, 2, kind="image")
    with torch.inference_mode(), mount(pipe):
        fused = [pipe.transformer(**step(seed, kind="image"), encoder_hidden_states=prompt()).sample for seed in (0, 1)]
    assert same(eager, fused)
