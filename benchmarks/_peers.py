"""The same values and gradients by other libraries, and by hand in plain torch.

Every function returns a call that works out the gradient of one loss in X (N, D) anew each time. Values follow the
conventions of dmviz (powers, no factor 1/2), so that gradients can be compared; libraries are imported when asked for.
"""

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

Gradient = Callable[[], Tensor]
Value = Callable[[Tensor], Tensor]


def installed(module: str) -> str:
    """Version of a peer, or "" where it does not import."""
    try:
        found = import_module(module)
    except Exception:  # a peer may fail to build or to start in many ways: it is then left out
        return ""
    return str(getattr(found, "__version__", "?"))


def by_autograd(value: Value, x: Tensor) -> Gradient:
    """Value, then the backward pass."""

    def gradient() -> Tensor:
        leaf = x.detach().requires_grad_(True)
        (found,) = torch.autograd.grad(value(leaf), leaf)
        return found

    return gradient


# ------------------------------------------------------------------------------------------------- sliced Wasserstein


def pot_sliced(x: Tensor, y: Tensor, theta: Tensor) -> Gradient:
    import ot

    lines = theta.T.contiguous()  # (D, L)
    return by_autograd(lambda z: ot.sliced_wasserstein_distance(z, y, projections=lines, p=2) ** 2, x)


def hand_sliced(x: Tensor, y: Tensor, theta: Tensor) -> Gradient:
    lines = theta.T.contiguous()

    def value(z: Tensor) -> Tensor:
        return ((z @ lines).sort(0).values - (y @ lines).sort(0).values).square().mean()

    return by_autograd(value, x)


def ott_sliced(x: Tensor, y: Tensor, theta: Tensor) -> Gradient:
    jnp = _jax().numpy
    sliced = import_module("ott.tools.sliced").sliced_wasserstein
    lines = jnp.asarray(theta.T.numpy())

    def value(z: Any, there: Any) -> Any:
        return sliced(z, there, proj_fn=lambda cloud: cloud @ lines)[0]

    return _compiled_by_jax(value, x, y)


# ---------------------------------------------------------------------------------------------------------- all pairs


def hand_energy(x: Tensor, y: Tensor) -> Gradient:
    def value(z: Tensor) -> Tensor:
        return 2 * torch.cdist(z, y).mean() - torch.cdist(z, z).mean() - torch.cdist(y, y).mean()

    return by_autograd(value, x)


def hand_gaussian(x: Tensor, y: Tensor, length: float) -> Gradient:
    def overlap(z: Tensor, w: Tensor) -> Tensor:
        return (torch.cdist(z, w).square() * (-0.5 / length**2)).exp().mean()

    return by_autograd(lambda z: overlap(z, z) + overlap(y, y) - 2 * overlap(z, y), x)


def geomloss_pairs(kernel: str, x: Tensor, y: Tensor, length: float) -> Gradient:
    """GeomLoss, which returns half of the value, with all pairs in memory."""
    loss = import_module("geomloss").SamplesLoss(kernel, blur=length, backend="tensorized")
    return by_autograd(lambda z: 2 * loss(z, y), x)


def keops_pairs(kernel: str, x: Tensor, y: Tensor, length: float) -> Gradient:
    """A KeOps formula for the kernel, reduced without storing pairs; compiled here, not in the call."""
    lazy = _lazy_tensor()

    def overlap(z: Tensor, w: Tensor) -> Tensor:
        apart = ((lazy(z[:, None].contiguous()) - lazy(w[None].contiguous())) ** 2).sum(-1)
        k = -apart.sqrt() if kernel == "energy" else (apart * (-0.5 / length**2)).exp()
        return k.sum(1).mean() / len(w)

    def value(z: Tensor, w: Tensor) -> Tensor:
        return overlap(z, z) + overlap(w, w) - 2 * overlap(z, w)

    by_autograd(lambda z: value(z, y[:8]), x[:8])()
    return by_autograd(lambda z: value(z, y), x)


# ----------------------------------------------------------------------------------------------------------- Sinkhorn


