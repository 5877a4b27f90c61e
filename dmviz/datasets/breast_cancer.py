from typing import Annotated, ClassVar

from torch import Generator

from dmviz.datasets._bundled import bundled
from dmviz.datasets._rows import items_of, of_classes, principal, standardised
from dmviz.items import Items
from dmviz.params import Help, Range, entry


@entry
class BreastCancer:
    r"""Cell nuclei of 569 breast tumours, malignant or benign, by 30 measurements of size and shape.

    Many of the measurements say nearly the same: 2 principal components keep 63 % of the standardised variance.

    >>> from dmviz.cloud import seeded
    >>> BreastCancer(components=2).load(1000, seeded(0)).notes
    ('2 principal components of 30 columns keep 63 % of the variance',)
    """

    title: ClassVar[str] = "Breast cancer"
    source: ClassVar[tuple[str, ...]] = ("wolberg1995", "pedregosa2011")

    classes: Annotated[str, Help("classes to keep: malignant or benign; empty: all", most=200)] = ""
    standardise: Annotated[bool, Help("give every column mean 0 and standard deviation 1")] = True
    components: Annotated[int, Range(0, 30, help="principal components to keep; 0: the columns as they are")] = 0

    def load(self, limit: int, rng: Generator) -> Items:
        rows = of_classes(bundled("breast_cancer"), self.classes, type(self).__name__)
        return items_of(principal(standardised(rows) if self.standardise else rows, self.components), limit, rng)
