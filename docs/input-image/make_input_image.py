"""Draws the input image of the built-in editing plans: a tabby cat on a window sill, made of formulas and seeded noise.

``python docs/input-image/make_input_image.py schedules/plans/assets/window-cat.jpg`` writes it again. No photograph, no
model and no picture of anybody else's went into it, so it is ours to ship under the licence of this repository. It is
1264 x 848 pixels, the canvas that LongCat-Image-Edit gives an input of that aspect, and it is meant to be treated like
a photograph: soft gradients, fine texture, a few sharp edges, grain. Another Pillow may encode other bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

WIDTH, HEIGHT = 1264, 848
SEED = 20261129
JPEG_QUALITY = 84
SUPERSAMPLING = 2
Plane = np.ndarray[Any, np.dtype[np.float64]]


def fractal_noise(random: np.random.RandomState, cells: int, octaves: int, stretch: float = 1.0) -> Plane:
    """Smooth noise [HEIGHT, WIDTH] of mean 0 and spread 1; ``cells`` wide at the coarsest, taller by ``stretch``."""
    total = np.zeros((HEIGHT, WIDTH))
    for octave in range(octaves):
        across = cells * 2**octave
        down = max(2, int(across * stretch * HEIGHT / WIDTH))
        grid = Image.fromarray(random.standard_normal((down, across)).astype(np.float32))
        total += np.asarray(grid.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), np.float64) / 2**octave
    centred: Plane = total - total.mean()
    return centred / float(total.std())


def mask(shapes: Sequence[tuple[str, Any]], blur: float = 1.0) -> Plane:
    """Coverage [HEIGHT, WIDTH] in 0..1 of some shapes, each a Pillow drawing method and its coordinates."""
    scale = SUPERSAMPLING
    canvas = Image.new("L", (WIDTH * scale, HEIGHT * scale))
    draw = ImageDraw.Draw(canvas)
    for kind, points in shapes:
        scaled = [(x * scale, y * scale) for x, y in points]
        getattr(draw, kind)(scaled, fill=255)
    small = canvas.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS).filter(ImageFilter.GaussianBlur(blur))
    return np.asarray(small, np.float64) / 255


def strokes(lines: Sequence[Sequence[tuple[float, float]]], width: float, blur: float = 0.8) -> Plane:
    """Coverage of some polylines ``width`` pixels wide."""
    scale = SUPERSAMPLING
    canvas = Image.new("L", (WIDTH * scale, HEIGHT * scale))
    draw = ImageDraw.Draw(canvas)
    for line in lines:
        draw.line([(x * scale, y * scale) for x, y in line], fill=255, width=round(width * scale), joint="curve")
    small = canvas.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS).filter(ImageFilter.GaussianBlur(blur))
    return np.asarray(small, np.float64) / 255


def ellipse(x: float, y: float, across: float, down: float) -> tuple[str, Any]:
    """An axis-parallel ellipse by centre and radii."""
    return "ellipse", [(x - across, y - down), (x + across, y + down)]


class Scene:
    """The picture while it is painted: ``light`` [HEIGHT, WIDTH, 3], linear in 0..1."""

    def __init__(self) -> None:
        self.random = np.random.RandomState(SEED)
        self.down, self.across = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float64)
        self.light = np.zeros((HEIGHT, WIDTH, 3))

    def paint(self, coverage: Plane, colour: Any) -> None:
        """Lay ``colour`` (three numbers, or [HEIGHT, WIDTH, 3]) over the picture."""
        share = coverage[..., None]
        self.light = self.light * (1 - share) + np.asarray(colour) * share

    def tinted(self, colour: Sequence[float], shade: Plane) -> Any:
        """``colour`` darkened or lightened pixel by pixel."""
        return np.asarray(colour) * shade[..., None]


def paint_room(scene: Scene) -> None:
    """A warm wall that falls into shadow to the right, and a wooden sill in front."""
    plaster = 1 + 0.03 * fractal_noise(scene.random, 90, 4)
    fall = 0.95 - 0.6 * (scene.across / WIDTH) ** 1.3
    scene.paint(np.ones((HEIGHT, WIDTH)), scene.tinted((0.50, 0.37, 0.27), plaster * fall))
    sill = mask([("rectangle", [(0, 648), (WIDTH, HEIGHT)])])
    grain = 1 + 0.13 * fractal_noise(scene.random, 5, 5, stretch=22)
    lit = (1.25 - 0.75 * scene.across / WIDTH) * (0.75 + 0.5 * (HEIGHT - scene.down) / 200)
    scene.paint(sill, scene.tinted((0.34, 0.19, 0.10), grain * np.clip(lit, 0.2, 2)))
    scene.paint(mask([("rectangle", [(0, 645), (WIDTH, 653)])]), (0.62, 0.45, 0.30))


def paint_window(scene: Scene) -> None:
    """Evening sky, two ranges of hills, a low sun and the frame around them."""
    pane = mask([("rectangle", [(60, 40), (640, 600)])])
    height = np.clip((scene.down - 40) / 560, 0, 1)[..., None]
    sky = np.array((0.30, 0.50, 0.80)) * (1 - height) + np.array((1.0, 0.74, 0.45)) * height
    clouds = np.clip(fractal_noise(scene.random, 7, 5, stretch=3.0) - 0.35, 0, 2)[..., None]
    scene.paint(pane, np.clip(sky + 0.16 * clouds * np.array((1.0, 0.9, 0.85)), 0, 1.2))
    sun = np.exp(-((scene.across - 225) ** 2 + (scene.down - 372) ** 2) / (2 * 85**2))
    scene.light += (pane * sun)[..., None] * np.array((0.9, 0.62, 0.28))
    for base, swell, colour in ((450, 46, (0.30, 0.36, 0.42)), (515, 34, (0.15, 0.22, 0.15))):
        ridge = base + swell * np.interp(np.arange(WIDTH), np.arange(0, WIDTH + 79, 79), scene.random.randn(17))
        hill = np.clip((scene.down - ridge[None, :]) / 2, 0, 1) * pane
        scene.paint(hill, scene.tinted(colour, 1 + 0.22 * fractal_noise(scene.random, 60, 4)))
    bars = [(40, 20, 660, 44), (40, 596, 660, 628), (40, 20, 66, 628), (634, 20, 660, 628), (340, 20, 360, 628)]
    frame = mask([("rectangle", [(left, top), (right, bottom)]) for left, top, right, bottom in bars])
    shade = 0.80 + 0.10 * fractal_noise(scene.random, 40, 3, stretch=0.3)
    scene.paint(frame, scene.tinted((0.86, 0.82, 0.75), np.clip(shade, 0.4, 1.2)))


def paint_plant(scene: Scene) -> None:
    """A pot with a few leaves on the right of the sill."""
    pot = mask([("polygon", [(1040, 560), (1196, 560), (1172, 706), (1064, 706)])])
    roundness = 1.25 - 1.5 * ((scene.across - 1085) / 150) ** 2
    scene.paint(pot, scene.tinted((0.52, 0.24, 0.15), np.clip(roundness, 0.25, 1.3)))
    for lean, length, tone in ((-120, 235, 0.9), (-62, 300, 1.1), (6, 330, 0.8), (66, 286, 1.0), (118, 210, 0.7)):
        tip, root = (1118 + 1.25 * lean, 560 - length), (1118 + 0.15 * lean, 566)
        middle = (1118 + 0.9 * lean, 560 - 0.55 * length)
        leaf = mask([("polygon", [root, (middle[0] - 26, middle[1]), tip, (middle[0] + 26, middle[1] + 18)])], 1.4)
        veins = 1 + 0.18 * np.sin((scene.across + 0.7 * scene.down) / 5.5)
        scene.paint(leaf, scene.tinted((0.15 * tone, 0.33 * tone, 0.12 * tone), veins))


def fur(scene: Scene, warmth: float) -> Any:
    """Tabby fur: streaked noise, dark stripes, lit from the window on the left."""
    hair = 1 + 0.20 * fractal_noise(scene.random, 170, 3, stretch=0.35)
    waves = scene.down / 21 + 1.6 * fractal_noise(scene.random, 6, 3) + scene.across / 160
    stripes = 0.78 + 0.26 * np.tanh(2.2 * np.sin(waves))
    lit = np.clip(1.55 - (scene.across - 640) / 330, 0.35, 1.6)
    return scene.tinted((0.56 * warmth, 0.36 * warmth, 0.20 * warmth), hair * stripes * lit)


def paint_cat(scene: Scene) -> None:
    """The cat, sitting three-quarters towards us: tail, body, head, face."""
    shadow = mask([ellipse(850, 728, 225, 30)], 16)
    scene.paint(0.75 * shadow, (0.05, 0.03, 0.02))
    tail = [(960, 690), (1010, 716), (1000, 752), (905, 768), (800, 762)]
    scene.paint(strokes([tail], 44, 3), fur(scene, 0.85))
    body = [ellipse(838, 596, 128, 140), ellipse(806, 500, 92, 120), ellipse(868, 656, 128, 80)]
    scene.paint(mask(body, 3), fur(scene, 1.0))
    scene.paint(mask([ellipse(770, 560, 40, 92)], 18), scene.tinted((0.80, 0.70, 0.58), np.ones((HEIGHT, WIDTH))))
    legs = [ellipse(772, 690, 33, 56), ellipse(842, 694, 33, 54)]
    scene.paint(mask(legs, 3), fur(scene, 1.15))
    scene.paint(mask([ellipse(766, 737, 38, 19), ellipse(838, 740, 38, 19)], 3), (0.74, 0.63, 0.50))
    paint_head(scene)


def paint_head(scene: Scene) -> None:
    """Ears, skull, muzzle, eyes, nose and whiskers."""
    ears = [("polygon", [(688, 340), (668, 214), (768, 288)]), ("polygon", [(806, 288), (906, 216), (880, 348)])]
    scene.paint(mask(ears, 2.5), fur(scene, 0.95))
    inner = [("polygon", [(698, 322), (688, 250), (746, 292)]), ("polygon", [(830, 294), (888, 252), (870, 326)])]
    scene.paint(mask(inner, 4), (0.60, 0.36, 0.30))
    scene.paint(mask([ellipse(784, 370, 112, 98)], 2.5), fur(scene, 1.08))
    scene.paint(0.9 * mask([ellipse(752, 424, 40, 31), ellipse(806, 424, 40, 31)], 6), (0.82, 0.73, 0.62))
    for x in (736, 834):
        scene.paint(mask([ellipse(x, 362, 25, 22)], 1.2), (0.10, 0.07, 0.05))
        iris = np.clip(1.3 - np.hypot(scene.across - x + 5, scene.down - 358) / 30, 0.3, 1.3)
        scene.paint(mask([ellipse(x, 362, 21, 19)], 1.0), scene.tinted((0.62, 0.66, 0.18), iris))
        scene.paint(mask([ellipse(x, 362, 6, 17)], 0.9), (0.02, 0.02, 0.02))
        scene.paint(mask([ellipse(x - 8, 354, 4, 4)], 0.7), (1.0, 0.98, 0.92))
    scene.paint(mask([("polygon", [(764, 400), (796, 400), (780, 418)])], 1.5), (0.55, 0.28, 0.24))
    scene.paint(0.8 * strokes([[(780, 416), (780, 430), (764, 440)], [(780, 430), (797, 440)]], 3), (0.18, 0.10, 0.08))
    whiskers = [[(748, 424 + 8 * k), (620, 408 + 20 * k)] for k in (-1, 0, 1)]
    whiskers += [[(812, 424 + 8 * k), (940, 410 + 20 * k)] for k in (-1, 0, 1)]
    scene.paint(0.85 * strokes(whiskers, 1.4, 0.6), (0.93, 0.90, 0.84))


def finished(scene: Scene) -> Image.Image:
    """Bloom from the window, a slight vignette, tone curve and film grain; as an 8-bit image."""
    clipped = np.clip(scene.light, 0, 1.6)
    bright = np.clip(clipped - 0.75, 0, 1) * 255
    glow = Image.fromarray(bright.clip(0, 255).astype(np.uint8)).filter(ImageFilter.GaussianBlur(28))
    light = clipped + 0.55 * np.asarray(glow, np.float64) / 255
    distance = np.hypot((scene.across - WIDTH / 2) / WIDTH, (scene.down - HEIGHT / 2) / HEIGHT)
    light *= (1.06 - 0.5 * distance**2)[..., None]
    toned = (1 - np.exp(-1.9 * light)) / (1 - np.exp(-1.9))
    grain = 0.010 * scene.random.standard_normal((HEIGHT, WIDTH, 1)) + 0.004 * scene.random.standard_normal(
        (HEIGHT, WIDTH, 3)
    )
    pixels = np.clip(np.clip(toned, 0, 1) ** (1 / 1.5) + grain, 0, 1) * 255
    return Image.fromarray(pixels.round().astype(np.uint8)).filter(ImageFilter.GaussianBlur(0.6))


def draw() -> Image.Image:
    """The whole picture, 1264 x 848 RGB."""
    scene = Scene()
    paint_room(scene)
    paint_window(scene)
    paint_plant(scene)
    paint_cat(scene)
    return finished(scene)


if __name__ == "__main__":
    draw().save(Path(sys.argv[1]), "JPEG", quality=JPEG_QUALITY)
