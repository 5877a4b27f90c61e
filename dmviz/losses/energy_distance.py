"""Energy distance: MMD with the kernel -|x - y|."""

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.losses._kernels import Kernel
from dmviz.losses._pairs import (
    discrepancy,
    discrepancy_probe,
    discrepancy_value,
    discrepancy_velocity,
    prepare_discrepancy,
    witness,
)
from dmviz.params import entry
from dmviz.protocols import Velocity

_KERNEL = Kernel("distance")


@entry
class EnergyDistance:
    r"""Pull to the target, push each other apart, both with a force that does not fade with distance.

    $$ F = 2\,E|X-Y| - E|X-X'| - E|Y-Y'| $$

    Weighted means over all pairs, the diagonal included (V statistic): never negative, and 0 only if the two laws are
    equal. Its root is a metric. Unit: length. A particle moves with

    $$ v(x) = 2\Bigl[E\,\frac{Y-x}{|Y-x|} - E\,\frac{X'-x}{|X'-x|}\Bigr], $$

    at most 4 units of length per unit of time, where a point that it meets counts 0. There is no bandwidth to choose
    and no distance at which it stops pulling. It fails gently: close to the target the push between neighbours jumps,
    so particles jitter unless a step is shorter than about half the distance to the nearest neighbour. In high
    dimension all distances grow alike and the pull tells modes apart only slowly.

    Szekely and Rizzo 2013; as a kernel mean, Sejdinovic et al. 2013.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    >>> EnergyDistance()(here, Cloud(there), seeded(0)).item()  # 2 * |(3, 4)|
    10.0

    ```
    """

    title = "Energy distance"
    family = "kernels"
    source = ("szekely2013energy", "sejdinovic2013equivalence")
    needs = "samples"
    cost = "(N + M) N D time, N + M memory"
    laws = frozenset(
        {"zero_at_target", "nonnegative", "symmetric", "shift_free", "rotation_free", "triangle", "deterministic"}
    )
    degree = 1.0
    root = 2.0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        if torch.is_grad_enabled() and x.requires_grad:
            return discrepancy(x, target, _KERNEL, weight)
        return discrepancy_value(x, target, _KERNEL, weight)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """Twice the mean unit vector to the target, minus twice the one to the other particles."""
        return discrepancy_velocity(x, target, _KERNEL, weight)

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The same pull at any points (K, D) among particles x."""
        return discrepancy_probe(at, x, target, _KERNEL, weight)

    def witness(self, at: Tensor, x: Tensor, target: Cloud, weight: Tensor | None = None) -> Tensor:
        """(K,) mean distance to the target minus mean distance to the particles: what the pull descends."""
        return witness(at, x, target, _KERNEL, weight)

    def prepare(self, target: Cloud) -> Cloud:
        return prepare_discrepancy(target, _KERNEL)
