# mypy: ignore-errors
# (numba reads these functions as they are; annotations would only repeat what it infers)
"""Soft minima and plans over near pairs alone, compiled: what is too far away to matter to a few rows is skipped.

Rows come in the order of a k-d tree, so that `ROWS` neighbours in memory are neighbours in space, at most R from their
middle c. With z_ij = h_j - scale |x_i - y_j|^p, w_j the same at c and y* the column where w is largest, every row i has

    z_ij - z_i*  <=  w_j - w_*  +  2 scale R |y_j - y*|   (p = 2),        w_j - w_*  +  2 scale R   (p = 1),

so that a column where this lies below -cut adds less than e^-cut to a sum that is at least 1. One look in `ROWS` finds
the columns that remain. Imported only by `_compiled.warm`.
"""

import math

import numpy as np
from numba import njit

from dmviz.losses._compiled import ROWS
from dmviz.losses._fused import _OPTIONS, TILE, _exp, _inverse_root, _largest


@njit(**_OPTIONS)
def _exponents(x, i, y, h, j0, n, scale, p, z, inverse):
    """z[j] = h_j - scale |x_i - y_j|^p for one block of columns, and for p = 1 the inverse distances."""
    here, row = x[i, 0], y[0, j0 : j0 + n]
    for j in range(n):
        apart = here - row[j]
        z[j] = apart * apart
    for d in range(1, x.shape[1]):
        here, row = x[i, d], y[d, j0 : j0 + n]
        for j in range(n):
            apart = here - row[j]
            z[j] += apart * apart
    ahead = h[j0 : j0 + n]
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
def near_plan(x, middle, radius, y, h, a, scale, p, cut, peak, total, m, start, column, share):
    """The plan's rows as shares, entries e^cut below the largest left out; False where they do not fit.

    As `_fused.plan_rows`, which looks at every pair.
    """
    count, filled = y.shape[1], 0
    w, far, index = np.empty(count, x.dtype), np.empty(count, x.dtype), np.empty(count + 1, np.int32)
    near_y, near_h, inverse = np.empty(y.shape, y.dtype), np.empty(count, h.dtype), np.empty(count, x.dtype)
    one = x.dtype.type(1)
    start[0] = 0
    for r in range(len(radius)):
        k = _gather(middle, r, radius, y, h, scale, p, cut, w, far, inverse, near_y, near_h, index)
        for i in range(r * ROWS, min((r + 1) * ROWS, x.shape[0])):
            _exponents(x, i, near_y, near_h, 0, k, scale, p, w, inverse)
            highest = _largest(w, k)
            if filled + k > len(column):
                return False
            begin, low = filled, highest - cut
            for j in range(k):
                column[filled] = index[j]
                share[filled] = w[j]
                filled += w[j] > low
            mass = x.dtype.type(0)
            for j in range(begin, filled):
                e = _exp(share[j] - highest)
                share[j] = e
                mass += e
            whole = one / mass
            for j in range(begin, filled):
                share[j] *= whole
                m[column[j]] += a[i] * share[j]
            peak[i], total[i], start[i + 1] = highest, mass, filled
    return True


@njit(**{**_OPTIONS, "fastmath": True})
def plan_panel(g, x2, y2, h, a, scale, cut, i0, filled, peak, total, m, start, column, share):
    """As `_fused.plan_rows` for p = 2 and the rows from i0 whose products x . y^T are g (B, M); -1 where it is full."""
    count, two, one = g.shape[1], g.dtype.type(2), g.dtype.type(1)
    for r in range(g.shape[0]):
        z, here, i = g[r], x2[r], i0 + r
        for j in range(count):
            z[j] = h[j] - scale * max(here + y2[j] - two * z[j], g.dtype.type(0))
        highest = _largest(z, count)
        if filled + count > len(column):
            return -1
        begin, low = filled, highest - cut
        for j in range(count):
            column[filled] = j
            share[filled] = z[j]
            filled += z[j] > low
        mass = g.dtype.type(0)
        for j in range(begin, filled):
            e = _exp(share[j] - highest)
            share[j] = e
            mass += e
        whole = one / mass
        for j in range(begin, filled):
            share[j] *= whole
            m[column[j]] += a[i] * share[j]
        peak[i], total[i], start[i + 1] = highest, mass, filled
    return filled


def compile_all() -> None:
    """Run each function once in both precisions: compiled now, or loaded from the cache on disk."""
    for dtype in (np.float32, np.float64):
        x = np.array([[0.0, 1.0], [2.0, 0.5]], dtype)
        y, one, s = np.ascontiguousarray(x.T), np.ones(2, dtype), np.zeros(2)
        blocks = (x, x[:1].copy(), one[:1])
        near_softmin(*blocks, y, one, one[0], 2, one[0], 0, 1, s.copy(), s.copy(), np.zeros((2, 2)), True)
        start, column, share = np.zeros(3, np.int64), np.zeros(99, np.int32), np.zeros(99, dtype)
        near_plan(*blocks, y, one, s, one[0], 2, one[0], s.copy(), s.copy(), s.copy(), start, column, share)
        plan_panel(x @ y, one, one, one, s, one[0], one[0], 0, 0, s.copy(), s.copy(), s.copy(), start, column, share)
