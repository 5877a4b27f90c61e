"""Draws the grey pictures in this folder: `python assets/images/make.py`. No photograph, no foreign work: CC0."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

SIDE, FINE = 160, 4  # pixels a side, and how much finer the drawing is before it is scaled down


def drawing() -> tuple[Image.Image, ImageDraw.ImageDraw]:
    canvas = Image.new("L", (SIDE * FINE, SIDE * FINE))
    return canvas, ImageDraw.Draw(canvas)


def at(*places: tuple[float, float]) -> list[tuple[float, float]]:
    """Places in [0, 1]^2, (0, 0) at the top left, as fine pixels."""
    return [(x * SIDE * FINE, y * SIDE * FINE) for x, y in places]


def oval(pen: ImageDraw.ImageDraw, x: float, y: float, w: float, h: float, grey: int) -> None:
    pen.ellipse([*at((x - w / 2, y - h / 2))[0], *at((x + w / 2, y + h / 2))[0]], fill=grey)


def cat() -> Image.Image:
    canvas, pen = drawing()
    for side in (-1, 1):
        ear = [(0.5 + side * 0.34, 0.06), (0.5 + side * 0.36, 0.46), (0.5 + side * 0.06, 0.26)]
        inner = [(0.5 + side * 0.30, 0.15), (0.5 + side * 0.31, 0.34), (0.5 + side * 0.16, 0.26)]
        pen.polygon(at(*ear), fill=210)
        pen.polygon(at(*inner), fill=40)
    oval(pen, 0.5, 0.56, 0.80, 0.70, 210)
    oval(pen, 0.5, 0.56, 0.74, 0.64, 60)
    for side in (-1, 1):
        oval(pen, 0.5 + side * 0.19, 0.50, 0.19, 0.17, 255)
        oval(pen, 0.5 + side * 0.19, 0.50, 0.06, 0.16, 0)
        for rise in (-0.05, 0.01, 0.07):
            line = at((0.5 + side * 0.14, 0.69 + rise / 3), (0.5 + side * 0.48, 0.68 + rise))
            pen.line(line, fill=255, width=int(0.008 * SIDE * FINE))
    oval(pen, 0.5, 0.72, 0.28, 0.20, 170)
    pen.polygon(at((0.45, 0.63), (0.55, 0.63), (0.5, 0.69)), fill=20)
    pen.line(at((0.5, 0.68), (0.5, 0.74), (0.44, 0.77)), fill=20, width=int(0.012 * SIDE * FINE))
    pen.line(at((0.5, 0.74), (0.56, 0.77)), fill=20, width=int(0.012 * SIDE * FINE))
    return canvas


def galaxy() -> Image.Image:
    grid = (np.arange(SIDE * FINE) + 0.5) / (SIDE * FINE) * 2 - 1
    x, y = np.meshgrid(grid, grid)
    x, y = x * np.cos(0.5) + y * np.sin(0.5), (y * np.cos(0.5) - x * np.sin(0.5)) / 0.62
    r, angle = np.hypot(x, y), np.arctan2(y, x)
    arms = np.cos(2 * (angle - 3.2 * np.log(r + 0.05))) ** 2
    light = np.exp(-((r / 0.11) ** 2)) + np.exp(-r / 0.33) * (0.08 + 0.92 * arms**3) * (r < 1.02)
    return Image.fromarray((255 * np.clip(light, 0, 1)).astype(np.uint8))


def mountains() -> Image.Image:
    canvas, pen = drawing()
    oval(pen, 0.72, 0.24, 0.20, 0.20, 255)
    oval(pen, 0.67, 0.21, 0.18, 0.18, 0)
    rng = np.random.default_rng(7)
    for star in rng.uniform((0.03, 0.03), (0.6, 0.4), (14, 2)):
        oval(pen, *star, 0.012, 0.012, 230)
    for base, height, grey, waves in ((0.55, 0.20, 70, 5), (0.70, 0.16, 130, 7), (0.86, 0.09, 210, 9)):
        across = np.linspace(0, 1, 400)
        ridge = sum(height / k * np.abs(((across * k * waves / 5 + rng.uniform()) % 1) - 0.5) for k in (1, 2, 4, 8))
        pen.polygon(at((0, 1), *zip(across, base + 0.15 - ridge, strict=True), (1, 1)), fill=grey)
    return canvas


if __name__ == "__main__":
    for draw in (cat, galaxy, mountains):
        picture = draw().filter(ImageFilter.BoxBlur(1)).resize((SIDE, SIDE), Image.Resampling.BOX)
        picture.save(Path(__file__).with_name(f"{draw.__name__}.png"), optimize=True)
