# mypy: ignore-errors
# (numba reads these functions as they are; annotations would only repeat what it infers)
"""Pair sums compiled by numba: difference, kernel and row sums in one pass over tiles that stay in the first cache.

Each function takes points of one precision and sums tiles in that precision, tiles in float64. `y` comes transposed,
(D, M), so that inner loops run over neighbours in memory and vectorise. Imported only by `_compiled.warm`.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

# Sums may be taken in any order; NaN and infinity keep their meaning, so that a broken step is seen.
_LOOSE = {"reassoc", "contract", "arcp", "nsz"}
_OPTIONS = {"nogil": True, "cache": True, "error_model": "numpy", "fastmath": _LOOSE}

TILE, ROWS = 1024, 64
DISTANCE, GAUSSIAN, LAPLACIAN, IMQ, RATIONAL = 0, 1, 2, 3, 4
CODES = {
    "distance": DISTANCE,
    "gaussian": GAUSSIAN,
    "laplacian": LAPLACIAN,
    "imq": IMQ,
    "rational_quadratic": RATIONAL,  # its numbers are its bandwidth, then its exponents
}

_TWO_TO = [math.log(2.0) ** k / math.factorial(k) for k in range(14)]  # 2^f = sum _TWO_TO[k] f^k
T1, T2, T3, T4, T5, T6, T7, T8, T9, T10, T11, T12, T13 = _TWO_TO[1:]
# The same in float32: interpolated at Chebyshev points of [-1/2, 1/2], relative error 3e-9.
S0, S1, S2, S3 = (
    np.float32(1.0),
    np.float32(0.6931472067028329),
    np.float32(0.24022650922289554),
    np.float32(0.05550327),
)
S4, S5, S6 = np.float32(0.00961805667843204), np.float32(0.0013400428177711937), np.float32(0.00015461444724808513)
LOG2E32, LOG2E = np.float32(1.4426950408889634), 1.4426950408889634
HALF32, LOW32, ZERO32 = np.float32(0.5), np.float32(-125.0), np.float32(0.0)
ONE32, TINY32 = np.float32(1.0), np.float32(1e-30)
LN2, LN2_32, ROOT2, ROOT2_32 = math.log(2.0), np.float32(math.log(2.0)), math.sqrt(2.0), np.float32(math.sqrt(2.0))
# log m = 2 artanh z = 2 (z + z^3 / 3 + z^5 / 5 ...), z = (m - 1) / (m + 1), at most 0.172 for m within a root of 2.
L3, L5, L7, L9 = (np.float32(1 / k) for k in (3, 5, 7, 9))


@intrinsic
def _float_of_bits(context: Any, bits: Any) -> Any:
    """The float32 or float64 with these bits."""
    out = types.float32 if bits == types.int32 else types.float64

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType() if out == types.float32 else ir.DoubleType())

    return out(bits), generate


@intrinsic
def _bits_of_float(context: Any, number: Any) -> Any:
    """The bits of a float32 or float64, as a whole number of that width."""
    out = types.int32 if number == types.float32 else types.int64

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32 if out == types.int32 else 64))

    return out(number), generate


def _log(u):
    """log u for finite u >= 1: exponent from the bits, a series for the rest."""
    return math.log(u)


@overload(_log)
def _log_of(u):
    if u == types.float32:

        def log32(u):
            bits = _bits_of_float(u)
            n = np.int32(bits >> np.int32(23)) - np.int32(127)
            m = _float_of_bits(np.int32((bits & np.int32(0x7FFFFF)) | np.int32(0x3F800000)))
            above = m > ROOT2_32
            m = m * HALF32 if above else m
            z = (m - ONE32) / (m + ONE32)
            z2 = z * z
            p = z + z * z2 * (L3 + z2 * (L5 + z2 * (L7 + z2 * L9)))
            return np.float32(n) * LN2_32 + (p + p + (LN2_32 if above else ZERO32))

        return log32

    def log64(u):
        bits = _bits_of_float(u)
        n = np.int64(bits >> np.int64(52)) - np.int64(1023)
        m = _float_of_bits(np.int64((bits & np.int64(0xFFFFFFFFFFFFF)) | np.int64(0x3FF0000000000000)))
        above = m > ROOT2
        m = m * 0.5 if above else m
        z = (m - 1.0) / (m + 1.0)
        z2 = z * z
        p = 1 / 13 + z2 * (1 / 15 + z2 * (1 / 17 + z2 * (1 / 19 + z2 * (1 / 21))))
        p = 1 / 3 + z2 * (1 / 5 + z2 * (1 / 7 + z2 * (1 / 9 + z2 * (1 / 11 + z2 * p))))
        p = z + z * z2 * p
        return np.float64(n) * LN2 + (p + p + (LN2 if above else 0.0))

    return log64


def _exp(t):
    """e^t for t <= 0, and 0 below e^-86 in float32: a polynomial, since numba has no vector exp of its own."""
    return math.exp(t)


@overload(_exp)
def _exp_of(t):
    if t == types.float32:

        def exp32(t):
            u = max(t * LOG2E32, LOW32)
            n = np.floor(u + HALF32)
            f = u - n
            p = S0 + f * (S1 + f * (S2 + f * (S3 + f * (S4 + f * (S5 + f * S6)))))
            e = p * _float_of_bits(np.int32((np.int32(n) + np.int32(127)) << np.int32(23)))
            return e if u > LOW32 else ZERO32

        return exp32

    def exp64(t):
        u = max(t * LOG2E, -1000.0)
        n = np.floor(u + 0.5)
        f = u - n
        p = T7 + f * (T8 + f * (T9 + f * (T10 + f * (T11 + f * (T12 + f * T13)))))
        p = 1.0 + f * (T1 + f * (T2 + f * (T3 + f * (T4 + f * (T5 + f * (T6 + f * p))))))
        return p * _float_of_bits(np.int64((np.int64(n) + np.int64(1023)) << np.int64(52)))

    return exp64


def _inverse_root(r2):
    """1 / sqrt(r2); a large finite number at 0, where every difference that it multiplies is 0."""
    return 1.0 / math.sqrt(r2) if r2 > 0.0 else 0.0


@overload(_inverse_root)
def _inverse_root_of(r2):
    if r2 == types.float32:

        def root32(r2):
            # Compiled to the processor's estimate and one Newton step where it has one: right to 2e-7.
            return ONE32 / math.sqrt(r2 if r2 > TINY32 else TINY32)

        return root32

    def root64(r2):
        return 1.0 / math.sqrt(r2) if r2 > 0.0 else 0.0

    return root64


@njit(**_OPTIONS)
def _squares_of(x, i, y, j0, n, r2):
    """r2[:n] = |x_i - y_j|^2 for the n points from j0 on."""
    dim = x.shape[1]
    first, row = x[i, 0], y[0, j0 : j0 + n]
    if dim % 2:
        for j in range(n):
            z = first - row[j]
            r2[j] = z * z
    else:
        second, next_row = x[i, 1], y[1, j0 : j0 + n]
        for j in range(n):
            z, t = first - row[j], second - next_row[j]
            r2[j] = z * z + t * t
    for d in range(2 - dim % 2, dim, 2):  # two coordinates at a time: half the passes
        first, second, row, next_row = x[i, d], x[i, d + 1], y[d, j0 : j0 + n], y[d + 1, j0 : j0 + n]
        for j in range(n):
            z, t = first - row[j], second - next_row[j]
            r2[j] += z * z + t * t


@njit(**_OPTIONS)
def _weigh(code, lengths, r2, n, b, w):
    """w[:n] = k'(r) / r, and the sum of b k over the tile. `r2` is kept."""
    total = r2.dtype.type(0)
    one = r2.dtype.type(1)
    if code == DISTANCE:
        for j in range(n):
            inverse = _inverse_root(r2[j])
            w[j] = -inverse
            total -= r2[j] * inverse * b[j]
    elif code == LAPLACIAN:
        c = -one / lengths[0]
        for j in range(n):
            inverse = _inverse_root(r2[j])
            k = _exp(r2[j] * inverse * c)
            w[j] = c * inverse * k
            total += k * b[j]
    elif code == IMQ:
        c = one / (lengths[0] * lengths[0])
        for j in range(n):
            k = _inverse_root(one + r2[j] * c)
            w[j] = -c * k * k * k
            total += k * b[j]
    elif code == RATIONAL:
        c = one / (lengths[0] * lengths[0])
        for scale in range(1, len(lengths)):
            alpha = lengths[scale]
            half = c / (alpha + alpha)
            if alpha == one:  # the middle of the mix needs no power
                for j in range(n):
                    k = one / (one + r2[j] * half)
                    pull = -c * k * k
                    w[j] = pull if scale == 1 else w[j] + pull
                    total += k * b[j]
                continue
            for j in range(n):
                u = one + r2[j] * half
                k = _exp(-alpha * _log(u))
                pull = -c * k / u
                w[j] = pull if scale == 1 else w[j] + pull
                total += k * b[j]
    else:
        for scale in range(len(lengths)):
            c = -one / (lengths[scale] * lengths[scale])
            half = c / (one + one)
            for j in range(n):
                k = _exp(r2[j] * half)
                w[j] = c * k if scale == 0 else w[j] + c * k
                total += k * b[j]
    return total


