r"""Empirical characteristic functions $\phi(t) = \sum_i a_i e^{i t\cdot x_i}$, a block of frequencies at a time.

Sines and cosines are taken once; no array of points by frequencies is larger than a block.
"""

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Generator, Tensor
from torch.utils.checkpoint import checkpoint

from dmviz.cloud import mass_of, seeded
from dmviz.losses._compiled import over_rows
from dmviz.losses._lines import accurate
from dmviz.losses._pairs import DIRECT
from dmviz.losses._slicing import frames, gaussian

Spread = Literal["auto", "quasi_random", "orthogonal", "random"]
_BLOCK = 1 << 19  # numbers handled at once: few, so that they stay in the cache, yet enough for a quick product
_WIDE = 1 << 20  # the same where compiled sums need half the buffers


class Waves(NamedTuple):
    """Real and imaginary part of a characteristic function, in float64."""

    re: Tensor  # (L,)
    im: Tensor  # (L,)


Slope = Callable[[Waves, slice], tuple[Tensor, Waves]]
"""Waves of the particles at some of the frequencies -> (B,) the value there, and its derivatives by those waves."""


def frequencies(spread: Spread, count: int, dim: int, rng: Generator) -> Tensor:
    """(L, D) float64 frequencies, each standard normal."""
    if spread == "random" or (dim == 1 and spread == "orthogonal"):
        return gaussian((count, dim), rng)
    if spread == "orthogonal" or (spread == "auto" and dim > 3):
        blocks = frames(-(-count // dim), dim, min(count, dim), rng)  # (B, D, k)
        radius = gaussian((count, dim), rng).square().sum(1, keepdim=True).sqrt()
        return radius * blocks.transpose(1, 2).reshape(-1, dim)[:count]
    shift = torch.rand(dim, generator=rng, device=rng.device).to("cpu", torch.float64)
    normal: Tensor = torch.special.ndtri((_even_points(count, dim) + shift).frac().clamp(1e-9, 1 - 1e-9))
    return normal


@lru_cache(maxsize=32)
def fixed_frequencies(spread: Spread, count: int, dim: int, seed: int) -> Tensor:
    """The same for one seed, drawn once; kept, since a run asks for them at every step."""
    return frequencies(spread, count, dim, seeded(seed, 52))


@lru_cache(maxsize=32)
def _even_points(count: int, dim: int) -> Tensor:
    """(L, D) points of the unit cube spread more evenly than chance."""
    if dim > torch.quasirandom.SobolEngine.MAXDIM:
        raise ValueError(f"quasi_random frequencies exist in at most 21,201 dimensions, got {dim}. Choose auto.")
    engine = torch.quasirandom.SobolEngine(dim, scramble=True, seed=1)  # type: ignore[no-untyped-call]
    points: Tensor = engine.draw(count, dtype=torch.float64)
    return points


def blocks(count: int, width: int, most: int = _BLOCK) -> Iterator[slice]:
    """Ranges of frequencies, none of more than about `most` numbers."""
    size = max(1, most // max(width, 1))
    return (slice(first, min(first + size, count)) for first in range(0, count, size))


def waves(x: Tensor, weight: Tensor | None, t: Tensor, compiled: bool = False) -> Waves:
    """Characteristic function of points x (N, D) at frequencies t (L, D); differentiable in x."""
    mass = mass_of(x, weight)
    differentiable = torch.is_grad_enabled() and x.requires_grad
    if compiled and x.dtype == torch.float32 and not differentiable:
        return _compiled_waves(x, mass, t)
    if differentiable:  # blocks are computed again on the way back
        found = [
            checkpoint(_sums, x, mass, t[part], use_reentrant=False, preserve_rng_state=False)
            for part in blocks(len(t), len(x))
        ]
    else:
        found = [torch.stack((cos @ mass, sin @ mass)) for _, cos, sin in _turns(x, t, compiled)]
    return Waves(*torch.cat(found, 1).to(accurate(x)))


def _sums(x: Tensor, mass: Tensor, t: Tensor) -> Tensor:
    angle = t @ x.T  # (B, N)
    return torch.stack((angle.cos() @ mass, angle.sin() @ mass))


def follow(x: Tensor, weight: Tensor | None, t: Tensor, slope: Slope, compiled: bool = False) -> tuple[Tensor, Tensor]:
    """(N, D) minus the gradient over each particle's mass, and () value, of a sum over frequencies; no autograd."""
    mass = mass_of(x, weight)
    v, value = x.new_zeros(x.shape[::-1]), x.new_zeros((), dtype=accurate(x))
    if compiled and x.dtype == torch.float32:
        for part, angle in _half_turns(x, t):
            here = _compiled_sums(x, mass, t[part], angle)
            gained, by = slope(here, part)
            value += gained.sum()
            _compiled_pull(v, x, t[part], by, angle)
        return weighed(v.T, weight), value.to(x.dtype)
    for part, cos, sin in _turns(x, t, compiled):
        here = Waves((cos @ mass).to(value.dtype), (sin @ mass).to(value.dtype))
        gained, by = slope(here, part)
        value += gained.sum()
        _add_pull(v, t[part], by, cos, sin)
    return weighed(v.T, weight), value.to(x.dtype)


def pull(at: Tensor, t: Tensor, by: Waves, compiled: bool = False) -> Tensor:
    """(K, D) the same velocity at any points, given the derivatives `by` (L,) of the value by the waves."""
    v = at.new_zeros(at.shape[::-1])
    if compiled and at.dtype == torch.float32:
        for part, angle in _half_turns(at, t):
            _compiled_pull(v, at, t[part], Waves(by.re[part], by.im[part]), angle)
        return v.T.contiguous()
    for part, cos, sin in _turns(at, t, compiled):
        _add_pull(v, t[part], Waves(by.re[part], by.im[part]), cos, sin)
    return v.T.contiguous()


def _half_turns(x: Tensor, t: Tensor) -> Iterator[tuple[slice, Tensor | None]]:
    """Ranges of frequencies with the angles (B, N) of t.x there, in half turns, in a buffer that is used again.

    In few dimensions all of them and no angles: those are formed where they are needed.
    """
    if x.shape[1] <= DIRECT:
        yield slice(0, len(t)), None
        return
    t, buffer = t * (1.0 / math.pi), x.new_empty(min(len(t) * len(x), max(_WIDE, len(x))))
    for part in blocks(len(t), len(x), _WIDE):
        shape = (part.stop - part.start, len(x))
        yield part, torch.mm(t[part], x.T, out=buffer[: shape[0] * shape[1]].view(shape))


def _compiled_waves(x: Tensor, mass: Tensor, t: Tensor) -> Waves:
    found = [_compiled_sums(x, mass, t[part], angle) for part, angle in _half_turns(x, t)]
    return Waves(torch.cat([one.re for one in found]), torch.cat([one.im for one in found]))


def _compiled_sums(x: Tensor, mass: Tensor, t: Tensor, angle: Tensor | None) -> Waves:
    """Characteristic function at t (B, D), whose angles (B, N) may be known."""
    from dmviz.losses import _fused_more

    re, im = (torch.zeros(len(t), dtype=torch.float64) for _ in range(2))
    share = mass.detach().contiguous().numpy()
    points = x.detach().T.contiguous().numpy() if angle is None else None
    turns = t * (1.0 / math.pi)

    def work(i: slice) -> None:
        if angle is None:
            _fused_more.wave_sums(points, turns[i].numpy(), share, re[i].numpy(), im[i].numpy())
        else:
            _fused_more.angle_sums(angle[i].numpy(), share, re[i].numpy(), im[i].numpy())

    over_rows(work, len(t), len(t) * len(x))
    return Waves(re, im)


def _compiled_pull(v: Tensor, x: Tensor, t: Tensor, by: Waves, angle: Tensor | None) -> None:
    """As `_add_pull`: both waves of one frequency are one sine of another phase. The angles are used up."""
    from dmviz.losses import _fused_more

    size, phase = torch.hypot(by.re, by.im).to(t.dtype), (torch.atan2(by.im, by.re) / math.pi).to(t.dtype)
    if angle is None:
        points, turns = x.detach().T.contiguous().numpy(), (t * (1.0 / math.pi)).numpy()
        given = (points, turns, (size * math.pi).numpy(), phase.numpy())
        over_rows(lambda i: _fused_more.wave_pulls(*given, i.start, i.stop, v.numpy()), len(x), len(t) * len(x))
        return
    over_rows(
        lambda i: _fused_more.angle_sines(angle[i].numpy(), size[i].numpy(), phase[i].numpy()),
        len(t),
        len(t) * len(x),
    )
    v.addmm_(t.T, angle)


def _turns(x: Tensor, t: Tensor, compiled: bool) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Ranges of frequencies with the cosines and sines (B, N) of t.x there, in two buffers that are used again.

    Compiled, float32 sines and cosines come from one polynomial each, five times as fast as torch's.
    """
    compiled = compiled and x.dtype == torch.float32
    size = next(blocks(len(t), len(x))).stop
    one, two = x.new_empty(size * len(x)), x.new_empty(size * len(x))
    t = t * (2 / math.pi) if compiled else t  # in quarter turns
    for part in blocks(len(t), len(x)):
        shape = (part.stop - part.start, len(x))
        angle, cos = (buffer[: shape[0] * shape[1]].view(shape) for buffer in (one, two))
        torch.mm(t[part], x.T, out=angle)
        if compiled:
            from dmviz.losses import _fused

            _fused.turn_rows(angle.view(-1).numpy(), cos.view(-1).numpy())
        else:
            torch.cos(angle, out=cos)
            torch.sin(angle, out=angle)
        yield part, cos, angle


def _add_pull(v: Tensor, t: Tensor, by: Waves, cos: Tensor, sin: Tensor) -> None:
    """v (D, K) += sum_l t_l (by.re_l sin_l - by.im_l cos_l); `cos` and `sin` are used up."""
    re, im = by.re.to(t.dtype)[:, None], by.im.to(t.dtype)[:, None]
    if len(v) <= 8:  # two thin products cost less than another pass over the block
        v.addmm_((t * re).T, sin).addmm_((t * im).T, cos, alpha=-1)
    else:
        v.addmm_(t.T, sin.mul_(re).addcmul_(cos, im, value=-1))


def weighed(v: Tensor, weight: Tensor | None) -> Tensor:
    """Velocities (N, D) as a loss hands them out: a particle without weight has none."""
    return v.contiguous() if weight is None else torch.where(weight[:, None] > 0, v, 0.0)


def by_frequency(x: Tensor, weight: Tensor | None, t: Tensor, by: Waves, compiled: bool = False) -> Tensor:
    """(L, D) gradient by the frequencies themselves, given the derivatives `by` (L,) of the value by the waves."""
    share, found = mass_of(x, weight)[:, None] * x, []
    for part, cos, sin in _turns(x, t, compiled):
        re, im = by.re[part].to(t.dtype)[:, None], by.im[part].to(t.dtype)[:, None]
        found.append(cos.mul_(im).addcmul_(sin, re, value=-1) @ share)
    return torch.cat(found)


KNOTS, REACH = 17, 3.0
"""Waves along a line are compared at 17 evenly spaced frequencies from 0 to 3, as LeJEPA does."""


def knots() -> tuple[Tensor, Tensor]:
    """(17,) frequencies t and their shares of an integral over the whole line under exp(-t^2 / 2): a trapezoid rule,
    doubled since waves at t and -t are conjugate."""
    step = REACH / (KNOTS - 1)
    t = torch.arange(KNOTS, dtype=torch.float64) * step
    share = torch.full_like(t, 2 * step)
    share[0] = share[-1] = step
    return t, share * (-0.5 * t.square()).exp()


def line_waves(x: Tensor, weight: Tensor | None, theta: Tensor) -> Waves:
    """(K, 17) characteristic functions of x (N, D) along lines theta (K, D) at the knots; differentiable in x."""
    mass, t, found = mass_of(x, weight), knots()[0].to(x), []
    for part in blocks(len(theta), KNOTS * len(x)):
        if torch.is_grad_enabled() and x.requires_grad:  # blocks are computed again on the way back
            found.append(checkpoint(_line_sums, x, mass, theta[part], t, use_reentrant=False, preserve_rng_state=False))
        else:
            cos, sin = _ladder(theta[part], x)
            found.append(torch.stack((cos @ mass, sin @ mass)))
    return Waves(*torch.cat(found, 1).to(accurate(x)))


def _line_sums(x: Tensor, mass: Tensor, theta: Tensor, t: Tensor) -> Tensor:
    angle = t[:, None] * (theta @ x.T)[:, None, :]  # (B, 17, N)
    return torch.stack((angle.cos() @ mass, angle.sin() @ mass))


def line_gap(here: Waves, there: Waves) -> Tensor:
    """() mean over lines of the integral of |here - there|^2 under exp(-t^2 / 2)."""
    squares = (here.re - there.re).square() + (here.im - there.im).square()
    return (squares @ knots()[1].to(squares)).mean()


def follow_lines(x: Tensor, weight: Tensor | None, theta: Tensor, there: Waves) -> tuple[Tensor, Tensor]:
    """(N, D) velocity and () value of `line_gap`, in blocks of lines; `there` is (K, 17), or (1, 17) for all."""
    mass = mass_of(x, weight)
    v, value = x.new_zeros(x.shape[::-1]), x.new_zeros((), dtype=accurate(x))
    for part in blocks(len(theta), KNOTS * len(x)):
        cos, sin = _ladder(theta[part], x)
        here = Waves((cos @ mass).to(value.dtype), (sin @ mass).to(value.dtype))
        other = Waves(*(w if len(w) == 1 else w[part] for w in there))
        value += line_gap(here, other) * len(here.re)
        _add_line_pull(v, theta[part], line_slope(here, other, len(theta)), cos, sin)
    return weighed(v.T, weight), (value / len(theta)).to(x.dtype)


def line_slope(here: Waves, there: Waves, lines: int) -> Waves:
    """(B, 17) derivatives of `line_gap` over `lines` by the waves, times t."""
    t, share = (one.to(here.re) for one in knots())
    return Waves(*(2 * share * t / lines * (mine - other) for mine, other in zip(here, there, strict=True)))


def pull_lines(at: Tensor, theta: Tensor, by: Waves) -> Tensor:
    """(K, D) the same velocity at any points, given `line_slope`."""
    v = at.new_zeros(at.shape[::-1])
    for part in blocks(len(theta), KNOTS * len(at)):
        _add_line_pull(v, theta[part], Waves(by.re[part], by.im[part]), *_ladder(theta[part], at))
    return v.T.contiguous()


def _add_line_pull(v: Tensor, theta: Tensor, by: Waves, cos: Tensor, sin: Tensor) -> None:
    along = torch.bmm(by.re.to(v.dtype)[:, None], sin) - torch.bmm(by.im.to(v.dtype)[:, None], cos)  # (B, 1, N)
    v.addmm_(theta.T, along[:, 0])


def _ladder(theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines (B, 17, N) at the knots: one of each, and turns by 1, 2, 4 and 8 steps for the rest."""
    step = REACH / (KNOTS - 1)
    angle = (theta @ x.T).mul_(step)  # (B, N)
    cos, sin = (angle.new_empty(len(theta), KNOTS, len(x)) for _ in range(2))
    cos[:, 0], sin[:, 0] = 1.0, 0.0
    torch.cos(angle, out=cos[:, 1])
    torch.sin(angle, out=sin[:, 1])
    k = 1
    while k < KNOTS - 1:
        c, s, low, high = cos[:, k : k + 1], sin[:, k : k + 1], slice(1, k + 1), slice(k + 1, 2 * k + 1)
        torch.mul(cos[:, low], c, out=cos[:, high]).addcmul_(sin[:, low], s, value=-1)
        torch.mul(sin[:, low], c, out=sin[:, high]).addcmul_(cos[:, low], s)
        k *= 2
    return cos, sin
