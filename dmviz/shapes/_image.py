"""A grey picture as a law: bright pixels are likely places."""

import math

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, LogProb
from dmviz.shapes._law import chosen, gauss, has_density, uniform


def image_cloud(ink: Tensor, width: float, noise: float, n: int, rng: Generator, label: Tensor | None = None) -> Cloud:
    """n points of the law whose density is `ink` (H, W), at least 0, row 0 on top, pixels square.

    The longer side is `width` long and the middle is the origin. A point lies anywhere in its pixel, plus round noise.
    Labels are those of the pixels, `label` (H, W). The log density is given where there is no noise; a score never.
    """
    rows, columns = ink.shape
    pixel = width / max(rows, columns)
    at = chosen(ink.flatten(), n, rng)
    place = torch.stack([at % columns, rows - 1 - at // columns], 1) + uniform((n, 2), rng)
    x = pixel * (place - torch.tensor([columns, rows]) / 2) + noise * gauss((n, 2), rng)
    return Cloud(
        x.float(),
        label=None if label is None else label.flatten()[at],
        log_prob=_log_prob(ink.double(), pixel) if not has_density(noise) else None,
    )


def _log_prob(ink: Tensor, pixel: float) -> LogProb:
    rows, columns = ink.shape
    table = (ink / ink.sum()).log() - 2 * math.log(pixel)  # (H, W)

    def log_prob(x: Tensor) -> Tensor:
        column = torch.floor(x[:, 0] / pixel + columns / 2).long()
        row = rows - 1 - torch.floor(x[:, 1] / pixel + rows / 2).long()
        inside = (column >= 0) & (column < columns) & (row >= 0) & (row < rows)
        found = table.to(x)[row.clamp(0, rows - 1), column.clamp(0, columns - 1)]
        return torch.where(inside, found, -math.inf)

    return log_prob
