from typing import Annotated, ClassVar

from torch import Generator

from dmviz.datasets._bundled import bundled
from dmviz.datasets._rows import items_of, of_classes, principal, standardised
from dmviz.items import Items
from dmviz.params import Help, Range, entry


@entry
class Wine:
    r"""Wines of three growers, 178 bottles, by 13 chemical measurements: alcohol, colour and so on.

    The columns have units of their own, from 0.1 to 1,700, so without standardising one column, proline, decides every
    distance.

    >>> from dmviz.cloud import seeded
    >>> Wine().load(1000, seeded(0)).x.shape
    torch.Size([178, 13])
    """

    title: ClassVar[str] = "Wine"
    source: ClassVar[tuple[str, ...]] = ("aeberhard1991", "pedregosa2011")

    classes: Annotated[str, Help("classes to keep, such as class_0,class_2; empty: all", most=200)] = ""
    standardise: Annotated[bool, Help("give every column mean 0 and standard deviation 1")] = True
    components: Annotated[int, Range(0, 13, help="principal components to keep; 0: the columns as they are")] = 0

    def load(self, limit: int, rng: Generator) -> Items:
        rows = of_classes(bundled("wine"), self.classes, type(self).__name__)
        return items_of(principal(standardised(rows) if self.standardise else rows, self.components), limit, rng)
