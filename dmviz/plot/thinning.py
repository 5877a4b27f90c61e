"""Which rows and frames are drawn when there are too many for a figure."""

import numpy as np

from dmviz.run import Run


def even(n: int, most: int) -> np.ndarray:
    """At most `most` evenly spaced numbers below n, the first and the last among them.

    >>> even(10, 4).tolist(), even(3, 4).tolist()
    ([0, 3, 6, 9], [0, 1, 2])
    """
    if n <= most:
        return np.arange(n)
    return np.linspace(0, n - 1, most).round().astype(np.int64)


def box(run: Run, reach: float = 3.0) -> tuple[np.ndarray, float]:
    """Centre (2|3,) and half side of the cube that holds the target and every frame.

    Particles that fly farther than `reach` times the size of target and start together are left outside.
    """
    first = run.frames[0].clouds["particles"]
    low, high = _bounds(np.concatenate([run.scene.target, first]))
    middle, half = (low + high) / 2, max(float((high - low).max()) / 2, 1e-6)
    farthest = half
    for k in even(len(run.frames), 200):
        cloud = run.frames[k].clouds["particles"]
        away = np.abs(cloud[np.isfinite(cloud).all(1)] - middle)
        farthest = max(farthest, float(away.max(initial=0.0)))
    return middle, 1.06 * min(farthest, reach * half)


def _bounds(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    points = points[np.isfinite(points).all(1)]
    if not len(points):
        return np.full(points.shape[1], -1.0), np.full(points.shape[1], 1.0)
    return points.min(0).astype(float), points.max(0).astype(float)
