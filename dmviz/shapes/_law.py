"""Densities that several shapes share: mixtures of equal round Gaussians, and draws in float64."""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, LogProb, Score

_BLOCK = 1 << 21  # numbers held at once when probes meet components


def has_density(noise: float) -> bool:
    """Whether noise is wide enough for a density: below 0.001 its walls are too steep for float32 steps."""
    return noise >= 1e-3


def uniform(shape: tuple[int, ...], rng: Generator) -> Tensor:
    """Numbers in [0, 1), float64 on the CPU."""
    return torch.rand(shape, generator=rng, device=rng.device, dtype=torch.float64).cpu()


def gauss(shape: tuple[int, ...], rng: Generator) -> Tensor:
    """Standard normal numbers, float64 on the CPU."""
    return torch.randn(shape, generator=rng, device=rng.device, dtype=torch.float64).cpu()


def chosen(weight: Tensor, n: int, rng: Generator) -> Tensor:
    """(n,) indices, each drawn with probability proportional to `weight`."""
    ladder = weight.double().cumsum(0)
    at = torch.searchsorted(ladder, uniform((n,), rng) * ladder[-1], right=True)
    return at.clamp_max(len(weight) - 1)


def mixture_law(means: Tensor, weight: Tensor, spread: float) -> tuple[Score, LogProb]:
    r"""Score and log density of a mixture of round Gaussians, all of standard deviation `spread`.

    $$ \log p(x) = \operatorname{logsumexp}_j \big(\log w_j - |x - m_j|^2 / 2s^2\big) - \tfrac D2 \log 2\pi s^2 $$
    $$ \nabla\log p(x) = \Big(\sum_j r_j(x)\, m_j - x\Big) / s^2, \qquad r_j(x) \propto w_j e^{-|x - m_j|^2 / 2s^2} $$

    means (k, D), weight (k,) that need not sum to 1. Probes are taken in blocks, so memory does not grow as K k D.
    """
    means, logits = means.double(), (weight.double() / weight.double().sum()).log()
    constant = 0.5 * means.shape[1] * math.log(2 * math.pi * spread * spread)

    def terms(x: Tensor) -> Tensor:  # (K, k)
        y = means.to(x)
        if x.shape[1] <= 4:  # one axis at a time: summing over a short last axis is several times slower
            gaps = [((x[:, i, None] - y[None, :, i]) / spread).square() for i in range(x.shape[1])]
            return logits.to(x) - 0.5 * sum(gaps[1:], gaps[0])
        return logits.to(x) - 0.5 * ((x[:, None, :] - y[None]) / spread).square().sum(-1)

    def score(x: Tensor) -> Tensor:
        return (torch.softmax(terms(x), 1) @ means.to(x) - x) / spread**2

    def log_prob(x: Tensor) -> Tensor:
        return torch.logsumexp(terms(x), 1) - constant

    rows = max(1, _BLOCK // means.numel())
    return in_blocks(score, rows), in_blocks(log_prob, rows)


def in_blocks(function: Callable[[Tensor], Tensor], rows: int) -> Callable[[Tensor], Tensor]:
    """The same function of (K, D), taken `rows` probes at a time."""

    def blocked(x: Tensor) -> Tensor:
        if len(x) <= rows:
            return function(x)
        return torch.cat([function(x[at : at + rows]) for at in range(0, len(x), rows)])

    return blocked


def mixture(means: Tensor, weight: Tensor, spread: float, n: int, rng: Generator) -> Cloud:
    """n points of a mixture of round Gaussians, labelled by component, with their law."""
    label = chosen(weight, n, rng)
    x = means.double()[label] + spread * gauss((n, means.shape[1]), rng)  # (n, D)
    score, log_prob = mixture_law(means, weight, spread)
    return Cloud(x.float(), label=label, score=score, log_prob=log_prob)


def score_of(log_prob: LogProb) -> Score:
    """The score as the gradient of a log density, by autograd; itself differentiable where its input asks for it."""

    def score(x: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = x if x.requires_grad else x.detach().requires_grad_(True)
            (grad,) = torch.autograd.grad(log_prob(leaf).sum(), leaf, create_graph=x.requires_grad)
        return grad

    return score


def length(x: Tensor) -> Tensor:
    """(K,) norms whose gradient is 0 at 0, where the norm itself has none."""
    return x.square().sum(1).clamp_min(torch.finfo(x.dtype).tiny).sqrt()