@njit(**_OPTIONS)
def _sum_of(code, lengths, r2, n, b):
    """The sum of b k over the tile alone, with exactly rounded square roots."""
    total = r2.dtype.type(0)
    one = r2.dtype.type(1)
    if code == DISTANCE:
        for j in range(n):
            total -= math.sqrt(r2[j]) * b[j]
    elif code == LAPLACIAN:
        c = -one / lengths[0]
        for j in range(n):
            total += _exp(math.sqrt(r2[j]) * c) * b[j]
    elif code == IMQ:
        c = one / (lengths[0] * lengths[0])
        for j in range(n):
            total += _inverse_root(one + r2[j] * c) * b[j]
    elif code == RATIONAL:
        c = one / (lengths[0] * lengths[0])
        for scale in range(1, len(lengths)):
            alpha = lengths[scale]
            half = c / (alpha + alpha)
            for j in range(n):
                total += _exp(-alpha * _log(one + r2[j] * half)) * b[j]
    else:
        for length in lengths:
            half = -one / (length * length * (one + one))
            for j in range(n):
                total += _exp(r2[j] * half) * b[j]
    return total


@njit(**_OPTIONS)
def kernel_rows(x, y, b, code, lengths, s, grad, want_grad, first):
    """s_i = sum_j b_j k(x_i, y_j) and grad_i, its gradient, for x (N, D) and y (D, M).

    Where `first` is not negative x_i is the point first + i of y, and only points after it are summed.
    """
    r2, w = np.empty(TILE, x.dtype), np.empty(TILE, x.dtype)
    for i in range(x.shape[0]):
        for j0 in range(first + i + 1 if first >= 0 else 0, y.shape[1], TILE):
            n = min(TILE, y.shape[1] - j0)
            share = b[j0 : j0 + n]
            _squares_of(x, i, y, j0, n, r2)
            if not want_grad:
                s[i] += _sum_of(code, lengths, r2, n, share)
                continue
            s[i] += _weigh(code, lengths, r2, n, share, w)
            dim, row = x.shape[1], y[0, j0 : j0 + n]
            if dim % 2:
                here, part = x[i, 0], x.dtype.type(0)
                for j in range(n):
                    part += w[j] * share[j] * (here - row[j])
                grad[i, 0] += part
            for d in range(dim % 2, dim, 2):
                here, there, row, next_row = x[i, d], x[i, d + 1], y[d, j0 : j0 + n], y[d + 1, j0 : j0 + n]
                part, next_part = x.dtype.type(0), x.dtype.type(0)
                for j in range(n):
                    pull = w[j] * share[j]
                    part += pull * (here - row[j])
                    next_part += pull * (there - next_row[j])
                grad[i, d] += part
                grad[i, d + 1] += next_part