def geomloss_sinkhorn(backend: str, x: Tensor, y: Tensor, blur: float, scaling: float = 0.5) -> Gradient:
    """GeomLoss; .5 is its default scaling, nearer to 1 is slower and more exact."""
    if backend != "tensorized":
        _lazy_tensor()
    loss = import_module("geomloss").SamplesLoss("sinkhorn", p=2, blur=blur, scaling=scaling, backend=backend)
    if backend != "tensorized":  # compile its formulas before the clock starts
        by_autograd(lambda z: loss(z, y[:64].contiguous()), x[:64].contiguous())()
    return by_autograd(lambda z: loss(z, y), x)


def ott_sinkhorn(x: Tensor, y: Tensor, blur: float) -> Gradient:
    """OTT's cost is |x - y|^2, twice ours, so its epsilon and its value are twice ours; its default threshold."""
    _jax()
    divergence = import_module("ott.tools.sinkhorn_divergence").sinkdiv

    def value(z: Any, there: Any) -> Any:
        return 0.5 * divergence(z, there, epsilon=2 * blur**2)[0]

    return _compiled_by_jax(value, x, y)


# ---------------------------------------------------------------------------------------------- Gaussians, Stein, trees


def pot_bures(x: Tensor, y: Tensor) -> Gradient:
    import ot

    def moments(z: Tensor) -> tuple[Tensor, Tensor]:
        return z.mean(0), torch.cov(z.T, correction=0).reshape(z.shape[1], z.shape[1])

    def value(z: Tensor) -> Tensor:
        (m1, s1), (m2, s2) = moments(z), moments(y)
        return ot.gaussian.bures_wasserstein_distance(m1, m2, s1, s2) ** 2

    return by_autograd(value, x)


def hand_svgd(x: Tensor, score: Callable[[Tensor], Tensor], length: float) -> Gradient:
    """The SVGD direction as it is usually written, with the whole kernel matrix."""

    def direction() -> Tensor:
        k = (torch.cdist(x, x).square() * (-0.5 / length**2)).exp()
        return (k @ score(x) + (x * k.sum(1, keepdim=True) - k @ x) / length**2) / len(x)

    return direction


def authors_tree(x: Tensor, y: Tensor, root: Tensor, theta: Tensor, delta: float) -> Gradient:
    """Db-TSW, p = 1, in the authors' formulation, written again from its definition: T x k x N x D tensors, autograd.

    root (T, D), theta (T, k, D). It is not their code, but takes its steps: every projected point in space, distances
    to the lines, a softmax over the lines, one sort of both clouds a line, running sums from both ends to the root.
    """

    def seen(z: Tensor) -> tuple[Tensor, Tensor]:
        z = z[None] - root[:, None]  # (T, N, D)
        at = torch.einsum("tnd,tkd->tkn", z, theta)
        foot = at[..., None] * theta[:, :, None]  # (T, k, N, D)
        apart = (z[:, None] - foot).norm(dim=-1)
        return at, torch.softmax(-delta * apart, dim=1) / z.shape[1]

    def value(z: Tensor) -> Tensor:
        (at, mass), (at_y, mass_y) = seen(z), seen(y)
        place, order = torch.cat((at, at_y), -1).sort(-1)  # (T, k, N + M)
        signed = torch.cat((mass, -mass_y), -1).gather(-1, order)
        left = signed.cumsum(-1)
        right = signed.flip(-1).cumsum(-1).flip(-1)
        # An edge runs from a point to its neighbour nearer to the root, which lies at 0.
        inner_left = torch.cat((place[..., 1:], torch.zeros_like(place[..., :1])), -1).clamp_max(0)
        inner_right = torch.cat((torch.zeros_like(place[..., :1]), place[..., :-1]), -1).clamp_min(0)
        beyond = torch.where(place < 0, (inner_left - place) * left.abs(), (place - inner_right) * right.abs())
        return beyond.sum((1, 2)).mean()

    return by_autograd(value, x)


# ------------------------------------------------------------------------------------------------------------ the rest


def _lazy_tensor() -> Any:
    import pykeops

    pykeops.set_verbose(False)
    return import_module("pykeops.torch").LazyTensor


def _jax() -> Any:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    return import_module("jax")


def _compiled_by_jax(value: Callable[[Any, Any], Any], x: Tensor, y: Tensor) -> Gradient:
    jax = _jax()
    here, there = jax.numpy.asarray(x.numpy()), jax.numpy.asarray(y.numpy())
    run = jax.jit(jax.grad(value)).lower(here, there).compile()
    return lambda: torch.from_numpy(jax.device_get(run(here, there)).copy())
