import base64
import binascii
import math
from collections.abc import Iterable
from typing import Annotated, ClassVar

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.params import Help, Range, entry
from dmviz.shapes._law import gauss, has_density, mixture_law

MOST_POINTS = 5_000
STEP = 1e-3
"""Length of one unit of the compact text: coordinates are kept to half of this, within 32.767 of the origin."""

_HEART = (  # (1.6 sin^3 t, 1.3 cos t - 0.5 cos 2t - 0.2 cos 3t - 0.1 cos 4t), 40 points
    [
        (
            1.8 * math.sin(t) ** 3,
            1.46 * math.cos(t) - 0.56 * math.cos(2 * t) - 0.22 * math.cos(3 * t) - 0.11 * math.cos(4 * t),
        )
        for t in (2 * math.pi * (i + 0.5) / 40 for i in range(40))
    ]
)


def encode(points: Iterable[tuple[float, float]] | Tensor) -> str:
    """Points (K, 2) as compact text for the link: base64url of little-endian 16-bit numbers in steps of 0.001.

    Coordinates beyond 32.767 are cut to it. Raises ValueError above 5,000 points and where a number is not finite.

    >>> decode(encode([(1.0, -0.5), (0.25, 32.0)])).tolist()
    [[1.0, -0.5], [0.25, 32.0]]
    """
    pairs = torch.as_tensor(points if isinstance(points, Tensor) else list(points), dtype=torch.float64).reshape(-1, 2)
    if len(pairs) > MOST_POINTS:
        raise ValueError(f"Drawn: points must be at most {MOST_POINTS:,}, got {len(pairs):,}")
    if not pairs.isfinite().all():
        raise ValueError("Drawn: points must be finite numbers")
    whole = (pairs / STEP).round().clamp(-32767, 32767).to(torch.int16)
    raw = b"".join(int(number).to_bytes(2, "little", signed=True) for number in whole.flatten())
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def decode(text: str) -> Tensor:
    """(K, 2) float64 points from compact text, or from plain text such as `0,0; 1,0.5`.

    Raises ValueError, one sentence, where the text is neither.
    """
    if "," in text:
        pairs = _plain(text)
    else:
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            must = "Drawn: points must be compact text or pairs such as 0,0; 1,0.5, got"
            raise ValueError(f"{must} {_short(text)}") from None
        if len(raw) % 4:
            raise ValueError(f"Drawn: points must be whole pairs, and {_short(text)} ends inside one")
        whole = [int.from_bytes(raw[i : i + 2], "little", signed=True) for i in range(0, len(raw), 2)]
        pairs = torch.tensor(whole, dtype=torch.float64).reshape(-1, 2) * STEP
    if not 1 <= len(pairs) <= MOST_POINTS:
        raise ValueError(f"Drawn: points must be 1 to {MOST_POINTS:,} pairs, got {len(pairs):,}")
    return pairs


def _plain(text: str) -> Tensor:
    pairs = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        try:
            a, b = (float(number) for number in part.split(","))
        except ValueError:
            raise ValueError(f"Drawn: points must be pairs such as 0,0; 1,0.5, got {_short(part)}") from None
        if not max(abs(a), abs(b)) <= 32767 * STEP:
            raise ValueError(f"Drawn: points must lie within {32767 * STEP:g} of the origin, got {_short(part)}")
        pairs.append((a, b))
    return torch.tensor(pairs, dtype=torch.float64).reshape(-1, 2)


def _short(text: str) -> str:
    return repr(text if len(text) <= 30 else text[:27] + "...")


@entry
class Drawn:
    r"""Points that you drew yourself, and, with noise, a soft cloud around each.

    $$ p(x) = \tfrac1K \sum_k \mathcal N(x;\, p_k,\, s^2 I) $$

    n points are dealt out evenly: every drawn point gets n / K of them, rounded up or down by chance. With noise the
    law has a density and a score; without, it sits on the points alone.

    >>> from dmviz.cloud import seeded
    >>> Drawn(points="0,0; 1,2", noise=0.0).sample(4, seeded(0)).x.sum(0).tolist()  # each of them twice
    [2.0, 4.0]
    """

    title: ClassVar[str] = "Drawn by hand"
    source: ClassVar[tuple[str, ...]] = ()

    points: Annotated[
        str, Help("the points, as the drawing tool writes them, or as pairs: 0,0; 1,0.5", most=27_000)
    ] = encode(_HEART)
    noise: Annotated[float, Range(0, 3, unit="length", help="standard deviation of the blur")] = 0.08

    def __post_init__(self) -> None:
        decode(self.points)

    def sample(self, n: int, rng: Generator) -> Cloud:
        drawn = decode(self.points)
        rounds = max(1, -(-n // len(drawn)))
        order = torch.cat([torch.randperm(len(drawn), generator=rng, device=rng.device).cpu() for _ in range(rounds)])
        x = drawn[order[:n]] + self.noise * gauss((n, 2), rng)
        if not has_density(self.noise):
            return Cloud(x.float())
        score, log_prob = mixture_law(drawn, torch.ones(len(drawn)), self.noise)
        return Cloud(x.float(), score=score, log_prob=log_prob)
