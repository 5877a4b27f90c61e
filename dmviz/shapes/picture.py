from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.params import Help, Range, entry
from dmviz.shapes._image import image_cloud

_FOLDER = Path(__file__).parents[2] / "assets" / "images"


@entry
class Picture:
    r"""A picture made of points: the brighter a place, the more points fall there.

    $$ p(x) \propto \text{grey value of the pixel that holds } x, \text{ to the power of `contrast`} $$

    `width` is the longer side. The density jumps between pixels, so it has no useful score; with noise it is not
    closed. The pictures were drawn for dmviz and are free of rights (CC0).

    >>> from dmviz.cloud import seeded
    >>> Picture().sample(3, seeded(0)).x.abs().max().item() <= 2.5
    True
    """

    title: ClassVar[str] = "Picture"
    source: ClassVar[tuple[str, ...]] = ()

    picture: Annotated[Literal["cat", "galaxy", "mountains"], Help("which picture")] = "cat"
    contrast: Annotated[float, Range(0.2, 5, log=True, help="above 1 bright places draw more of the points")] = 1.0
    width: Annotated[float, Range(0.1, 20, unit="length", help="longer side of the picture")] = 5.0
    noise: Annotated[float, Range(0, 3, unit="length", help="standard deviation of the blur")] = 0.0

    def sample(self, n: int, rng: Generator) -> Cloud:
        return image_cloud(_grey(self.picture) ** self.contrast, self.width, self.noise, n, rng)


@cache
def _grey(name: str) -> Tensor:
    """(H, W) grey values in [0, 1], float64."""
    import numpy
    from PIL import Image

    with Image.open(_FOLDER / f"{name}.png") as picture:
        return torch.from_numpy(numpy.array(picture.convert("L"), dtype=numpy.float64)) / 255
