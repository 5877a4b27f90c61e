# mypy: ignore-errors
# (numba reads these functions as they are; annotations would only repeat what it infers)
"""Soft minima and plans of entropic transport, compiled; over all pairs, or over near ones alone.

Where what is too far away to matter to a few rows is skipped, rows come in the order of a k-d tree, so that `ROWS`
neighbours in memory are neighbours in space, at most R from their middle c.
With z_ij = h_j - scale |x_i - y_j|^p, w_j the same at c and y* the column where w is largest, every row i has

    z_ij - z_i*  <=  w_j - w_*  +  2 scale R |y_j - y*|   (p = 2),        w_j - w_*  +  2 scale R   (p = 1),

so that a column where this lies below -cut adds less than e^-cut to a sum that is at least 1. One look in `ROWS` finds
the columns that remain. Imported only by `_compiled`.
"""

import math

import numpy as np
from numba import njit

from dmviz.losses._compiled import ROWS
from dmviz.losses._fused import _OPTIONS, TILE, _exp, _inverse_root, _largest, _squares_of


@njit(**_OPTIONS)
def _exponents(x, i, y, h, j0, n, scale, p, z, inverse):
    """z[j] = h_j - scale |x_i - y_j|^p for n columns from j0 on, and for p = 1 the inverse distances."""
    _squares_of(x, i, y, j0, n, z)
    ahead = h[j0 : j0 + n]  # a slice: an index j0 + j could count from the end, and would not vectorise
    if p == 2:
        for j in range(n):
            z[j] = ahead[j] - scale * z[j]
    else:
        for j in range(n):
            inverse[j] = _inverse_root(z[j])
            z[j] = ahead[j] - scale * z[j] * inverse[j]


@njit(**_OPTIONS)
def _gather(middle, r, radius, y, h, scale, p, cut, w, far, inverse, near_y, near_h, index):
    """Copies the columns that may matter to row block r side by side; returns how many there are."""
    count = y.shape[1]
    _exponents(middle, r, y, h, 0, count, scale, p, w, inverse)
    best = 0
    top = _largest(w, count)
    while w[best] < top:
        best += 1
    slack = w.dtype.type(2) * scale * radius[r]
    if p == 2:
        for j in range(count):
            far[j] = 0
        for d in range(y.shape[0]):
            row, star = y[d], y[d, best]
            for j in range(count):
                far[j] += (row[j] - star) * (row[j] - star)
        for j in range(count):
            w[j] += slack * math.sqrt(far[j])
        slack = w.dtype.type(0)
    found, low = 0, top - slack - cut
    for j in range(count):  # every column is written, and kept by moving on: no branch
        index[found] = j
        found += w[j] >= low
    for k in range(found):
        near_h[k] = h[index[k]]
    for d in range(y.shape[0]):
        row, there = y[d], near_y[d]
        for k in range(found):
            there[k] = row[index[k]]
    return found


@njit(**_OPTIONS)
def _soft_row(x, i, y, h, count, scale, p, z, inverse, sums, want_grad):
    """Largest exponent of row i over the first `count` columns, and the sum of e^(z - peak); sums_i += that grad C."""
    best, mass = -np.inf, 0.0
    for j0 in range(0, count, TILE):
        n = min(TILE, count - j0)
        _exponents(x, i, y, h, j0, n, scale, p, z, inverse)
        high = np.float64(_largest(z, n))
        if high > best:
            shrink = math.exp(best - high)
            best = high
            mass *= shrink
            for d in range(x.shape[1]):
                sums[i, d] *= shrink
        part, top = x.dtype.type(0), x.dtype.type(best)
        for j in range(n):
            z[j] = _exp(z[j] - top)
            part += z[j]
        mass += part
        if want_grad:
            if p == 1:
                for j in range(n):
                    z[j] *= inverse[j]
            for d in range(x.shape[1]):
                here, row = x[i, d], y[d, j0 : j0 + n]
                part = x.dtype.type(0)
                for j in range(n):
                    part += z[j] * (here - row[j])
                sums[i, d] += part
    return best, mass


@njit(**_OPTIONS)
def softmin_rows(x, y, h, scale, p, peak, total, sums, want_grad):
    """Every row over all columns: the largest exponent, the sum of e^(z - peak), and that sum times grad C."""
    z, inverse = np.empty(TILE, x.dtype), np.empty(TILE, x.dtype)
    for i in range(x.shape[0]):
        peak[i], total[i] = _soft_row(x, i, y, h, y.shape[1], scale, p, z, inverse, sums, want_grad)


