# mypy: ignore-errors
# (numba reads these functions as they are; annotations would only repeat what it infers)
"""Sums over pairs that `_fused.py` has no kernel for, waves, and what sparse plans are asked; compiled by numba.

As in `_fused.py`, y comes transposed, (D, M), tiles are summed in the precision of the points and sums of tiles in
float64, each row in the same order whatever the range of rows. Imported only where compiled kernels were chosen.
"""

import numpy as np
from numba import njit

from dmviz.losses._fused import _OPTIONS, FAR32, HALF32, ROWS, TILE, ZERO32, _exp, _inverse_root, _squares_of

_TURNS = {**_OPTIONS, "fastmath": {"contract", "nsz", "reassoc"}}


@njit(**_OPTIONS)
def _places(scale, r2, n, cells, cell, off):
    """In which of the cells of sigma = (1 + scale r^2)^(-1/2) each pair lies, and how far from its middle, in cells."""
    one, half, wide = r2.dtype.type(1), r2.dtype.type(0.5), r2.dtype.type(cells)
    last = np.int32(cells - 1)
    for j in range(n):
        sigma = wide * _inverse_root(one + r2[j] * scale)
        here = max(np.int32(0), min(np.int32(sigma), last))  # any cell does where a run has blown up
        cell[j] = here
        off[j] = sigma - r2.dtype.type(here) - half


@njit(**_OPTIONS)
def _read(table, cell, off, n, b, w):
    """The sum of b k over the tile, and w[:n]: two parabolas a cell, three numbers each in a row of the table."""
    total = off.dtype.type(0)
    for j in range(n):
        row, z = table[cell[j]], off[j]
        total += b[j] * (row[0] + z * (row[1] + z * row[2]))
        w[j] = row[3] + z * (row[4] + z * row[5])
    return total


@njit(**_OPTIONS)
def table_rows(x, y, b, table, scale, s, grad, want_grad):
    """s_i += sum_j b_j k(x_i, y_j), and grad_i += sum_j b_j w (x_i - y_j), for x (N, D) and y (D, M)."""
    r2, w = np.empty(TILE, x.dtype), np.empty(TILE, x.dtype)
    cell, off = np.empty(TILE, np.uint32), np.empty(TILE, x.dtype)
    for i in range(x.shape[0]):
        for j0 in range(0, y.shape[1], TILE):
            n = min(TILE, y.shape[1] - j0)
            share = b[j0 : j0 + n]
            _squares_of(x, i, y, j0, n, r2)
            _places(scale, r2, n, len(table), cell, off)
            s[i] += _read(table, cell, off, n, share, w)
            if not want_grad:
                continue
            for d in range(x.shape[1]):
                here, row, part = x[i, d], y[d, j0 : j0 + n], x.dtype.type(0)
                for j in range(n):
                    part += w[j] * share[j] * (here - row[j])
                grad[i, d] += part


@njit(**_OPTIONS)
def own_table_rows(x, y, a, table, scale, lane, lanes, s, grad):
    """Each pair i < j of x (N, D), y = x^T, once, for every `lanes`-th block of rows; as `_fused.own_rows`."""
    count = y.shape[1]
    r2, w, far = np.empty(TILE, x.dtype), np.empty(TILE, x.dtype), np.empty((*y.shape[:1], TILE), x.dtype)
    cell, off = np.empty(TILE, np.uint32), np.empty(TILE, x.dtype)
    for i0 in range(lane * ROWS, count, lanes * ROWS):
        for j0 in range(i0, count, TILE):
            end = min(j0 + TILE, count)
            far[:] = 0
            for i in range(i0, min(i0 + ROWS, end - 1)):
                start = max(j0, i + 1)
                n = end - start
                share, mine = a[start:end], a[i]
                _squares_of(x, i, y, start, n, r2)
                _places(scale, r2, n, len(table), cell, off)
                s[i] += _read(table, cell, off, n, share, w)
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
def tent_rows(x, y, b, low, high, s, grad, want_grad):
    """s_i += sum_j b_j prod_d max(0, 1 - |x_id - y_dj|) over the columns low[i] to high[i], and its gradient."""
    dim = x.shape[1]
    k, tents = np.empty(TILE, x.dtype), np.empty((dim, TILE), x.dtype)
    one, zero, tiny = x.dtype.type(1), x.dtype.type(0), x.dtype.type(1e-30)
    for i in range(x.shape[0]):
        for j0 in range(low[i], high[i], TILE):
            n = min(TILE, high[i] - j0)
            for d in range(dim):
                here, row, tent = x[i, d], y[d, j0 : j0 + n], tents[d]
                for j in range(n):
                    tent[j] = max(zero, one - abs(here - row[j]))
                if d == 0:
                    for j in range(n):
                        k[j] = b[j0 + j] * tent[j]
                else:
                    for j in range(n):
                        k[j] *= tent[j]
            part = zero
            for j in range(n):
                part += k[j]
            s[i] += part
            if not want_grad:
                continue
            for d in range(dim):
                here, row, tent, part = x[i, d], y[d, j0 : j0 + n], tents[d], zero
                for j in range(n):  # without its own tent k is the slope's size; where that tent is 0, so is k
                    z = here - row[j]
                    sign = one if z < zero else (-one if z > zero else zero)
                    part += sign * k[j] / max(tent[j], tiny)
                grad[i, d] += part


