"""The uniform law on an interval, blurred by Gaussian noise: the piece that squares and boards are made of."""

import math

import torch
from torch import Tensor

from dmviz.shapes._law import has_density

_ROOT2, _ROOT2PI = math.sqrt(2), math.sqrt(2 * math.pi)


def box_law(x: Tensor, half: float, noise: float) -> tuple[Tensor, Tensor]:
    r"""Log density and score at x, in each number alone, of U + noise N with U uniform on [-half, half].

    $$ p(x) = \frac{\Phi(u) - \Phi(v)}{2h}, \qquad u, v = (|x| \pm h) / s $$

    Outside, where both are close to 1, the scaled complement erfcx keeps all digits. With noise 0 the density is
    1 / 2h inside and 0 outside, and the score is 0.
    """
    t = x.abs()
    if not has_density(noise):
        flat = torch.full_like(t, -math.log(2 * half))
        return torch.where(t <= half, flat, -math.inf), torch.zeros_like(t)
    v, u = (t - half) / noise, (t + half) / noise
    # Only the branch in use may see its own numbers: the other's infinities would poison the gradient.
    far, near = v.clamp_min(0), v.clamp_max(0)
    fade = torch.exp((far - u) * (far + u) / 2)  # phi(u) / phi(v)
    tail = (torch.special.erfcx(far / _ROOT2) - fade * torch.special.erfcx(u / _ROOT2)) / 2
    body = (torch.erf(u / _ROOT2) - torch.erf(near / _ROOT2)) / 2
    outside = v > 0
    log_prob = torch.where(outside, tail.log() - far.square() / 2, body.log()) - math.log(2 * half)
    slope_out = (fade - 1) / (_ROOT2PI * noise * tail)
    slope_in = (torch.exp(-u.square() / 2) - torch.exp(-near.square() / 2)) / (_ROOT2PI * noise * body)
    return log_prob, torch.where(outside, slope_out, slope_in) * x.sign()