@njit(**_OPTIONS)
def softmin_products(g, x, y, x2, y2, h, scale, p, close, peak, total, w_sum, old):
    """In place g = x . y^T (B, C) -> weights of grad C over e^peak; running peak and sums; `old` is what shrank."""
    size = g.shape[1]
    two, zero = g.dtype.type(2), g.dtype.type(0)
    inverse = np.empty(size, g.dtype)
    for i in range(g.shape[0]):
        row = g[i]
        bound = close * (x2[i] + np.max(y2))
        for j in range(size):
            row[j] = max(x2[i] + y2[j] - two * row[j], zero)
        if p == 1:
            for j in range(size):
                if row[j] < bound:
                    exact = zero
                    for d in range(x.shape[1]):
                        z = x[i, d] - y[j, d]
                        exact += z * z
                    row[j] = exact
            for j in range(size):
                inverse[j] = _inverse_root(row[j]) if row[j] > zero else zero
                row[j] = h[j] - scale * row[j] * inverse[j]
        else:
            for j in range(size):
                row[j] = h[j] - scale * row[j]
        high = np.float64(_largest(row, size))
        old[i] = 1.0
        if high > peak[i]:
            old[i] = math.exp(peak[i] - high)
            peak[i] = high
        part, top = zero, g.dtype.type(peak[i])
        for j in range(size):
            row[j] = _exp(row[j] - top)
            part += row[j]
        total[i] = total[i] * old[i] + part
        if p == 1:
            part = zero
            for j in range(size):
                row[j] *= inverse[j]
                part += row[j]
        w_sum[i] = w_sum[i] * old[i] + part


@njit(**_OPTIONS)
def near_softmin(x, middle, radius, y, h, scale, p, cut, first, last, peak, total, sums, want_grad):
    """Row blocks `first` to `last`: the largest exponent, the sum of e^(z - peak), and that sum times grad C."""
    count = y.shape[1]
    w, far, index = np.empty(count, x.dtype), np.empty(count, x.dtype), np.empty(count + 1, np.int32)
    near_y, near_h, inverse = np.empty(y.shape, y.dtype), np.empty(count, h.dtype), np.empty(count, x.dtype)
    for r in range(first, last):
        k = _gather(middle, r, radius, y, h, scale, p, cut, w, far, inverse, near_y, near_h, index)
        for i in range(r * ROWS, min((r + 1) * ROWS, x.shape[0])):
            peak[i], total[i] = _soft_row(x, i, near_y, near_h, k, scale, p, w, inverse, sums, want_grad)


@njit(**{**_OPTIONS, "fastmath": True})
def _shares(z, count, cut, begin, column, share):
    """A row's entries from `begin` on: those of z within e^cut of its largest, as shares.

    Returns where they end, -1 where there is no room; the largest; and the sum of e^(z - largest).
    """
    highest, mass, one = _largest(z, count), z.dtype.type(0), z.dtype.type(1)
    if begin + count > len(column):
        return -1, highest, mass
    end, low = begin, highest - cut
    for j in range(count):  # every column is written, and kept by moving on: no branch
        column[end] = j
        share[end] = z[j]
        end += z[j] > low
    for k in range(begin, end):
        e = _exp(share[k] - highest)
        share[k] = e
        mass += e
    whole = one / mass
    for k in range(begin, end):
        share[k] *= whole
    return end, highest, mass


@njit(**_OPTIONS)
def _add_marginal(a, begin, end, column, share, m):
    for k in range(begin, end):
        m[column[k]] += a * share[k]


@njit(**_OPTIONS)
def plan_rows(x, y, h, a, scale, p, cut, peak, total, m, start, column, share):
    """The plan's rows as shares, entries e^cut below the largest left out; False where they do not fit.

    For x (N, D) and y (D, M): z_ij = h_j - scale |x_i - y_j|^p, its largest value and the sum of e^(z - peak) of each
    row, and the plan's marginal m on y; row i has columns column[start[i] : start[i + 1]].
    """
    count, begin = y.shape[1], 0
    z, inverse = np.empty(count, x.dtype), np.empty(count, x.dtype)
    start[0] = 0
    for i in range(x.shape[0]):
        _exponents(x, i, y, h, 0, count, scale, p, z, inverse)
        end, peak[i], total[i] = _shares(z, count, cut, begin, column, share)
        if end < 0:
            return False
        _add_marginal(a[i], begin, end, column, share, m)
        start[i + 1] = begin = end
    return True