@njit(**_OPTIONS)
def _cosines(u, i, v, j0, n, cosine):
    """cosine[:n] = u_i . v_j for the n columns from j0 on."""
    here, row = u[i, 0], v[0, j0 : j0 + n]
    for j in range(n):
        cosine[j] = here * row[j]
    for d in range(1, u.shape[1]):
        here, row = u[i, d], v[d, j0 : j0 + n]
        for j in range(n):
            cosine[j] += here * row[j]


@njit(**_OPTIONS)
def excess_rows(u, v, a, allowed, first, s, grad):
    """s_i += sum_j a_j [|u_i . v_j| - allowed]_+, and grad_i += its gradient.

    Where `first` >= 0 without column first + i.
    """
    cosine, zero = np.empty(TILE, u.dtype), u.dtype.type(0)
    for i in range(u.shape[0]):
        for j0 in range(0, v.shape[1], TILE):
            n = min(TILE, v.shape[1] - j0)
            share, part = a[j0 : j0 + n], zero
            _cosines(u, i, v, j0, n, cosine)
            if first >= 0 and 0 <= first + i - j0 < n:
                cosine[first + i - j0] = zero
            for j in range(n):
                c = cosine[j]
                excess = max(zero, abs(c) - allowed)
                part += share[j] * excess
                cosine[j] = zero if excess <= zero else (share[j] if c > zero else -share[j])
            s[i] += part
            for d in range(u.shape[1]):
                row, part = v[d, j0 : j0 + n], zero
                for j in range(n):
                    part += cosine[j] * row[j]
                grad[i, d] += part


@njit(**_OPTIONS)
def similar_rows(u, v, b, owed, mine, scale, first, s, grad, want_grad):
    """With E_ij = exp(scale (u_i . v_j - 1)): s_i += sum_j b_j E_ij, grad_i += sum_j (mine_i b_j + owed_j) E_ij v_j.

    Where `first` >= 0 without column first + i.
    """
    e = np.empty(TILE, u.dtype)
    one, zero = u.dtype.type(1), u.dtype.type(0)
    for i in range(u.shape[0]):
        for j0 in range(0, v.shape[1], TILE):
            n = min(TILE, v.shape[1] - j0)
            share, back, own, part = b[j0 : j0 + n], owed[j0 : j0 + n], mine[i], zero
            _cosines(u, i, v, j0, n, e)
            for j in range(n):
                e[j] = _exp((e[j] - one) * scale)
            if first >= 0 and 0 <= first + i - j0 < n:
                e[first + i - j0] = zero
            for j in range(n):
                part += share[j] * e[j]
            s[i] += part
            if not want_grad:
                continue
            for j in range(n):
                e[j] *= own * share[j] + back[j]
            for d in range(u.shape[1]):
                row, part = v[d, j0 : j0 + n], zero
                for j in range(n):
                    part += e[j] * row[j]
                grad[i, d] += part


@njit(**_OPTIONS)
def spread_rows(start, column, share, weight, m):
    """m_j += sum_i weight_i share_ij for a sparse plan's rows."""
    for i in range(len(weight)):
        for k in range(start[i], start[i + 1]):
            m[column[k]] += weight[i] * share[k]


