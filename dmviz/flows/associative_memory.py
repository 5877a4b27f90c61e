import math
from typing import Annotated, NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.params import Range, entry
from dmviz.protocols import Field, Info


class Stored(NamedTuple):
    """The Gaussians in memory, float64."""

    mean: Tensor  # (K, D)
    root: Tensor  # (K, D, D) symmetric root of the covariance
    trace: Tensor  # (K,) of the covariance


class Recalling(NamedTuple):
    x: Tensor  # (N, D)
    v: Tensor  # (N, D) the way to where the shared map sends each particle
    value: Tensor  # () nan: the loss is only watched
    time: float
    stored: Stored
    share: Tensor  # (K,) how much each memory pulls
    energy: Tensor  # () what goes down


@entry
class AssociativeMemory:
    r"""The cloud recalls: it is drawn to the stored Gaussian that it most resembles, the nearer the stronger.

    $$ E(q) = -\tfrac1\beta \log \sum_k e^{-\beta W_2^2(X_k, q)}, \qquad
       w_k \propto e^{-\beta W_2^2(X_k, q)}, \qquad
       x_i \leftarrow x_i + \Delta t \Bigl(\sum_k w_k T_k(x_i) - x_i\Bigr) $$

    A dense associative memory whose patterns are Gaussians $X_k$ with mean and covariance of each label of the target,
    or of the whole target where it has no labels. The cloud is seen by its own mean and covariance $S$, and all
    particles follow one affine map, $T_k(x) = m_k + A_k (x - m)$ with
    $A_k = S_k^{1/2} (S_k^{1/2} S S_k^{1/2})^{-1/2} S_k^{1/2}$. Where it rests, the cloud is a barycentre of memories
    with the weights that it gives them itself. $E$ goes down at every step of `dt` up to 1, which is the whole way.

    `beta`, in 1 / length^2, is how sharply it decides: small recalls a blend of everything, large the nearest memory.
    The paper's own factor before W2^2 could not be checked; halving beta gives the other convention. The loss is only
    watched. Arrows show the whole way. Time K D^3 a step.

    Fails to recall shapes other than Gaussians: the cloud keeps its form up to an affine map. Directions in which it
    does not spread at all stay flat.

    Tankala and Balasubramanian 2025.
    """

    title = "Gaussian associative memory"
    source = ("tankala2025dense",)
    needs = "samples"

    beta: Annotated[
        float, Range(1e-4, 1e4, unit="1/length^2", log=True, help="small: a blend of all; large: the nearest alone")
    ] = 1.0
    dt: Annotated[float, Range(1e-3, 1.0, unit="time", log=True, help="share of the way that a step goes")] = 0.1

    def init(self, x: Tensor, field: Field, rng: Generator) -> Recalling:
        return self._recall(field.hold(x), field, 0.0, memories(field.target))

    def step(self, state: Recalling, field: Field, rng: Generator) -> tuple[Recalling, Info]:
        x = field.hold(state.x + self.dt * state.v)
        new = self._recall(x, field, state.time + self.dt, state.stored)
        note, (share, which) = "", new.share.max(0)
        if share > 0.99 >= state.share.max():
            note = f"Decided: memory {int(which) + 1} of {len(new.share)} holds more than 99 % of the pull."
        return new, Info(self.dt, 1, note)

    def _recall(self, x: Tensor, field: Field, time: float, stored: Stored) -> Recalling:
        mean, covariance = gaussian(x, mass_of(x, field.weight))
        squares, maps = transport(mean, covariance, stored)
        share = torch.softmax(-self.beta * squares, 0)
        energy = -torch.logsumexp(-self.beta * squares, 0) / self.beta
        turn = torch.einsum("k,kij->ij", share, maps)
        v = (share @ stored.mean + (x.double() - mean) @ turn.T - x.double()).to(x.dtype)
        return Recalling(x, field.tangent(x, v), x.new_tensor(math.nan), time, stored, share, energy)


def gaussian(x: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (D,) and covariance (D, D) of weighted points, float64, divided by their number."""
    x, mass = x.double(), mass.double() / mass.double().sum()
    mean = mass @ x
    return mean, (x - mean).T @ ((x - mean) * mass[:, None])


def memories(target: Cloud) -> Stored:
    """One Gaussian a label that has weight; one in all where there are no labels."""
    mass = target.mass()
    label = torch.zeros(len(mass), dtype=torch.int64, device=mass.device) if target.label is None else target.label
    rows = [label == k for k in torch.unique(label[mass > 0])]
    mean, covariance = map(torch.stack, zip(*(gaussian(target.x[r], mass[r]) for r in rows), strict=True))
    return Stored(mean, rooted(covariance), covariance.diagonal(dim1=1, dim2=2).sum(1))


def rooted(covariance: Tensor) -> Tensor:
    """The symmetric root of each covariance (K, D, D)."""
    value, vector = torch.linalg.eigh(covariance)
    root: Tensor = (vector * value.clamp_min(0.0).sqrt()[..., None, :]) @ vector.mT
    return root


def transport(mean: Tensor, covariance: Tensor, stored: Stored) -> tuple[Tensor, Tensor]:
    """W2^2 (K,) from a Gaussian to each stored one, and the matrices (K, D, D) of the maps that get there."""
    product = stored.root @ covariance @ stored.root
    # eigh stops at numbers that are not finite; a run that has blown up is to end by its nan instead.
    lost = torch.where(torch.isfinite(product).all(), 0.0, torch.nan)
    value, vector = torch.linalg.eigh(torch.nan_to_num((product + product.mT) / 2, 0.0, 0.0, 0.0))
    # Eigenvalues that are rounding errors are zero, and so is the map along them.
    floor = value.shape[-1] * torch.finfo(value.dtype).eps * value[..., -1:].clamp_min(0.0)
    root = torch.where(value > floor, value, 0.0).sqrt()
    inverse = torch.where(root > 0, 1 / torch.where(root > 0, root, 1.0), 0.0)
    half = stored.root @ vector
    squares = (stored.mean - mean).square().sum(1) + stored.trace + covariance.trace() - 2 * root.sum(1)
    return squares.clamp_min(0.0) + lost, (half * inverse[:, None, :]) @ half.mT + lost