@njit(**_OPTIONS)
def own_rows(x, y, a, code, lengths, lane, lanes, s, grad):
    """Each pair i < j of x (N, D), y = x^T, once, for every `lanes`-th block of rows i.

    Adds sum_j a_j k_ij to s_i, and to grad (D, N) what the pair adds to the gradient at i and at j.
    """
    count = y.shape[1]
    r2, w, far = np.empty(TILE, x.dtype), np.empty(TILE, x.dtype), np.empty((*y.shape[:1], TILE), x.dtype)
    for i0 in range(lane * ROWS, count, lanes * ROWS):
        for j0 in range(i0, count, TILE):
            end = min(j0 + TILE, count)
            far[:] = 0
            for i in range(i0, min(i0 + ROWS, end - 1)):
                start = max(j0, i + 1)
                n = end - start
                share, mine = a[start:end], a[i]
                _squares_of(x, i, y, start, n, r2)
                s[i] += _weigh(code, lengths, r2, n, share, w)
                for d in range(y.shape[0]):
                    here, row, there = x[i, d], y[d, start:end], far[d, start - j0 : end - j0]
                    part = x.dtype.type(0)
                    for j in range(n):
                        pull = w[j] * (here - row[j])
                        part += share[j] * pull
                        there[j] += mine * pull
                    grad[d, i] += part
            for d in range(y.shape[0]):
                for j in range(end - j0):
                    grad[d, j0 + j] -= far[d, j]


