"""Cloud: points, weights, labels, and what is known of their law; seeded(): the only source of chance."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

Score = Callable[[Tensor], Tensor]
"""(K, D) -> (K, D): gradient of the log density, differentiable by torch."""
LogProb = Callable[[Tensor], Tensor]
"""(K, D) -> (K,): log density in nats, normalised."""


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points with weights: an empirical law, and its exact law where that is known.

    `memo` is what a loss worked out about a target once, in `prepare`; nobody else reads it.
    """

    x: Tensor  # (N, D)
    weight: Tensor | None = None  # (N,), sums to 1; None = uniform
    label: Tensor | None = None  # (N,) int64
    score: Score | None = None
    log_prob: LogProb | None = None
    memo: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.x.ndim != 2:
            raise ValueError(f"Cloud: x must be (N, D), got shape {tuple(self.x.shape)}")
        for name, column in (("weight", self.weight), ("label", self.label)):
            if column is not None and column.shape != self.x.shape[:1]:
                raise ValueError(
                    f"Cloud: {name} must have one entry a point, ({len(self.x)},), got {tuple(column.shape)}"
                )

    @property
    def dim(self) -> int:
        return self.x.shape[1]

    def __len__(self) -> int:
        return self.x.shape[0]

    def mass(self) -> Tensor:
        """(N,) weights that sum to 1, written out also where they are uniform."""
        return mass_of(self.x, self.weight)

    def to(self, device: str | torch.device, dtype: torch.dtype) -> "Cloud":
        """The same points, weights and labels on another device; the law's functions follow their input."""
        return replace(
            self,
            x=self.x.to(device, dtype),
            weight=None if self.weight is None else self.weight.to(device, dtype),
            label=None if self.label is None else self.label.to(device),
            memo=None,
        )


def mass_of(x: Tensor, weight: Tensor | None) -> Tensor:
    """(N,) weights that sum to 1: `weight`, or 1/N each where it is None."""
    return x.new_full((len(x),), 1.0 / max(len(x), 1)) if weight is None else weight


def seeded(seed: int, *stream: int, device: str | torch.device = "cpu") -> Generator:
    """A generator that depends on `seed` and `stream` alone; dmviz never uses torch's global one.

    `stream` numbers independent draws under one seed, so that step 7 can be drawn again without steps 1 to 6.
    """
    state = seed & 0xFFFFFFFFFFFFFFFF
    for part in stream:  # splitmix64: neighbouring seeds and streams give unrelated states
        state = (state + 0x9E3779B97F4A7C15 * (part + 1)) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return Generator(device=device).manual_seed(state & 0x7FFFFFFFFFFFFFFF)


def normal(shape: tuple[int, ...], like: Tensor, rng: Generator) -> Tensor:
    """Standard normal numbers on the device and in the precision of `like`."""
    return torch.randn(shape, generator=rng, device=rng.device, dtype=like.dtype).to(like.device)
