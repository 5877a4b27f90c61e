"""MMD between labelled clouds of which one has lost part of its labels."""

from dataclasses import replace
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of, seeded
from dmviz.losses._compiled import chosen
from dmviz.losses._kernels import Kernel
from dmviz.losses._pairs import kernel_mean, kernel_sums, own_sums
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity

RAREST = 0.05
"""Least chance that a label is seen: its inverse is the largest weight of a point."""


@entry
class MissingLabelMmd:
    r"""Send each particle to the points of its own label, although many of the target's labels are lost.

    Points with labels are compared by the product of a kernel of places and equality of labels,

    $$ F = \sum_g \Bigl\| \sum_{i:\,g_i=g} a_i\,k(x_i,\cdot) - \sum_j \omega_{jg}\,k(y_j,\cdot) \Bigr\|^2, $$

    the squared norm of the space of k: MMD between the joint laws of place and label. Labels of the target are hidden
    by chance; o_j = 1 where that of point j is still seen, which has the known probability pi_j. The estimators differ
    in the weight of point j for label g,

    $$ \omega_{jg} = b_j\,[g_j=g], \quad \propto b_j\,o_j\,[g_j=g], \quad
       \propto b_j\,\tfrac{o_j}{\pi_j}\,[g_j=g], \quad
       b_j \Bigl( \tfrac{o_j}{\pi_j} [g_j=g] + \bigl(1-\tfrac{o_j}{\pi_j}\bigr)\,\hat p(g\,|\,y_j) \Bigr) $$

    for the oracle, which sees all labels; naive, which takes the seen points as if they were all; reweighted by the
    inverse probability, right on average over the hiding up to its scaling to sum 1; and doubly robust, which also uses
    points without a label, shared among labels by kernel regression on the other seen ones, and is right on average
    whatever that guess is. Unit: none.

    A particle keeps one label throughout, that of its target row: particle i has that of row i, counted in a circle. So
    it matters in which order particles and target come, and F stays above 0 where labels have other shares among the
    particles than in the target. A target without labels counts as one group. The naive flow leaves out places and
    labels that are seldom seen; reweighting mends that and is noisy, since few points stand for many.

    Goldstein et al. 2022 derive such estimators for the discrepancy between two groups, as a penalty on a
    representation; the form for clouds with labels, and the ways of hiding, are ours.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> swapped = Cloud(here.flip(0), label=torch.tensor([0, 1]))  # same places, other labels
    >>> loss = MissingLabelMmd(bandwidth=5.0, estimator="oracle")
    >>> round(loss(here, swapped, seeded(0)).item(), 4)  # 2 / 4 of 2 - 2 exp(-1/2)
    0.3935

    ```
    """

    title = "MMD with missing labels"
    family = "kernels"
    source = ("goldstein2022learning", "gretton2012kernel")
    needs = "samples"
    cost = "(N + M) N D time, N + M memory; with doubly robust, M times the labels"
    degree = 0.0
    root = 2.0
    ordered = True

    estimator: Annotated[
        Literal["reweighted", "naive", "doubly_robust", "oracle"],
        Help("What stands for lost labels: rarely seen points count more, nothing, a guess from neighbours, the truth"),
    ] = "reweighted"
    hidden: Annotated[float, Range(0.0, 0.9, help="Share of labels that are lost, about")] = 0.5
    mechanism: Annotated[
        Literal["by_label", "by_place", "evenly"],
        Help("Which are lost: those of high number more often, those far from the middle, or all alike"),
    ] = "by_label"
    kernel: Annotated[
        Literal["gaussian", "laplacian", "imq"],
        Help("Shape of the pull: a bump, a spike with a longer tail, a long tail"),
    ] = "gaussian"
    bandwidth: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="How far a particle feels. Small: only close neighbours; large: only the means of labels",
        ),
    ] = 0.5
    hiding_seed: Annotated[int, Range(0, 2**31 - 1, help="another number, other lost labels")] = 0

    @property
    def laws(self) -> frozenset[Law]:
        always: frozenset[Law] = frozenset({"nonnegative", "shift_free", "rotation_free", "deterministic"})
        return always | {"zero_at_target"} if self.estimator == "oracle" else always

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return self.velocity(x, target, rng, weight).value
        a, label, kernel = mass_of(x, weight), self.labels(len(x), target), self._kernel
        value = torch.zeros((), dtype=torch.float64, device=x.device)
        for group in self._groups(target):
            mine = (label == group.label).nonzero()[:, 0]
            value = value + group.own
            if len(mine):
                z, w, y = x[mine], a[mine], target.x[group.rows]
                cross = kernel_mean(z, y, w, group.weight, kernel) if len(y) else 0.0
                value = value + kernel_mean(z, z, w, w, kernel) - 2.0 * cross
        return value.to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """Label by label: twice the pull of the target's points minus twice the push of the particles."""
        a, label, kernel, compiled = (
            mass_of(x, weight),
            self.labels(len(x), target),
            self._kernel,
            chosen(target.memo, x),
        )
        v, value = torch.zeros_like(x), torch.zeros((), dtype=torch.float64, device=x.device)
        for group in self._groups(target):
            mine = (label == group.label).nonzero()[:, 0]
            value += group.own
            if len(mine):
                own, push = own_sums(x[mine], a[mine], kernel, compiled)
                value += own
                if len(group.rows):
                    heard = kernel_sums(x[mine], target.x[group.rows], group.weight, kernel, compiled)
                    value -= 2.0 * (a[mine].double() @ heard.s)
                    push = push - heard.grad
                v[mine] = (-2.0 * push).to(x.dtype)
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)  # a particle without weight has no velocity
        return Velocity(v, value.to(x.dtype))

    def labels(self, n: int, target: Cloud) -> Tensor:
        """(N,) the label that each of n particles keeps."""
        return _label(target)[torch.arange(n, device=target.x.device) % len(target)]

    def prepare(self, target: Cloud) -> Cloud:
        """Which labels are seen, what their points weigh, and the target's own terms."""
        memo = {"of": target.x, "label": target.label, "loss": self, "compiled": chosen(None, target.x)}
        return replace(target, memo={**memo, "groups": self._groups(target)})

    @property
    def _kernel(self) -> Kernel:
        return Kernel(self.kernel, (self.bandwidth,))

    @torch.no_grad()
    def _groups(self, target: Cloud) -> "list[_Group]":
        memo = target.memo
        if memo and memo.get("of") is target.x and memo.get("label") is target.label and memo.get("loss") == self:
            return memo["groups"]  # type: ignore[no-any-return]
        found, compiled = [], chosen(memo, target.x)
        share = self.shares(target)
        for g, label in enumerate(_kinds(target)[0].tolist()):
            rows = share[:, g].nonzero()[:, 0]
            weight = share[rows, g]
            own = share.new_zeros(())
            if len(rows):
                own, _ = own_sums(target.x[rows], weight.to(target.x.dtype), self._kernel, compiled, want_grad=False)
            found.append(_Group(label, rows, weight.to(target.x.dtype), own))
        return found

    @torch.no_grad()
    def shares(self, target: Cloud) -> Tensor:
        """(M, G) float64 weight of every target point for each label, in rising order of labels."""
        b = target.mass().double()
        labels, place = _kinds(target)
        known = torch.nn.functional.one_hot(place, len(labels)).double()
        if self.estimator == "oracle":
            return b[:, None] * known
        chance = self.chances(target)
        draw = torch.rand(len(b), generator=seeded(self.hiding_seed, 57), dtype=torch.float64).to(b.device)
        seen = (draw < chance).double()
        if self.estimator == "doubly_robust":
            ratio = (seen / chance)[:, None]
            return b[:, None] * (ratio * known + (1.0 - ratio) * self._guess(target, known, b * seen / chance))
        weight = b * seen / (chance if self.estimator == "reweighted" else 1.0)
        return (weight / weight.sum().clamp_min(1e-300))[:, None] * known

    def chances(self, target: Cloud) -> Tensor:
        """(M,) float64 the probability that each label is seen."""
        if self.mechanism == "evenly":
            lost = torch.full((len(target),), 0.5, dtype=torch.float64, device=target.x.device)
        elif self.mechanism == "by_label":
            labels, place = _kinds(target)
            lost = place.double() / (len(labels) - 1) if len(labels) > 1 else torch.full_like(place.double(), 0.5)
        else:
            y = target.x.double()
            away = (y - y.mean(0)).square().sum(1)
            lost = away / (away + away.mean()).clamp_min(1e-300)
        return (1.0 - 2.0 * self.hidden * lost).clamp(RAREST, 1.0)

    def _guess(self, target: Cloud, known: Tensor, weight: Tensor) -> Tensor:
        """(M, G) p(g | y) by kernel regression on the seen labels of other points; their shares where none is near."""
        y, kernel, mine = target.x.double(), Kernel("gaussian", (self.bandwidth,)), weight[:, None] * known
        compiled = chosen(target.memo, y)
        heard = [kernel_sums(y, y, column.contiguous(), kernel, compiled, want_grad=False).s for column in mine.T]
        # Without the point's own label the guess does not depend on whether that is seen.
        near, others = ((sums - mine).clamp_min(0.0) for sums in (torch.stack(heard, 1), mine.sum(0)))
        total = others.sum(1, keepdim=True)
        overall = torch.where(total > 1e-30, others / total.clamp_min(1e-300), 1.0 / known.shape[1])
        sums = near.sum(1, keepdim=True)
        return torch.where(sums > 1e-15 * total, near / sums.clamp_min(1e-300), overall)


class _Group(NamedTuple):
    """The target's points for one label."""

    label: int
    rows: Tensor  # (K,)
    weight: Tensor  # (K,) may be negative with the doubly robust estimator
    own: Tensor  # () float64


def _label(target: Cloud) -> Tensor:
    """(M,) labels; one for all where the target has none."""
    return torch.zeros(len(target), dtype=torch.int64, device=target.x.device) if target.label is None else target.label


def _kinds(target: Cloud) -> tuple[Tensor, Tensor]:
    """(G,) labels that occur, in rising order, and (M,) the place of each point's label among them."""
    label = _label(target)
    kinds = torch.tensor(sorted(set(label.tolist())), dtype=torch.int64, device=label.device)
    return kinds, torch.searchsorted(kinds, label)