@njit(**_OPTIONS)
def weigh_products(g, x, y, x2, y2, b, code, lengths, close, s, want_grad):
    """In place g = x . y^T (B, C) -> k'(r) / r, with row sums of b k; y (C, D). Pairs closer than `close` exactly."""
    size = g.shape[1]
    r2 = np.empty(size, g.dtype)
    two, zero, farthest = g.dtype.type(2), g.dtype.type(0), np.max(y2)
    for i in range(g.shape[0]):
        row, near, here = g[i], 0, x2[i]
        bound = close * (here + farthest)
        for j in range(size):
            r2[j] = max(here + y2[j] - two * row[j], zero)
            near += r2[j] < bound
        if near > 0:
            for j in range(size):
                if r2[j] < bound:
                    exact = zero
                    for d in range(x.shape[1]):
                        z = x[i, d] - y[j, d]
                        exact += z * z
                    r2[j] = exact
        if not want_grad:
            s[i] += _sum_of(code, lengths, r2, size, b)
            continue
        s[i] += _weigh(code, lengths, r2, size, b, row)
        if near > 0:
            for j in range(size):
                if r2[j] == zero:  # where two points meet there is no direction to go
                    row[j] = zero


@njit(**{**_OPTIONS, "fastmath": True})
def _largest(z, n):
    top = z[0]
    for j in range(1, n):
        if z[j] > top:  # max() would not vectorise
            top = z[j]
    return top