@njit(**_OPTIONS)
def share_costs(x, y, start, column, share, a, cost, r, s, m):
    """With P_ij = a_i share_ij and c = |x_i - y_j|^2, y (M, D): c of every entry, r = (P c 1) / a, s = (P c)^T 1, m."""
    for i in range(len(a)):
        total = 0.0
        for k in range(start[i], start[i + 1]):
            j, c = column[k], 0.0
            for d in range(x.shape[1]):
                apart = x[i, d] - y[j, d]
                c += apart * apart
            part = share[k] * c
            cost[k] = c
            total += part
            s[j] += a[i] * part
            m[j] += a[i] * share[k]
        r[i] = total


@njit(**_OPTIONS)
def share_adjoint(start, column, share, a, m, rest, share_of, most, mu):
    """Solve (diag(m) - S^T diag(a) S) mu = rest from a start mu by conjugate gradients; how many it took.

    To where the residual, in the metric of 1 / m, is `share_of` of the right side, or as far as rounding lets it.
    """
    size = len(m)
    residual, z, d, q = rest.copy(), np.empty(size), np.zeros(size), np.empty(size)
    rz, enough, count, beta = 0.0, 0.0, 0, 0.0
    for j in range(size):
        enough += rest[j] * rest[j] / m[j] if m[j] > 0.0 else 0.0
        d[j] = mu[j]
    enough = share_of * share_of * enough + 1e-300
    for count in range(most + 1):
        for j in range(size):
            q[j] = m[j] * d[j]
        for i in range(len(a)):
            t = 0.0
            for k in range(start[i], start[i + 1]):
                t += share[k] * d[column[k]]
            t *= a[i]
            for k in range(start[i], start[i + 1]):
                q[column[k]] -= t * share[k]
        if count == 0:  # the start, taken off the right side
            for j in range(size):
                residual[j] -= q[j]
        else:
            curve = 0.0
            for j in range(size):
                curve += d[j] * q[j]
            if not curve > 0.0:
                break
            alpha = rz / curve
            for j in range(size):
                mu[j] += alpha * d[j]
                residual[j] -= alpha * q[j]
        new = 0.0
        for j in range(size):
            z[j] = residual[j] / m[j] if m[j] > 0.0 else 0.0
            new += residual[j] * z[j]
        if not new > enough:
            break
        beta = new / rz if count > 0 else 0.0
        rz = new
        for j in range(size):
            d[j] = z[j] + beta * (d[j] if count > 0 else 0.0)
    return count


@njit(**_OPTIONS)
def share_pulls(x, y, start, column, share, cost, r, mu, scale, v):
    """v_i += sum_j share_ij (1 + scale (lambda_i + mu_j - c_ij)) (y_j - x_i), lambda = r - S mu."""
    for i in range(len(r)):
        lam = r[i]
        for k in range(start[i], start[i + 1]):
            lam -= share[k] * mu[column[k]]
        for k in range(start[i], start[i + 1]):
            j = column[k]
            push = share[k] * (1.0 + scale * (lam + mu[j] - cost[k]))
            for d in range(x.shape[1]):
                v[i, d] += push * (y[j, d] - x[i, d])


# Sine, over f, and cosine of f half turns for |f| <= 1/2, by f^2: interpolated at Chebyshev points, within 2e-8.
SINE0, SINE1, SINE2, SINE3, SINE4 = (
    np.float32(c) for c in (3.14159264, -5.167710077, 2.550077387, -0.5982904113, 0.07765591228)
)
COSINE0, COSINE1, COSINE2, COSINE3, COSINE4, COSINE5 = (
    np.float32(c) for c in (1.0, -4.934802137, 4.058709155, -1.335211949, 0.2349370686, -0.02439593211)
)


@njit(**_TURNS)
def _sine(angle):
    """Sine of a float32 angle in half turns."""
    v = angle if abs(angle) < FAR32 else angle * ZERO32  # beyond, float32 has no angle
    q = np.int32(v + (HALF32 if v >= ZERO32 else -HALF32))
    f = v - np.float32(q)
    z = f * f
    s = f * (SINE0 + z * (SINE1 + z * (SINE2 + z * (SINE3 + z * SINE4))))
    return -s if (q & np.int32(1)) != 0 else s


@njit(**_TURNS)
def _heard(angle, n, mass):
    """Sums of mass times cosine and sine of n angles in half turns."""
    re, im = ZERO32, ZERO32
    for i in range(n):
        v = angle[i] if abs(angle[i]) < FAR32 else angle[i] * ZERO32
        q = np.int32(v + (HALF32 if v >= ZERO32 else -HALF32))
        f = v - np.float32(q)
        z = f * f
        m = -mass[i] if (q & np.int32(1)) != 0 else mass[i]
        re += m * (COSINE0 + z * (COSINE1 + z * (COSINE2 + z * (COSINE3 + z * (COSINE4 + z * COSINE5)))))
        im += m * f * (SINE0 + z * (SINE1 + z * (SINE2 + z * (SINE3 + z * SINE4))))
    return re, im


