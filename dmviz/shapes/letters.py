from functools import lru_cache
from typing import Annotated, ClassVar

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.params import Help, Range, entry
from dmviz.shapes._image import image_cloud

_HEIGHT = 96  # pixels in a line of text


@entry
class Letters:
    r"""Points that spell a word: a shape with corners, holes and thin strokes that anyone can judge by eye.

    The word is drawn in Pillow's built-in font (Aileron) and taken as a density: $p(x) \propto$ ink of the pixel that
    holds x. `width` is the longer side of the drawing. Labels are the letters, counted from the left. The density
    jumps between pixels, so it has no useful score; with noise it is not closed. A sign that the font lacks is drawn
    as a box.

    >>> from dmviz.cloud import seeded
    >>> cloud = Letters(text="il", noise=0.0).sample(500, seeded(0))
    >>> bool(cloud.x[cloud.label == 0, 0].max() < cloud.x[cloud.label == 1, 0].min())  # i lies left of l
    True
    """

    title: ClassVar[str] = "Letters"
    source: ClassVar[tuple[str, ...]] = ()

    text: Annotated[str, Help("a letter, a word or a few", most=50)] = "flow"
    width: Annotated[float, Range(0.1, 20, unit="length", help="longer side of the drawing")] = 5.0
    noise: Annotated[float, Range(0, 3, unit="length", help="standard deviation of the blur")] = 0.0

    def __post_init__(self) -> None:
        if not self.text.isprintable() or not self.text.strip():
            raise ValueError(f"Letters: text must have at least one letter and no line breaks, got {self.text!r}")

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(self.text)

    def sample(self, n: int, rng: Generator) -> Cloud:
        ink, label = _drawing(self.text)
        return image_cloud(ink, self.width, self.noise, n, rng, label)


@lru_cache(maxsize=32)
def _drawing(text: str) -> tuple[Tensor, Tensor]:
    """Ink (H, W) of a word, cut to its edges, and which letter each pixel belongs to."""
    import numpy
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(size=_HEIGHT)
    size = (int(font.getlength(text)) + 2 * _HEIGHT, 3 * _HEIGHT)
    ink, label = torch.zeros(size[1], size[0]), torch.zeros(size[1], size[0], dtype=torch.int64)
    for i, letter in enumerate(text):
        layer = Image.new("L", size)
        # Letters go where the word has them, pairs such as AV moved together included.
        left = _HEIGHT + font.getlength(text[: i + 1]) - font.getlength(letter)
        ImageDraw.Draw(layer).text((left, _HEIGHT), letter, fill=255, font=font)
        drawn = torch.from_numpy(numpy.array(layer, dtype=numpy.float32))
        label = torch.where(drawn > ink, i, label)
        ink = torch.maximum(ink, drawn)
    seen = ink > 0
    if not seen.any():
        raise ValueError(f"Letters: the font has no ink for {text!r}; choose other letters")
    rows, columns = torch.where(seen.any(1))[0], torch.where(seen.any(0))[0]
    cut = slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)
    return ink[cut], label[cut]
