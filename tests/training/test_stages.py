"""Tokens, batches, pace and states: what training sees is what the pipeline does, and a resumed run goes on."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from training import dataset, flow_stage, text_stage, vae_stage
from training.compiling import Compiled
from training.curves import write_curve
from training.data import Drawings, batches
from training.dataset import prepared
from training.described import CAPTIONS_EACH, draw_described, draw_scenes
from training.folders import Run, replacing
from training.geometry import (
    SMOKE,
    build_scheduler,
    build_text_encoder,
    build_transformer,
    build_vae,
    image_ids,
    pack,
)
from training.optimizers import Optimizer
from training.pace import Pace
from training.progress import Progress
from training.state import CurvePoint, DivergedError, StageState
from training.subsets import is_simple
from training.tokens import PREFIX, Template, build_tokenizer, drawn_positions, embed_prompts, padded_ids, text_ids

CPU = torch.device("cpu")
TEXTS = ['a red letter "A" above a blue square', "", "a red panda"]


@pytest.fixture(scope="module")
def pipe() -> Any:
    from diffusers import LongCatImagePipeline

    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    return LongCatImagePipeline(
        scheduler=build_scheduler(),
        vae=build_vae(SMOKE).eval(),
        text_encoder=build_text_encoder(SMOKE, tokenizer).eval(),
        tokenizer=tokenizer,
        text_processor=None,
        transformer=build_transformer(SMOKE).eval(),
    )


@torch.no_grad()
@pytest.mark.parametrize("padding", [None, 16], ids=["all tokens", "some padding"])
def test_prompts_are_embedded_as_the_pipeline_does(pipe: Any, padding: int | None) -> None:
    assert PREFIX == pipe.prompt_template_encode_prefix
    positions = drawn_positions(padding, 1, CPU)
    expected, ids = pipe.encode_prompt(TEXTS)
    template = Template.of(pipe.tokenizer, CPU)
    found = embed_prompts(pipe.text_encoder, padded_ids(pipe.tokenizer, TEXTS), positions, template)
    torch.testing.assert_close(found, expected[:, positions], rtol=1e-4, atol=1e-5)
    assert torch.equal(ids[positions], text_ids(positions))


def test_known_words_are_one_token_each(pipe: Any) -> None:
    assert ["a", "Ġred", "Ġcircle"] == pipe.tokenizer.tokenize("a red circle")


@torch.no_grad()
def test_latents_are_packed_and_placed_as_the_pipeline_does(pipe: Any) -> None:
    latents = torch.randn(2, 16, 8, 8)
    _, ids = pipe.prepare_latents(2, 16, 64, 64, torch.float32, CPU, None)
    assert torch.equal(pipe._pack_latents(latents, 2, 16, 8, 8), pack(latents))
    assert torch.equal(ids, image_ids(SMOKE, CPU))


def test_a_picture_does_not_reach_the_text_encoder(pipe: Any) -> None:
    tower = pipe.text_encoder.model.visual
    assert not any(parameter.any() for parameter in tower.merger.mlp[-1].parameters())


def small_set(pipe: Any) -> flow_stage.LatentSet:
    described = draw_described(1, 8, 1)
    drawings = Drawings.of([item.scene for item in described], CPU)
    ids = text_stage.Prompts.of(described, pipe.tokenizer, CPU).ids
    return flow_stage.LatentSet.encode(pipe.vae, drawings, ids, 64)


def task_of(pipe: Any) -> flow_stage.Task:
    return flow_stage.Task(Template.of(pipe.tokenizer, CPU), SMOKE, 0.9)


def trained(pipe: Any, data: flow_stage.LatentSet, steps: int, folder: Path, *, in_runs: int) -> Any:
    """The transformer's state after ``steps``, in one or more runs that resume each other."""
    settings = flow_stage.FlowSettings(batch=2, log_every=1, full_text_from=2.0)
    for run in range(in_runs):
        torch.manual_seed(0)
        transformer = build_transformer(SMOKE)
        text_encoder = build_text_encoder(SMOKE, pipe.tokenizer)
        state = flow_stage.new_state(transformer, text_encoder, settings, CPU)
        pace = Pace(1e9, 1e9, steps, stop_at_step=steps * (run + 1) // in_runs)
        if run:
            state.load(folder / "state.pt", pace, CPU)
        flow_stage.train_flow(state, data, task_of(pipe), pace, settings, save=lambda: None)
        state.save(folder / "state.pt", pace)
    return state


def test_a_resumed_stage_ends_where_an_unbroken_one_does(pipe: Any, tmp_path: Path) -> None:
    data = small_set(pipe)
    whole = trained(pipe, data, 2, tmp_path, in_runs=1)
    resumed = trained(pipe, data, 2, tmp_path, in_runs=2)
    assert 2 == len(whole.curve)
    for name, module in whole.modules.items():
        for key, value in module.state_dict().items():
            assert torch.equal(value, resumed.modules[name].state_dict()[key]), (name, key)
    assert [point.losses for point in whole.curve] == [point.losses for point in resumed.curve]


def test_the_velocity_is_noise_minus_latents(pipe: Any) -> None:
    """A transformer that says nothing but zero is wrong by the whole velocity."""
    data = small_set(pipe)
    batch = flow_stage.draw_batch(data, torch.arange(4), 0, 0.9, flow_stage.FlowSettings(), full_text=True)
    template = Template.of(pipe.tokenizer, CPU)
    losses = flow_stage.flow_losses(build_transformer(SMOKE), pipe.text_encoder, batch, template, SMOKE)
    torch.testing.assert_close(losses, (batch.noise - batch.latents).square().mean(dim=(1, 2)))


@torch.no_grad()
def test_the_forward_is_the_transformers_own(pipe: Any) -> None:
    transformer = build_transformer(SMOKE)
    for parameter in transformer.parameters():
        parameter.normal_(0, 0.05, generator=torch.Generator().manual_seed(0))
    noisy, embeds, sigmas = torch.randn(2, 16, 64), torch.randn(2, 20, 64), torch.tensor([0.3, 0.9])
    places = text_ids(torch.arange(20))
    expected = transformer(
        hidden_states=noisy,
        timestep=sigmas,
        encoder_hidden_states=embeds,
        txt_ids=places,
        img_ids=image_ids(SMOKE, CPU),
        return_dict=False,
    )[0]
    found = flow_stage.predict_velocity(transformer, noisy, sigmas, embeds, torch.cat([places, image_ids(SMOKE, CPU)]))
    assert torch.equal(expected, found)


def test_sigmas_lie_round_the_schedulers_shift() -> None:
    sigmas = flow_stage.draw_sigmas(4000, 0.9, 1.0, torch.Generator().manual_seed(0))
    normal = torch.logit(sigmas[torch.arange(4000) % 8 != 0])
    assert abs(normal.mean() - 0.9) < 0.06
    assert abs(normal.std() - 1.0) < 0.06


def test_every_caption_has_an_answer_to_each_question() -> None:
    sizes = [size for _, size in text_stage.questions()]
    for item in draw_described(3, 50, 1):
        for caption in item.captions:
            found = text_stage.answers(caption.claims)
            assert len(sizes) == len(found)
            assert all(answer == text_stage.UNSAID or answer < size for answer, size in zip(found, sizes, strict=True))


def test_latents_have_mean_0_and_spread_1_after_measuring(pipe: Any) -> None:
    drawings = Drawings.of([item.scene for item in draw_described(2, 8, 1)], CPU)
    scale, shift = vae_stage.measure_latents(pipe.vae, drawings, 64, 4)
    with torch.no_grad():
        latents = pipe.vae.encode(drawings.render(torch.arange(8), 64)).latent_dist.mode()
    normal = (latents - shift) * scale
    assert abs(normal.mean()) < 1e-4
    assert abs(normal.std() - 1) < 1e-3


def test_epochs_hold_every_number_once() -> None:
    stream = batches(6, 2, 1, 0, CPU)
    epoch = torch.cat([next(stream) for _ in range(3)])
    assert list(range(6)) == sorted(epoch.tolist())
    resumed = batches(6, 2, 1, 2, CPU)
    assert torch.equal(epoch[4:], next(resumed))


@pytest.mark.parametrize(("step", "rate"), [(0, 0.5), (2, 1.0), (50, 0.51), (100, 0.02)])
def test_the_rate_rises_shortly_and_falls_like_a_cosine(step: int, rate: float) -> None:
    assert rate == pytest.approx(Pace(1.0, 1.0, 100, step=step).rate(1.0), abs=0.01)


@pytest.mark.parametrize("began_at", [0, 5000], ids=["a fresh stage", "weights that came back"])
def test_a_new_optimizer_warms_up_however_long_data_and_compiling_took(began_at: int) -> None:
    pace = Pace(1000.0, 500.0, step=began_at, spent_before_s=100.0, optimizer_began_at=began_at)
    assert pace.rate(1.0) < 0.01
    pace.step += 200
    assert 0.9 < pace.rate(1.0)


def test_full_text_does_not_begin_in_the_last_seconds_of_a_run_that_others_follow() -> None:
    settings = flow_stage.FlowSettings()
    assert not flow_stage.begins_full_text(Pace(1000.0, 50.0, spent_before_s=800.0), settings)
    assert flow_stage.begins_full_text(Pace(1000.0, 300.0, spent_before_s=800.0), settings)
    assert flow_stage.begins_full_text(Pace(830.0, 50.0, spent_before_s=800.0), settings)


def test_a_stage_whose_loss_is_no_number_stops_and_keeps_the_last_good_state(pipe: Any, tmp_path: Path) -> None:
    data = small_set(pipe)
    good = trained(pipe, data, 1, tmp_path, in_runs=1)
    kept = (tmp_path / "state.pt").read_bytes()
    torch.nn.init.constant_(good.modules["transformer"].proj_out.bias, math.nan)
    pace = Pace(1e9, 1e9, 9, step=1)
    settings = flow_stage.FlowSettings(batch=2, log_every=1)
    with pytest.raises(DivergedError, match="at step 1 loss is nan"):
        flow_stage.train_flow(good, data, task_of(pipe), pace, settings, save=lambda: None)
    with pytest.raises(DivergedError, match="are no numbers"):
        good.save(tmp_path / "state.pt", pace)
    assert kept == (tmp_path / "state.pt").read_bytes()


class OneBlock(torch.nn.Module):
    """A transformer of one block, 0 at first, that "compiles" to what ``compiled(block, x)`` does."""

    def __init__(self, compiled: Callable[[torch.nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.transformer_blocks = torch.nn.ModuleList([torch.nn.Linear(2, 2)])
        self.single_transformer_blocks = torch.nn.ModuleList()
        self._compiled = compiled
        torch.nn.init.zeros_(self.transformer_blocks[0].weight)

    def compile_repeated_blocks(self, dynamic: bool, options: dict[str, bool]) -> None:
        assert (False, {"triton.mix_order_reduction": False}) == (dynamic, options)
        block = self.transformer_blocks[0]
        block._compiled_call_impl = lambda x: self._compiled(block, x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.transformer_blocks[0](x)
        return y


def compiled_rehearsal(model: OneBlock) -> tuple[Compiled, list[bool]]:
    """What compiles ``model``, and which rehearsals it ran."""
    state = StageState({"transformer": model}, {}, Optimizer(torch.optim.SGD(model.parameters(), lr=1.0)))
    calls: list[bool] = []

    def rehearse(full_text: bool) -> torch.Tensor:
        calls.append(full_text)
        return model(torch.tensor([[1.0, 2.0]])).square().sum()

    return Compiled(model, state, rehearse), calls


def eagerly(block: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, block.weight, block.bias)


def test_a_compiler_that_fails_is_said_loudly_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*_: Any) -> torch.Tensor:
        raise OSError("no C compiler")

    model = OneBlock(broken)
    compiled, calls = compiled_rehearsal(model)
    compiled(False)
    compiled(True)
    assert "NOT COMPILED, SLOWER: OSError: no C compiler" in capsys.readouterr().err
    assert [False] == calls
    assert (1, 2) == tuple(model(torch.ones(1, 2)).shape)


def test_compiled_blocks_with_eagers_gradients_stay_and_no_weight_changes(capsys: pytest.CaptureFixture[str]) -> None:
    model = OneBlock(lambda block, x: eagerly(block, x) * (1 + 2**-10))
    before = [weight.detach().clone() for weight in model.parameters()]
    compiled, calls = compiled_rehearsal(model)
    compiled(False)
    compiled(True)
    assert [False, False, True, True] == calls
    assert capsys.readouterr().err.count("the gradient of transformer.transformer_blocks.0.") == 2
    assert compiled.is_on
    assert model.transformer_blocks[0]._compiled_call_impl is not None
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize("factor", [0.0, math.nan, 1e30], ids=["unwritten", "no number", "garbage"])
def test_a_compiled_gradient_that_is_not_eagers_is_said_and_left_out(
    factor: float, capsys: pytest.CaptureFixture[str]
) -> None:
    class Wrong(torch.autograd.Function):
        """The bias as it is, and another gradient."""

        @staticmethod
        def forward(_context: Any, bias: torch.Tensor) -> torch.Tensor:
            return bias.clone()

        @staticmethod
        def backward(_context: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * factor

    model = OneBlock(lambda block, x: torch.nn.functional.linear(x, block.weight, Wrong.apply(block.bias)))
    compiled, _ = compiled_rehearsal(model)
    compiled(False)
    said = capsys.readouterr().err
    assert "NOT COMPILED, SLOWER: GradientError: the gradient of transformer.transformer_blocks.0.bias is" in said
    assert not compiled.is_on
    assert model.transformer_blocks[0]._compiled_call_impl is None


def test_eager_gradients_that_are_no_numbers_end_the_stage() -> None:
    model = OneBlock(eagerly)
    compiled, _ = compiled_rehearsal(model)
    torch.nn.init.constant_(model.transformer_blocks[0].bias, math.nan)
    with pytest.raises(DivergedError, match=r"own gradient of transformer\.transformer_blocks\.0\.weight and 1"):
        compiled(False)


def test_each_pictures_latents_are_disturbed_by_another_share_of_their_spread() -> None:
    latents = 3.0 * torch.randn(64, 16, 8, 8, generator=torch.Generator().manual_seed(1))
    noise = vae_stage.disturbance(latents, 0.5, torch.Generator().manual_seed(2))
    shares = noise.std(dim=(1, 2, 3)) / latents.std()
    assert 0.45 < shares.max() < 0.55
    assert shares.min() < 0.05


def test_a_line_of_progress_tells_the_rate_since_the_line_before(capsys: pytest.CaptureFixture[str]) -> None:
    progress, pace = Progress("text", 10, every_s=0.0), Pace(100.0, 100.0)
    progress.tell(pace, {"loss": 2.0})
    pace.step = 50
    progress.tell(pace, {"loss": 1.0})
    first, second = capsys.readouterr().err.splitlines()
    assert "samples/s" not in first
    assert "step 50" in second and "samples/s; loss 1.0000" in second


def test_renders_that_are_kept_are_those_that_are_drawn() -> None:
    drawings = Drawings.of([item.scene for item in draw_described(2, 6, 1)], CPU)
    chosen = torch.tensor([4, 1])
    kept = vae_stage.Renders(drawings, 64)(chosen)
    assert (kept - drawings.render(chosen, 64)).abs().max() < 1.01 / 255


def test_a_simple_scene_is_one_plain_thing_of_few() -> None:
    scenes = [item.scene for item in draw_described(1, 4, 1, subset="simple")]
    assert all(is_simple(scene) and not scene.is_held_out for scene in scenes)


def test_curves_are_written_as_json_and_svg(tmp_path: Path) -> None:
    write_curve(tmp_path, "vae", [CurvePoint(0, 0.1, 1e-3, {"loss": 1.0}), CurvePoint(10, 0.9, 1e-3, {"loss": 0.1})])
    assert [0, 10] == [row["step"] for row in json.loads((tmp_path / "vae-curve.json").read_text())]
    assert "polyline" in (tmp_path / "vae-curve.svg").read_text()


def options_of(run: Path, scenes: int, **others: Any) -> argparse.Namespace:
    return argparse.Namespace(run=run, scenes=scenes, data_seed=1, subset="all", workers=1, **others)


def test_data_that_was_drawn_is_read_and_fewer_scenes_are_its_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = prepared(Run(tmp_path), options_of(tmp_path, 6), CPU)
    described = draw_described(1, 6, 1)
    assert torch.equal(drawn.drawings.things, Drawings.of([item.scene for item in described], CPU).things)
    assert torch.equal(drawn.prompts.ids, text_stage.Prompts.of(described, build_tokenizer(), CPU).ids)
    monkeypatch.setattr("training.dataset.draw_described", None)  # nothing is drawn again
    fewer = prepared(Run(tmp_path), options_of(tmp_path, 4), CPU)
    assert (4, 4 * CAPTIONS_EACH) == (len(fewer.drawings), len(fewer.prompts.answers))
    assert torch.equal(fewer.prompts.ids, drawn.prompts.ids[: 4 * CAPTIONS_EACH])


def test_more_scenes_than_were_kept_are_drawn_anew(tmp_path: Path) -> None:
    few = prepared(Run(tmp_path), options_of(tmp_path, 2), CPU)
    more = prepared(Run(tmp_path), options_of(tmp_path, 5), CPU)
    assert torch.equal(few.drawings.things, more.drawings.things[:2])
    assert 5 == len(prepared(Run(tmp_path), options_of(tmp_path, 5), CPU).drawings)


def test_data_of_other_code_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(Run(tmp_path), options_of(tmp_path, 2), CPU)
    sources = tmp_path / "sources"
    sources.mkdir()
    for name in dataset.MADE_BY:
        (sources / f"{name}.py").write_bytes((Path(dataset.__file__).parent / f"{name}.py").read_bytes())
    monkeypatch.setattr(dataset, "__file__", str(sources / "dataset.py"))
    prepared(Run(tmp_path), options_of(tmp_path, 2), CPU)
    assert 1 == len(list((tmp_path / "data").glob("*.pt")))  # the same code: the same file
    with (sources / "captions.py").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    prepared(Run(tmp_path), options_of(tmp_path, 2), CPU)
    assert 2 == len(list((tmp_path / "data").glob("*.pt")))


def test_scenes_alone_are_those_that_are_described() -> None:
    assert draw_scenes(4, 7, 1) == [item.scene for item in draw_described(4, 7, 1)]


def test_a_folder_is_replaced_whole_or_stays(tmp_path: Path) -> None:
    folder = tmp_path / "vae"
    with replacing(folder) as new:
        (new / "a").write_text("1")
    with pytest.raises(OSError, match="full"), replacing(folder) as new:
        (new / "b").write_text("2")
        raise OSError("the disk is full")
    assert ["a"] == [path.name for path in folder.iterdir()]
    with replacing(folder) as new:
        (new / "c").write_text("3")
    assert ["c"] == [path.name for path in folder.iterdir()]
    assert ["vae"] == [path.name for path in tmp_path.iterdir()]