@njit(**_OPTIONS)
def near_plan(x, middle, radius, y, h, a, scale, p, cut, peak, total, m, start, column, share):
    """As `plan_rows`, over the columns that may matter alone; for a row block each."""
    count, begin = y.shape[1], 0
    w, far, index = np.empty(count, x.dtype), np.empty(count, x.dtype), np.empty(count + 1, np.int32)
    near_y, near_h, inverse = np.empty(y.shape, y.dtype), np.empty(count, h.dtype), np.empty(count, x.dtype)
    start[0] = 0
    for r in range(len(radius)):
        k = _gather(middle, r, radius, y, h, scale, p, cut, w, far, inverse, near_y, near_h, index)
        for i in range(r * ROWS, min((r + 1) * ROWS, x.shape[0])):
            _exponents(x, i, near_y, near_h, 0, k, scale, p, w, inverse)
            end, peak[i], total[i] = _shares(w, k, cut, begin, column, share)
            if end < 0:
                return False
            for entry in range(begin, end):
                column[entry] = index[column[entry]]
            _add_marginal(a[i], begin, end, column, share, m)
            start[i + 1] = begin = end
    return True


@njit(**_OPTIONS)
def plan_panel(g, x2, y2, h, a, scale, cut, i0, begin, peak, total, m, start, column, share):
    """As `plan_rows` for p = 2 and the rows from i0 whose products x . y^T are g (B, M); -1 where it is full."""
    count, two, zero = g.shape[1], g.dtype.type(2), g.dtype.type(0)
    for r in range(g.shape[0]):
        z, here, i = g[r], x2[r], i0 + r
        for j in range(count):
            z[j] = h[j] - scale * max(here + y2[j] - two * z[j], zero)
        end, peak[i], total[i] = _shares(z, count, cut, begin, column, share)
        if end < 0:
            return -1
        _add_marginal(a[i], begin, end, column, share, m)
        start[i + 1] = begin = end
    return begin


@njit(**{**_OPTIONS, "fastmath": True})
def newton_step(start, column, share, a, m, slope, need, most, u):
    """Solve (diag(m) - P^T diag(a) P) u = slope by conjugate gradients; how much u . slope last gained, and how often.

    Stops where five steps together gained less than `need`, or than a fiftieth of all of them: what a far start leaves
    is for the next Newton step.
    """
    size = len(m)
    r, z, d, q = slope.copy(), np.empty(size), np.empty(size), np.empty(size)
    gains = np.zeros(5)
    rz, whole, count = 0.0, 0.0, 0
    for j in range(size):
        u[j] = 0.0
        z[j] = r[j] / m[j] if m[j] > 0.0 else 0.0
        d[j] = z[j]
        rz += r[j] * z[j]
    for count in range(1, most + 1):
        for j in range(size):
            q[j] = m[j] * d[j]
        for i in range(len(a)):
            t = 0.0
            for k in range(start[i], start[i + 1]):
                t += share[k] * d[column[k]]
            t *= a[i]
            for k in range(start[i], start[i + 1]):
                q[column[k]] -= t * share[k]
        curve = 0.0
        for j in range(size):
            curve += d[j] * q[j]
        if not curve > 0.0:
            break
        alpha = rz / curve
        new = 0.0
        for j in range(size):
            u[j] += alpha * d[j]
            r[j] -= alpha * q[j]
            z[j] = r[j] / m[j] if m[j] > 0.0 else 0.0
            new += r[j] * z[j]
        gains[count % 5] = alpha * rz
        whole += alpha * rz
        if count >= 5 and gains.sum() <= max(need, 0.02 * whole):
            break
        beta, rz = new / rz, new
        for j in range(size):
            d[j] = z[j] + beta * d[j]
    return gains.sum(), count


def compile_all() -> None:
    """Run each function once in both precisions: compiled now, or loaded from the cache on disk."""
    for dtype in (np.float32, np.float64):
        x = np.array([[0.0, 1.0], [2.0, 0.5]], dtype)
        y, one, s = np.ascontiguousarray(x.T), np.ones(2, dtype), np.zeros(2)
        g, sums, unit = np.ascontiguousarray(x @ y), np.zeros((2, 2)), one[0]
        blocks = (x, x[:1].copy(), one[:1])
        softmin_rows(x, y, one, unit, 2, s.copy(), s.copy(), sums, True)
        softmin_products(g, x, x, one, one, one, unit, 2, unit, s.copy(), s.copy(), s.copy(), s.copy())
        near_softmin(*blocks, y, one, unit, 2, unit, 0, 1, s.copy(), s.copy(), sums, True)
        start, column, share = np.zeros(3, np.int64), np.zeros(99, np.int32), np.zeros(99, dtype)
        plan_rows(x, y, one, s, unit, 2, unit, s.copy(), s.copy(), s.copy(), start, column, share)
        near_plan(*blocks, y, one, s, unit, 2, unit, s.copy(), s.copy(), s.copy(), start, column, share)
        plan_panel(g, one, one, one, s, unit, unit, 0, 0, s.copy(), s.copy(), s.copy(), start, column, share)
        newton_step(start, column, share, np.full(2, 0.5), np.full(2, 0.5), np.zeros(2), 0.0, 1, np.zeros(2))
