"""Scenes, captions, renderer and checker: what is drawn is what is said, and the checker knows."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch
from scipy import ndimage

from training import checker_validation
from training.captions import Claims, ThingClaim, describe
from training.checker import check, faults_of, look, met_by_overlap
from training.checker_validation import held_out_renders, wrong_claims
from training.described import draw_described
from training.edits import draw_edit
from training.intervals import share_with_interval
from training.rendering import STROKES, render, scene_arrays
from training.scenes import Scene, Thing, draw_scene
from training.vocabulary import COLOURS, LETTERS


def thing(shape: str, colour: str, x: float, y: float, radius: float = 40.0, pattern: str = "plain") -> Thing:
    return Thing(shape, colour, pattern, "medium", x, y, radius, 0.0, COLOURS[colour])


def picture_of(scene: Scene) -> np.ndarray:
    backgrounds, things = scene_arrays([scene])
    return ((render(backgrounds, things, 256)[0] + 1) * 127.5).round().byte().permute(1, 2, 0).numpy()


CIRCLE_ABOVE_SQUARE = Scene(
    "white", COLOURS["white"], (thing("circle", "red", 128, 60), thing("square", "blue", 130, 180)), "above"
)


def test_a_scene_depends_on_seed_and_index_alone() -> None:
    assert draw_scene(3, 17, held_out=False) == draw_scene(3, 17, held_out=False)
    assert draw_scene(3, 17, held_out=False) != draw_scene(4, 17, held_out=False)


def test_training_never_sees_a_held_out_combination() -> None:
    trained = {draw_scene(1, index, held_out=False).combination for index in range(400)}
    unseen = {draw_scene(1, index, held_out=True).combination for index in range(400)}
    assert set() == trained & unseen


def test_a_scene_does_not_depend_on_how_many_are_drawn() -> None:
    assert draw_described(5, 12, 1) == draw_described(5, 600, 1)[:12]


def test_every_thing_lies_inside_the_picture() -> None:
    things = [thing for index in range(400) for thing in draw_scene(2, index, held_out=False).things]
    assert [] == [
        item for item in things if min(item.x, item.y) < item.radius or max(item.x, item.y) > 256 - item.radius
    ]


def test_what_a_caption_leaves_out_is_ordinary() -> None:
    unsaid = {"size": 0, "place": 0, "background": 0, "relation": 0}
    for index in range(600):
        scene = draw_scene(6, index, held_out=False)
        claims = describe(scene, Random(index)).claims
        for claim, item in zip(claims.things, scene.things, strict=True):
            if claim.size is None and scene.relation != "inside":
                unsaid["size"] += 1
                assert "medium" == item.size
        if scene.relation == "alone" and claims.things[0].place is None:
            unsaid["place"] += 1
            assert "center" == scene.things[0].place
        if claims.background is None:
            unsaid["background"] += 1
            assert "white" == scene.background
        if claims.relation == "any":
            unsaid["relation"] += 1
            assert scene.things[0].x < scene.things[1].x
    assert min(unsaid.values()) > 20


def test_groups_stand_in_the_middle() -> None:
    scenes = [draw_scene(7, index, held_out=False) for index in range(300)]
    for scene in scenes:
        if scene.relation == "alone":
            continue
        for axis in ("x", "y"):
            low = min(getattr(item, axis) - item.radius for item in scene.things)
            high = max(getattr(item, axis) + item.radius for item in scene.things)
            assert 112 <= (low + high) / 2 <= 144


def test_letters_have_strokes() -> None:
    assert set(LETTERS) == set(STROKES)


def test_pixels_far_from_edges_have_the_colours_asked_for() -> None:
    picture = picture_of(CIRCLE_ABOVE_SQUARE)
    assert [COLOURS["white"], COLOURS["red"], COLOURS["blue"]] == [
        tuple(picture[row, column]) for row, column in ((5, 5), (60, 128), (180, 130))
    ]


def test_half_the_side_shows_the_same_picture() -> None:
    backgrounds, things = scene_arrays([CIRCLE_ABOVE_SQUARE])
    whole, half = (render(backgrounds, things, side) for side in (256, 128))
    assert torch.nn.functional.avg_pool2d(whole, 2).sub(half).abs().max() < 0.6
    assert torch.nn.functional.avg_pool2d(whole, 2).sub(half).abs().mean() < 0.004


CLAIM = ThingClaim("circle", "red", "plain", None, None), ThingClaim("square", "blue", "plain", None, None)


@pytest.mark.parametrize(
    ("claims", "faults"),
    [
        pytest.param(Claims(CLAIM, "above", "white"), [], id="true"),
        pytest.param(Claims(CLAIM[::-1], "any", None), [], id="open order"),
        pytest.param(Claims(CLAIM[::-1], "above", None), ["the things are not above"], id="wrong order"),
        pytest.param(Claims(CLAIM, "left", None), ["the things are not left"], id="wrong relation"),
        pytest.param(Claims(CLAIM, "above", "gray"), ["the background is white, not gray"], id="wrong background"),
        pytest.param(Claims(CLAIM[:1], "alone", None), ["it shows 2 things, not 1"], id="one too many"),
        pytest.param(
            Claims((ThingClaim("star", "red", "plain", None, None), CLAIM[1]), "above", None),
            ["a star is a circle"],
            id="wrong shape",
        ),
        pytest.param(
            Claims((ThingClaim("circle", "red", "striped", "large", "bottom"), CLAIM[1]), "above", None),
            [
                "the red circle has pattern plain, not striped",
                "the red circle has size medium, not large",
                "the red circle has place top, not bottom",
            ],
            id="everything else",
        ),
    ],
)
def test_the_checker_says_what_is_wrong(claims: Claims, faults: list[str]) -> None:
    assert faults == check(picture_of(CIRCLE_ABOVE_SQUARE), claims)


@pytest.mark.parametrize("pattern", ["striped", "dotted", "checked"])
def test_the_checker_sees_patterns(pattern: str) -> None:
    scene = Scene("yellow", COLOURS["yellow"], (thing("square", "purple", 120, 130, 42, pattern),), "alone")
    seen = look(picture_of(scene)).things[0]
    assert (pattern, ("purple",)) == (seen.pattern, seen.colours)


@pytest.mark.parametrize("pattern", ["striped", "dotted", "checked"])
@pytest.mark.parametrize("shape", ["circle", "square", "triangle"])
@pytest.mark.parametrize("radius", [38.0, 57.0])
def test_the_checker_sees_patterns_that_a_decoder_left_a_little_soft(pattern: str, shape: str, radius: float) -> None:
    scene = Scene("yellow", COLOURS["yellow"], (thing(shape, "purple", 120, 130, radius, pattern),), "alone")
    soft = ndimage.gaussian_filter(picture_of(scene).astype(np.float32), (1, 1, 0)).round().astype(np.uint8)
    assert pattern == look(soft).things[0].pattern


def test_the_edge_between_a_thing_and_what_lies_in_it_is_no_background() -> None:
    for index in range(600):
        scene = draw_scene(8, index, held_out=False)
        if scene.relation == "inside":
            first, second, behind = (
                COLOURS[name] for name in (*(item.colour for item in scene.things), scene.background)
            )
            assert 40 < np.linalg.norm((np.array(first) + second) / 2 - behind)


def test_a_stricter_checker_names_fewer_lumps() -> None:
    picture = picture_of(CIRCLE_ABOVE_SQUARE)
    lump = picture.copy()
    lump[60:116, 108:148] = COLOURS["red"]  # a stalk below the circle, wide enough to spoil its outline
    claims = Claims(CLAIM, "above", "white")
    assert {"0.72": 2, "0.76": 2, "0.80": 1, "0.84": 1} == met_by_overlap([picture, lump], [claims, claims])
    assert ["a circle is a blot"] == check(lump, claims, 0.80)


def test_training_sees_more_stars_than_what_is_held_out() -> None:
    stars = [
        sum(
            "star" in {thing.shape for thing in draw_scene(12, index, held_out=held_out).things}
            for index in range(2000)
        )
        for held_out in (False, True)
    ]
    assert 1.15 < stars[0] / stars[1] < 1.6, stars


def test_noise_shows_nothing() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (256, 256, 3), dtype=np.uint8)
    assert [] != check(noise, Claims(CLAIM[:1], "alone", None))


def test_true_renders_pass_and_wrong_words_do_not() -> None:
    """The whole validation, with intervals: ``python -m training.checker_validation``."""
    accepted, slipped = 0, []
    for number, (_, caption, picture) in enumerate(held_out_renders(10, seed=11)):
        seen = look(picture)
        accepted += not faults_of(seen, caption.claims)
        for kind, claims in wrong_claims(caption.claims, Random(number)):
            if not faults_of(seen, claims):
                slipped.append((caption.text, kind))
    assert (10, []) == (accepted, slipped)


@pytest.mark.parametrize(
    "arguments", [("--pictures", "0"), ("--least-overlap", "0.9"), ("--blur", "17"), ("--blur", "nan")], ids=" ".join
)
def test_the_validation_of_the_checker_refuses_what_means_nothing(
    arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        checker_validation.main(arguments=list(arguments))
    assert 2 == stopped.value.code
    assert arguments[1] in capsys.readouterr().err


def test_a_stricter_validation_of_softer_pictures_accepts_fewer() -> None:
    said: list[str] = []
    strict = ["--pictures", "6", "--least-overlap", "0.84", "--blur", "4"]
    for arguments in (["--pictures", "6"], strict):
        checker_validation.main(said.append, arguments)
    accepted = [text for text in said if text.startswith("accepts")]
    assert "accepts true renders: 100.0 % (6 of 6)" in accepted[0] and "(6 of 6)" not in accepted[1]


def test_captions_say_what_they_claim() -> None:
    for index in range(200):
        caption = describe(draw_scene(6, index, held_out=False), Random(index))
        for claim in caption.claims.things:
            said = (claim.shape, f'"{claim.shape}"', "disc", "plus sign")
            assert any(word in caption.text for word in said), caption.text
            assert claim.colour.replace("gray", "gr") in caption.text.lower(), caption.text


def test_the_interval_is_wilsons() -> None:
    assert "85.0 % (170 of 200), 95 % interval [79.4, 89.3]" == str(share_with_interval(170, 200))


def test_an_edit_changes_what_it_says_and_nothing_else() -> None:
    edits = [draw_edit(9, index, held_out=True) for index in range(120)]
    assert {"colour", "background", "removal", "pattern", "shape"} == {edit.kind for edit in edits}
    begun = {"make", "change", "turn", "paint", "remove", "take", "replace"}
    assert begun == {edit.instruction.split()[0] for edit in edits}
    for edit in edits:
        assert edit.before.is_held_out and edit.after.is_held_out
        shared = set(edit.before.things) & set(edit.after.things)
        assert len(edit.before.things) - 1 <= len(shared), edit
    pictures = [picture_of(edit.after) for edit in edits[:4]]
    assert [[]] * 4 == [check(picture, edit.claims) for picture, edit in zip(pictures, edits[:4], strict=True)]
    assert all(check(picture_of(edit.before), edit.claims) for edit in edits[:4])