@njit(**_TURNS)
def _angles(x, t, at, i0, n, phase, angle):
    """angle[:n] = t_at . x_i - phase for the n points from i0 on, x (D, N)."""
    row, turn = x[0, i0 : i0 + n], t[at, 0]
    for i in range(n):
        angle[i] = turn * row[i] - phase
    for d in range(1, x.shape[0]):
        row, turn = x[d, i0 : i0 + n], t[at, d]
        for i in range(n):
            angle[i] += turn * row[i]


@njit(**_TURNS)
def wave_sums(x, t, mass, re, im):
    """Characteristic function of float32 points x (D, N) at frequencies t (L, D) in half turns."""
    angle = np.empty(TILE, np.float32)
    for at in range(t.shape[0]):
        for i0 in range(0, x.shape[1], TILE):
            n = min(TILE, x.shape[1] - i0)
            _angles(x, t, at, i0, n, ZERO32, angle)
            part, other = _heard(angle, n, mass[i0 : i0 + n])
            re[at] += part
            im[at] += other


@njit(**_TURNS)
def wave_pulls(x, t, size, phase, first, last, v):
    """v (D, N) += sum_l t_l size_l sin(t_l . x - phase_l) at the float32 points x (D, N) from `first` to `last`."""
    angle = np.empty(TILE, np.float32)
    for i0 in range(first, last, TILE):
        n = min(TILE, last - i0)
        for at in range(t.shape[0]):
            _angles(x, t, at, i0, n, phase[at], angle)
            for i in range(n):
                angle[i] = _sine(angle[i])
            for d in range(x.shape[0]):
                row, pull = v[d, i0 : i0 + n], t[at, d] * size[at]
                for i in range(n):
                    row[i] += pull * angle[i]


@njit(**_TURNS)
def angle_sums(angle, mass, re, im):
    """The same sums from float32 angles (B, N) in half turns, which stay as they are."""
    for at in range(angle.shape[0]):
        for i0 in range(0, angle.shape[1], TILE):
            n = min(TILE, angle.shape[1] - i0)
            part, other = _heard(angle[at, i0:], n, mass[i0:])
            re[at] += part
            im[at] += other


@njit(**_TURNS)
def angle_sines(angle, size, phase):
    """In place angle_l -> size_l sin(angle_l - phase_l)."""
    for at in range(angle.shape[0]):
        row, by, back = angle[at], size[at], phase[at]
        for i in range(angle.shape[1]):
            row[i] = by * _sine(row[i] - back)


def compile_all() -> None:
    """Run each function once in both precisions: compiled now, or loaded from the cache on disk."""
    x, one, s = np.ones((2, 2), np.float32), np.ones(2, np.float32), np.zeros(2)
    wave_sums(x, x, one, s, s.copy())
    wave_pulls(x, x, one, one, 0, 2, x.copy())
    angle_sums(x, one, s, s.copy())
    angle_sines(x.copy(), one, one)
    for dtype in (np.float32, np.float64):
        x = np.array([[0.6, 0.8], [1.0, 0.0]], dtype)
        y, one, scalar = np.ascontiguousarray(x.T), np.ones(2, dtype), dtype(0.5)
        s, grad, table = np.zeros(2), np.zeros((2, 2)), np.zeros((4, 6), dtype)
        table_rows(x, y, one, table, scalar, s, grad, True)
        own_table_rows(x, y, one, table, scalar, 0, 1, s, grad)
        low, high = np.zeros(2, np.int64), np.full(2, 2)
        tent_rows(x, y, one, low, high, s, grad, True)
        excess_rows(x, y, one, scalar, 0, s, grad)
        similar_rows(x, y, one, one, one, scalar, 0, s, grad, True)
        start, column, share = np.array([0, 1, 2]), np.array([0, 1], np.int32), one.copy()
        half, cost = np.full(2, 0.5), one.copy()
        spread_rows(start, column, share, half, s)
        share_costs(x, x, start, column, share, half, cost, s, s.copy(), s.copy())
        share_adjoint(start, column, share, half, half, half, 1e-9, 1, np.zeros(2))
        share_pulls(x, x, start, column, share, cost, half, half, 0.5, grad)
