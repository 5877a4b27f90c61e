"""Classic tables that scikit-learn carries along, as Rows. Its import takes seconds: done once, when asked."""

from functools import cache

import numpy as np

from dmviz.datasets._rows import Rows


@cache
def bundled(name: str) -> Rows:
    """One of digits, iris, wine, breast_cancer, with its classes as labels."""
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")()
    x = np.ascontiguousarray(bunch.data, dtype=np.float64)
    x.setflags(write=False)
    return Rows(
        x=x,
        columns=tuple(str(column) for column in bunch.feature_names),
        ids=np.arange(1, len(x) + 1, dtype=np.int64),
        origin=name.replace("_", " "),
        label=np.asarray(bunch.target, dtype=np.int64),
        label_names=tuple(str(title) for title in bunch.target_names),
    )
