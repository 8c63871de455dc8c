"""Captions: what is said of a scene, in varied wording, with the claims that a picture must then meet. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from training.scenes import ORDINARY_BACKGROUND, ORDINARY_PLACE, ORDINARY_SIZE, Scene, Thing
from training.vocabulary import LETTERS

SIZE_WORDS = {
    "small": ("small", "little", "tiny"),
    "medium": ("medium", "medium-sized"),
    "large": ("large", "big", "huge"),
}
PATTERN_WORDS = {
    "striped": ("striped", "stripy"),
    "dotted": ("dotted", "spotted"),
    "checked": ("checked", "checkered"),
}
PATTERN_ENDINGS = {"striped": "with stripes", "dotted": "with dots", "checked": "with checks"}
SHAPE_WORDS = {
    "circle": ("circle", "disc"),
    "square": ("square",),
    "triangle": ("triangle",),
    "diamond": ("diamond",),
    "star": ("star",),
    "ring": ("ring",),
    "cross": ("cross", "plus sign"),
}
COLOUR_WORDS = {"gray": ("gray", "grey")}
PLACE_PHRASES = {
    "top left": ("in the top left", "in the upper left corner", "at the top left"),
    "top": ("at the top", "in the upper middle"),
    "top right": ("in the top right", "in the upper right corner", "at the top right"),
    "left": ("on the left", "at the left side"),
    "center": ("in the center", "in the middle"),
    "right": ("on the right", "at the right side"),
    "bottom left": ("in the bottom left", "in the lower left corner", "at the bottom left"),
    "bottom": ("at the bottom", "in the lower middle"),
    "bottom right": ("in the bottom right", "in the lower right corner", "at the bottom right"),
}
OPENINGS = ("", "", "", "a picture of ", "an image of ", "a drawing of ", "there is ")
BACKGROUND_PHRASES = (
    " on {0} background",
    " on {0} background",
    " against {0} background",
    " on {1}",
    ", {1} background",
)
"""Of a background: its colour with an article, and alone."""


@dataclass(frozen=True)
class ThingClaim:
    """What a caption says of one thing; ``size`` and ``place`` are None where it does not say."""

    shape: str
    colour: str
    pattern: str
    size: str | None
    place: str | None


@dataclass(frozen=True)
class Claims:
    """What a picture must show: exactly these things. ``relation`` is ``any`` where none is said."""

    things: tuple[ThingClaim, ...]
    relation: str
    background: str | None


@dataclass(frozen=True)
class Caption:
    """A prompt and what it claims."""

    text: str
    claims: Claims


def describe(scene: Scene, random: Random) -> Caption:
    """One of the many captions that are true of ``scene``; what is not ordinary is always said."""
    says_sizes = random.random() < 0.3
    claims, phrases = [], []
    for thing in scene.things:
        is_clear = thing.size == ORDINARY_SIZE or scene.relation == "inside"
        size = None if is_clear and not (says_sizes and random.random() < 0.8) else thing.size
        phrases.append(_thing_phrase(thing, size, random))
        claims.append(ThingClaim(thing.shape, thing.colour, thing.pattern, size, None))
    if scene.relation == "alone":
        body, place = _alone(scene.things[0], phrases[0], random)
        claims[0] = ThingClaim(claims[0].shape, claims[0].colour, claims[0].pattern, claims[0].size, place)
        relation = "alone"
    elif len(phrases) == 2:
        body, relation = _pair(scene.relation, phrases[0], phrases[1], random)
    else:
        body, relation = _triple(scene.relation, phrases, random)
    is_white = scene.background == ORDINARY_BACKGROUND
    background = None if is_white and random.random() < 0.4 else scene.background
    opening = "" if body.startswith("from") else random.choice(OPENINGS)
    text = opening + body + (_background_phrase(scene.background, random) if background else "")
    return Caption(_finished(text, random), Claims(tuple(claims), relation, background))


def _background_phrase(colour: str, random: Random) -> str:
    word = _colour_word(colour, random)
    return random.choice(BACKGROUND_PHRASES).format(_with_article(word), word)


def _finished(text: str, random: Random) -> str:
    if random.random() < 0.3:
        text = text[0].upper() + text[1:]
    return text + ("." if random.random() < 0.3 else "")


def _colour_word(colour: str, random: Random) -> str:
    return random.choice(COLOUR_WORDS.get(colour, (colour,)))


def _thing_phrase(thing: Thing, size: str | None, random: Random) -> str:
    words = [random.choice(SIZE_WORDS[size])] if size else []
    ending = ""
    if thing.pattern != "plain":
        if random.random() < 0.6:
            words.append(random.choice(PATTERN_WORDS[thing.pattern]))
        else:
            ending = f" {PATTERN_ENDINGS[thing.pattern]}"
    words.append(_colour_word(thing.colour, random))
    if thing.shape in LETTERS:
        words.append(f'letter "{thing.shape}"')
    else:
        words.append(random.choice(SHAPE_WORDS[thing.shape]))
    phrase = " ".join(words)
    return _with_article(phrase) + ending


def _with_article(phrase: str) -> str:
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"


def _alone(thing: Thing, phrase: str, random: Random) -> tuple[str, str | None]:
    if thing.place == ORDINARY_PLACE and random.random() < 0.7:
        return phrase, None
    return f"{phrase} {random.choice(PLACE_PHRASES[thing.place])}", thing.place


def _pair(relation: str, first: str, second: str, random: Random) -> tuple[str, str]:
    """The text, and the relation of the two that it states (``any``: none)."""
    if relation == "inside":
        forms = ("{a} inside {b}", "{b} with {a} inside", "{a} in {b}", "{b} around {a}")
        return random.choice(forms).format(a=first, b=second), relation
    if relation == "left" and random.random() < 0.3:
        return f"{first} and {second}", "any"
    by_relation = {
        "above": ("{a} above {b}", "{a} over {b}", "{b} below {a}", "{b} under {a}", "{a} on top of {b}"),
        "left": ("{a} left of {b}", "{a} to the left of {b}", "{b} right of {a}", "{b} to the right of {a}"),
    }
    return random.choice(by_relation[relation]).format(a=first, b=second), relation


def _triple(relation: str, phrases: list[str], random: Random) -> tuple[str, str]:
    first, second, third = phrases
    forms = {
        "row": (
            "from left to right: {a}, {b} and {c}",
            "{a}, {b} and {c} from left to right",
            "{b} between {a} on the left and {c} on the right",
        ),
        "column": (
            "from top to bottom: {a}, {b} and {c}",
            "{a}, {b} and {c} from top to bottom",
            "{b} between {a} at the top and {c} at the bottom",
        ),
    }[relation]
    return random.choice(forms).format(a=first, b=second, c=third), relation


def lexicon() -> list[str]:
    """Every word that a caption or an instruction can hold, without its leading space."""
    phrases = [
        *(word for words in SIZE_WORDS.values() for word in words),
        *(word for words in PATTERN_WORDS.values() for word in words),
        *PATTERN_ENDINGS.values(),
        *(word for words in SHAPE_WORDS.values() for word in words),
        *(phrase for phrases in PLACE_PHRASES.values() for phrase in phrases),
        *OPENINGS,
        *(phrase.format("", "") for phrase in BACKGROUND_PHRASES),
        "red orange yellow green cyan blue purple pink brown black white gray grey letter",
        "above over below under on top of left to the left of right inside with around in and between from bottom",
        "make turn change paint remove take away the color to background it add replace",
        "There Make A An From",
    ]
    words = {word.strip(',:."') for phrase in phrases for word in phrase.split()}
    return sorted(word for word in words if word)
