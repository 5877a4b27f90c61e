from typing import Annotated, ClassVar

from torch import Generator

from dmviz.datasets._bundled import bundled
from dmviz.datasets._rows import items_of, of_classes, principal, standardised
from dmviz.items import Items
from dmviz.params import Help, Range, entry


@entry
class Iris:
    r"""Three kinds of iris, 50 flowers each, by the length and width of two leaves of the flower: 4 dimensions.

    One kind stands apart, the other two touch. Standardised, each column has mean 0 and standard deviation 1; without,
    lengths are in centimetres.

    >>> from dmviz.cloud import seeded
    >>> items = Iris(classes="setosa", standardise=False).load(1000, seeded(0))
    >>> items.x.shape, items.x[0].tolist()[:2]
    (torch.Size([50, 4]), [5.099..., 3.5])
    """

    title: ClassVar[str] = "Iris flowers"
    source: ClassVar[tuple[str, ...]] = ("fisher1936", "pedregosa2011")

    classes: Annotated[str, Help("classes to keep, such as setosa,virginica; empty: all", most=200)] = ""
    standardise: Annotated[bool, Help("give every column mean 0 and standard deviation 1")] = True
    components: Annotated[int, Range(0, 4, help="principal components to keep; 0: the columns as they are")] = 0

    def load(self, limit: int, rng: Generator) -> Items:
        rows = of_classes(bundled("iris"), self.classes, type(self).__name__)
        return items_of(principal(standardised(rows) if self.standardise else rows, self.components), limit, rng)
