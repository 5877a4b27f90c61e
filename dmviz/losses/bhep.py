"""BHEP statistic: Gaussian MMD between a cloud and the standard normal law, in closed form."""

from dataclasses import replace
from typing import Annotated, Any

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses import _compiled
from dmviz.losses._kernels import Kernel
from dmviz.losses._lines import accurate
from dmviz.losses._pairs import kernel_mean, kernel_sums, own_sums
from dmviz.params import Range, entry
from dmviz.protocols import Velocity


@entry
class Bhep:
    r"""Pull any cloud to a standard normal one by bumps around its points, without a single normal sample.

    $$ F = E\,e^{-|X-X'|^2/2\ell^2} - 2\Bigl(\frac{\ell^2}{1+\ell^2}\Bigr)^{d/2} E\,e^{-|X|^2/2(1+\ell^2)}
       + \Bigl(\frac{\ell^2}{2+\ell^2}\Bigr)^{d/2} $$

    The Gaussian MMD squared to N(0, I) with bandwidth $\ell$, and the mean of $|\phi_X(t) - e^{-|t|^2/2}|^2$ over
    frequencies N(0, I / l^2), both exact; $1/\ell$ is the $\beta$ of the test of Baringhaus, Henze, Epps and Pulley,
    whose statistic is N F. The target is not looked at. Unit: none; at most 2. On a line with bandwidth 1,
    $\sqrt{2\pi} F$ is the Epps-Pulley statistic on the whole line.

    A small bandwidth feels only close neighbours and in high dimension nothing else: the pull to the normal law fades
    as $(\ell^2/(1+\ell^2))^{d/2}$. A large one sees only the mean. It fails for points far out, which feel no pull.

    Baringhaus and Henze 1988; Henze and Zirkler 1990.

    ```python
    >>> import torch
    >>> from dmviz.cloud import seeded
    >>> point = torch.zeros(1, 1)
    >>> round(Bhep()(point, Cloud(point), seeded(0)).item(), 4)  # 1 - sqrt(2) + 1 / sqrt(3)
    0.1631

    ```
    """

    title = "BHEP (normality)"
    family = "characteristic functions"
    source = ("baringhaus1988consistent", "henze1990class")
    needs = "nothing"
    cost = "N^2 D time, N memory"
    degree = float("nan")
    root = 2.0
    laws = frozenset({"nonnegative", "rotation_free", "deterministic"})

    bandwidth: Annotated[
        float,
        Range(
            0.05,
            20.0,
            log=True,
            help="How far a particle feels, where 1 is the spread of the goal. Small: neighbours; large: only the mean",
        ),
    ] = 1.0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        a = mass_of(x, weight)
        if torch.is_grad_enabled() and x.requires_grad:
            own = kernel_mean(x, x, a, a, self._kernel)
        else:
            own, _ = own_sums(x, a, self._kernel, _compiled.chosen(target.memo, x), want_grad=False)
        return self._value(own, x, a, self._normal(x)).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """Uphill on the normal law's bumps, downhill on the particles' own."""
        a = mass_of(x, weight)
        own, grad = own_sums(x, a, self._kernel, _compiled.chosen(target.memo, x))
        bump = self._normal(x)
        v = (2.0 * (self._uphill(x, bump) - grad)).to(x.dtype)
        v = v if weight is None else torch.where(weight[:, None] > 0, v, 0.0)
        return Velocity(v, self._value(own, x, a, bump).to(x.dtype))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The same pull at any points (K, D), the particles x themselves unmoved."""
        own = kernel_sums(at, x, mass_of(x, weight), self._kernel, _compiled.chosen(target.memo, x))
        return (2.0 * (self._uphill(at, self._normal(at)) - own.grad)).to(at.dtype)

    def prepare(self, target: Cloud) -> Cloud:
        """The choice between eager and compiled sums, made once a run."""
        return replace(target, memo={**(target.memo or {}), "compiled": _compiled.chosen(target.memo, target.x)})

    @property
    def _kernel(self) -> Kernel:
        return Kernel("gaussian", (self.bandwidth,))

    def _normal(self, x: Tensor) -> Tensor:
        """(N,) mean bump of the normal law at each point."""
        square = self.bandwidth**2
        height = (square / (1 + square)) ** (x.shape[1] / 2)
        bump: Tensor = height * (x.to(accurate(x)).square().sum(1) * (-0.5 / (1 + square))).exp()
        return bump

    def _uphill(self, x: Tensor, bump: Tensor) -> Tensor:
        return bump[:, None] * x * (-1.0 / (1 + self.bandwidth**2))

    def _value(self, own: Tensor, x: Tensor, a: Tensor, bump: Tensor) -> Tensor:
        square = self.bandwidth**2
        constant: float = (square / (2 + square)) ** (x.shape[1] / 2)
        return own - 2.0 * (a.to(bump.dtype) @ bump) + constant
