from dataclasses import replace
from typing import Annotated, ClassVar

from torch import Generator

from dmviz.datasets._bundled import bundled
from dmviz.datasets._rows import items_of, of_classes, principal, standardised
from dmviz.items import Items
from dmviz.params import Help, Range, entry


@entry
class Digits:
    r"""Handwritten digits, 8 by 8 grey pixels each: 1,797 points in 64 dimensions that people can read.

    Pixels run from 0 (paper) to 1 (ink). Labels are the digits. With `components` the pixels are turned to their
    principal components first, those of the chosen classes alone; 0 keeps the 64 pixels, for a flow in 64 dimensions
    that a projection shows.

    >>> from dmviz.cloud import seeded
    >>> items = Digits(components=0, classes="3,5").load(100, seeded(0))
    >>> items.x.shape, items.label_names
    (torch.Size([100, 64]), ('3', '5'))
    """

    title: ClassVar[str] = "Digits"
    source: ClassVar[tuple[str, ...]] = ("alpaydin1998", "pedregosa2011")

    classes: Annotated[str, Help("digits to keep, such as 3,5; empty: all", most=200)] = ""
    standardise: Annotated[bool, Help("give every pixel mean 0 and standard deviation 1")] = False
    components: Annotated[int, Range(0, 64, help="principal components to keep; 0: the 64 pixels")] = 0

    def load(self, limit: int, rng: Generator) -> Items:
        rows = of_classes(bundled("digits"), self.classes, type(self).__name__)
        rows = replace(rows, x=rows.x / 16)
        return items_of(principal(standardised(rows) if self.standardise else rows, self.components), limit, rng)
