"""Runs as films: animated gif and webp of particles and curves, at most 400 frames."""

import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from PIL import Image

from dmviz.plot import still, theme
from dmviz.plot.cloud import groups
from dmviz.plot.thinning import even
from dmviz.run import Run

MOST_FRAMES = 400
MOST_POINTS = 3_000  # of one cloud
PAUSE = 1500  # milliseconds on the last frame

Progress = Callable[[float], object]
"""Told the share of pictures drawn so far, in [0, 1]; what it raises cancels the film."""


def gif(run: Run, frames: int = 150, dark: bool = False, progress: Progress | None = None) -> bytes:
    """The run as an animated gif of 768 by 460 pixels with step and loss, frames left out evenly.

    Raises ValueError when more than 400 frames are asked for.
    """
    pictures = list(_pictures(run, _checked(frames, "gif"), dark, progress))
    shared = _colors(run, dark)
    small = [picture.quantize(palette=shared, dither=Image.Dither.NONE) for picture in pictures]
    return _saved(small, "GIF", 50, optimize=False)


def webp(run: Run, frames: int = 300, dark: bool = False, progress: Progress | None = None) -> bytes:
    """The same as an animated webp: more colours in fewer bytes."""
    pictures = list(_pictures(run, _checked(frames, "webp"), dark, progress))
    return _saved(pictures, "WEBP", 40, quality=75, method=2)


def _colors(run: Run, dark: bool) -> Image.Image:
    """A palette that holds every colour of the figure in six strengths, so that rare labels keep their hue."""
    look = theme.theme(dark)
    lines = [theme.curve_line(name, dark).color for name in run.metrics]
    loud = [look.text, look.muted, look.axis, look.grid, look.target, *lines, *(g.color for g in groups(run, dark))]
    ground = np.array(to_rgb(look.background))
    mixed = [a * np.array(to_rgb(c)) + (1 - a) * ground for c in loud for a in (1.0, 0.85, 0.65, 0.45, 0.25, 0.1)]
    table = np.round(255 * np.array([ground, *mixed])[:256]).astype(np.uint8)
    shared = Image.new("P", (1, 1))
    shared.putpalette(table.tobytes())
    return shared


def _checked(frames: int, owner: str) -> int:
    if not 1 <= frames <= MOST_FRAMES:
        raise ValueError(f"{owner}: frames must be in [1, {MOST_FRAMES}], got {frames}")
    return frames


def _saved(pictures: list[Image.Image], kind: str, milliseconds: int, **more: object) -> bytes:
    out = io.BytesIO()
    durations = [milliseconds] * (len(pictures) - 1) + [PAUSE]
    first, rest = pictures[0], pictures[1:]
    first.save(out, format=kind, save_all=True, append_images=rest, duration=durations, loop=0, **more)  # type: ignore[arg-type]
    return out.getvalue()


def _pictures(run: Run, frames: int, dark: bool, progress: Progress | None) -> Iterator[Image.Image]:
    """What stands still is drawn once; only particles, cursor and caption are drawn again for each frame."""
    with still.drawing():
        made = still.stage(run, run.frames[0], dark, MOST_POINTS)
        moving = (*made.dots, made.cursor, made.now, made.caption)
        made.figure.set_dpi(still.DPI * 0.8)
        for artist in moving:
            artist.set_animated(True)
        canvas: Any = made.figure.canvas
        canvas.draw()
        ground = canvas.copy_from_bbox(made.figure.bbox)
        chosen = even(len(run.frames), frames)
        for count, k in enumerate(chosen, 1):
            still.place(made, run, run.frames[k])
            canvas.restore_region(ground)
            for artist in moving:
                if run.scene.dims == 3 and artist in made.dots:
                    artist.do_3d_projection()
                made.figure.draw_artist(artist)
            if progress is not None:
                progress(count / len(chosen))
            pixels = np.asarray(canvas.buffer_rgba())
            yield Image.fromarray(pixels[..., :3].copy())