@njit(**_OPTIONS)
def stein_rows(x, s, y, s_y, a, code, length, u, grad, by_score):
    """Sums of the Stein kernel u_ij, its gradient at fixed scores, and its derivative in the score (see `_stein`)."""
    dim = x.shape[1]
    r2, dot, along = np.empty(TILE, x.dtype), np.empty(TILE, x.dtype), np.empty(TILE, x.dtype)
    pull, w = np.empty(TILE, x.dtype), np.empty(TILE, x.dtype)
    one = x.dtype.type(1)
    c = one / (length * length)
    half, three, five = -c / (one + one), x.dtype.type(3), x.dtype.type(5)
    d0, d2 = x.dtype.type(dim), x.dtype.type(dim + 2)
    for i in range(x.shape[0]):
        for j0 in range(0, y.shape[1], TILE):
            n = min(TILE, y.shape[1] - j0)
            _squares_of(x, i, y, j0, n, r2)
            for d in range(dim):
                here, row, pushed, other = x[i, d], y[d, j0 : j0 + n], s[i, d], s_y[d, j0 : j0 + n]
                if d == 0:
                    for j in range(n):
                        dot[j] = pushed * other[j]
                        along[j] = (here - row[j]) * (pushed - other[j])
                else:
                    for j in range(n):
                        dot[j] += pushed * other[j]
                        along[j] += (here - row[j]) * (pushed - other[j])
            part, share = x.dtype.type(0), a[j0 : j0 + n]
            for j in range(n):
                if code == GAUSSIAN:
                    k = _exp(r2[j] * half)
                    k1, k2, k3 = -c * k, c * c * k, -c * c * c * k
                else:
                    k = _inverse_root(one + r2[j] * c)
                    inverse = k * k
                    k1 = -c * inverse * k
                    k2 = -three * c * inverse * k1
                    k3 = -five * c * inverse * k2
                b = share[j]
                part += b * (k * dot[j] - k1 * (along[j] + d0) - r2[j] * k2)
                pull[j] = b * (k1 * dot[j] - k2 * (along[j] + d2) - r2[j] * k3)
                w[j] = b * k1
                dot[j] = b * k
            u[i] += part
            for d in range(dim):
                here, row, pushed, other = x[i, d], y[d, j0 : j0 + n], s[i, d], s_y[d, j0 : j0 + n]
                first, second = x.dtype.type(0), x.dtype.type(0)
                for j in range(n):
                    z = here - row[j]
                    first += pull[j] * z - w[j] * (pushed - other[j])
                    second += dot[j] * other[j] - w[j] * z
                grad[i, d] += first
                by_score[i, d] += second


# Sine and cosine of an angle within an eighth of a turn, the coefficients of the Cephes library for float32.
QUARTER32 = np.float32(math.pi / 2)
SIN3, SIN5, SIN7 = np.float32(-1.6666654611e-1), np.float32(8.3321608736e-3), np.float32(-1.9515295891e-4)
COS4, COS6, COS8 = np.float32(4.166664568e-2), np.float32(-1.388731625e-3), np.float32(2.443315712e-5)
FAR32 = np.float32(1e9)


@njit(**{**_OPTIONS, "fastmath": {"contract", "nsz"}})
def turn_rows(angle, cos):
    """float32 angles in quarter turns become their sines, and `cos` their cosines, both within 2e-7."""
    for i in range(len(angle)):
        v = angle[i] if abs(angle[i]) < FAR32 else angle[i] * ZERO32  # beyond, float32 has no angle
        q = np.int32(v + (HALF32 if v >= ZERO32 else -HALF32))
        y = (v - np.float32(q)) * QUARTER32
        z = y * y
        s = y + y * z * (SIN3 + z * (SIN5 + z * SIN7))
        c = ONE32 - HALF32 * z + z * z * (COS4 + z * (COS6 + z * COS8))
        odd = (q & np.int32(1)) != 0
        a = s if odd else c
        b = c if odd else s
        cos[i] = -a if ((q + np.int32(1)) & np.int32(2)) != 0 else a
        angle[i] = -b if (q & np.int32(2)) != 0 else b


def compile_all() -> None:
    """Run each function once in both precisions: compiled now, or loaded from the cache on disk."""
    turn_rows(np.zeros(1, np.float32), np.zeros(1, np.float32))
    for dtype in (np.float32, np.float64):
        x = np.array([[0.0, 1.0], [2.0, 0.5]], dtype)
        y, one = np.ascontiguousarray(x.T), np.ones(2, dtype)
        s, grad = np.zeros(2), np.zeros((2, 2))
        kernel_rows(x, y, one, 0, one, s, grad, True, -1)
        g, scalar = np.ascontiguousarray(x @ y), dtype(1)
        x2 = (x * x).sum(1)
        own_rows(x, y, one, 0, one, 0, 1, s, grad)
        weigh_products(g, x, x, x2, x2, one, 0, one, scalar, s, True)
        stein_rows(x, x, y, y, one, 1, scalar, s, grad, grad.copy())
