"""When the fused kernels of `_fused*.py` run instead of the eager tiles, and on how many threads.

The first step never waits for a compiler: until the kernels have been compiled once on this machine (`python -m
dmviz.warm` does it at install), losses take their eager path. Once they lie in the cache on disk they are loaded, which
takes a second, and run from the first step on, so that the same link gives the same bits. The choice is made in a
loss's `prepare` and kept in the target's memo: a run never changes kernels midway. Eager and compiled results differ in
their last bits. The environment variable DMVIZ_COMPILE fixes the choice: 0 is always eager, 1 waits for the compiler.
"""

import hashlib
import math
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dmviz.losses._kernels import Kernel, Radial

_ready = threading.Event()
_lock = threading.Lock()
_background: list[threading.Thread] = []
_pools: list[ThreadPoolExecutor] = []

PARALLEL = 4_000_000
"""Pairs from which a second core pays."""


def choice() -> bool:
    """Whether to run compiled now. Kernels that are not ready are made so in the background, for the next time."""
    wish = os.environ.get("DMVIZ_COMPILE", "")
    if wish == "0":
        return False
    if wish == "1" or (not _ready.is_set() and _on_disk()):
        warm()
    elif not _ready.is_set():
        _warm_in_background()
    return _ready.is_set()


def chosen(memo: Any, x: Tensor) -> bool:
    """The choice that `prepare` kept, or one made now. Only CPU tensors run compiled."""
    if x.device.type != "cpu":
        return False
    return bool(memo["compiled"]) if memo and "compiled" in memo else choice()


def warm() -> None:
    """Compile every kernel, or load it from the cache on disk, and wait for it."""
    with _lock:
        if _ready.is_set():
            return
        try:
            folder = _choose_cache()
            from dmviz.losses import _fused, _fused_more, _fused_transport
        except ImportError:  # no numba on this machine: eager stays
            return
        _fused.compile_all()
        _fused_transport.compile_all()
        _fused_more.compile_all()
        _ready.set()
        if folder is not None:
            with suppress(OSError):
                (folder / _stamp()).touch()


def _on_disk() -> bool:
    """Whether an earlier process has compiled these very kernels for this processor."""
    try:
        folder = _choose_cache()
        return folder is not None and (folder / _stamp()).exists()
    except ImportError:
        return False


@cache
def _stamp() -> str:
    """Name of the file that says the kernels are compiled: another source, numba or processor, another name."""
    import numba
    from llvmlite import binding

    sources = [
        Path(__file__).with_name(name).read_text() for name in ("_fused.py", "_fused_transport.py", "_fused_more.py")
    ]
    words = (*sources, numba.__version__, binding.get_host_cpu_name())
    return f"fused-{hashlib.blake2b(repr(words).encode(), digest_size=8).hexdigest()}.ready"


def ready() -> bool:
    return _ready.is_set()


def _warm_in_background() -> None:
    with _lock:
        if not _background:
            _background.append(threading.Thread(target=warm, name="dmviz-compile", daemon=True))
            _background[0].start()


def _choose_cache() -> Path | None:
    """Where compiled code is kept: beside the source, or a folder of our own where that can not be written to."""
    import numba

    here = Path(__file__).parent
    beside = here / "__pycache__"
    if os.environ.get("NUMBA_CACHE_DIR"):
        return Path(os.environ["NUMBA_CACHE_DIR"])
    if os.access(beside if beside.exists() else here, os.W_OK):
        return beside
    user = str(os.getuid()) if hasattr(os, "getuid") else "user"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dmviz"
    for folder in (home, Path(tempfile.gettempdir()) / f"dmviz-{user}"):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK) and (sys.platform == "win32" or folder.stat().st_uid == os.getuid()):
            numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
            return folder
    return None


def threads() -> int:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(usable, 8))


def over_rows(work: Callable[[slice], None], n: int, pairs: int) -> None:
    """Run `work` on ranges of rows that together are all n: on this thread, or on a shared pool where that pays.

    Every row is summed in the same order whatever the ranges, so the bits do not depend on the number of threads.
    """
    parts = threads() if pairs >= PARALLEL else 1
    if parts == 1:
        work(slice(0, n))
        return
    if not _pools:
        _pools.append(ThreadPoolExecutor(parts, thread_name_prefix="dmviz-rows"))
    edges = [n * k // (4 * parts) for k in range(4 * parts + 1)]
    list(_pools[0].map(work, [slice(i, j) for i, j in pairwise(edges) if j > i]))


def add_kernel_sums(
    x: Tensor, y: Tensor, b: Tensor, kernel: Kernel, s: Tensor, grad: Tensor, direct: bool, want_grad: bool
) -> None:
    """Add kernel sums to s (N,) and, where wanted, their gradients to grad (N, D), both float64."""
    from dmviz.losses import _fused

    if isinstance(kernel, Radial):
        _add_table_sums(x.contiguous(), y, b, kernel, s, grad, want_grad)
        return
    lengths = x.new_tensor(kernel.numbers).numpy()
    code, x, y, b = _fused.CODES[kernel.name], x.contiguous(), y.contiguous(), b.contiguous()
    if direct:
        across = y.T.contiguous().numpy()
        over_rows(
            lambda i: _fused.kernel_rows(
                x[i].numpy(), across, b.numpy(), code, lengths, s[i].numpy(), grad[i].numpy(), want_grad, -1
            ),
            len(x),
            len(x) * len(y),
        )
        return
    x2, y2 = x.square().sum(1), y.square().sum(1)
    pulled = x.new_zeros(len(x), x.shape[1] + 1, dtype=torch.float64) if want_grad else s
    share = torch.cat((y, torch.ones_like(y[:, :1])), 1) * b[:, None] if want_grad else y
    buffer = x.new_empty(PANEL[0] * PANEL[1])
    for i, j in panels(len(x), len(y)):
        w = _weighed(x, y, (x2, y2), i, j, b[j], kernel, s[i], want_grad, buffer)
        if want_grad:
            pulled[i] += w @ share[j]
    if want_grad:
        grad += pulled[:, -1:] * x - pulled[:, :-1]


def _weighed(
    x: Tensor, y: Tensor, squares: tuple[Tensor, Tensor], i: slice, j: slice,
    b: Tensor, kernel: Kernel, s: Tensor, want_grad: bool, buffer: Tensor,
) -> Tensor:  # fmt: skip
    """k'(r) / r between x[i] and y[j] where wanted; row sums of b k are added to s."""
    from dmviz.losses import _fused

    close = x.new_tensor((1e4 if kernel.kinked else 64.0) * torch.finfo(x.dtype).eps).numpy()[()]
    lengths, rows, columns = x.new_tensor(kernel.numbers).numpy(), i.stop - i.start, j.stop - j.start
    g = torch.mm(x[i], y[j].T, out=buffer[: rows * columns].view(rows, columns))
    parts = (t.numpy() for t in (g, x[i], y[j], squares[0][i], squares[1][j], b))
    _fused.weigh_products(*parts, _fused.CODES[kernel.name], lengths, close, s.numpy(), want_grad)
    return g


def own_sums(x: Tensor, a: Tensor, kernel: Kernel, direct: bool, want_grad: bool) -> tuple[Tensor, Tensor]:
    """sum_ij a_i a_j k(x_i, x_j), and where wanted the gradient of sum_j a_j k(x_i, x_j) at every i; each pair once."""
    x, a = x.contiguous(), a.to(x.dtype).contiguous()
    wide = a.double()
    if isinstance(kernel, Radial):
        after, grad = _own_table_pairs(x, a, kernel)
        return 2.0 * (wide @ after) + kernel.at_zero * wide.square().sum(), grad
    if direct and not want_grad:
        return 2.0 * (wide @ _pairs_after(x, a, kernel)) + kernel.at_zero * wide.square().sum(), x
    if direct:
        after, grad = _own_pairs(x, a, kernel)
        return 2.0 * (wide @ after) + kernel.at_zero * wide.square().sum(), grad
    return _own_products(x, a, kernel, want_grad)


def _pairs_after(x: Tensor, a: Tensor, kernel: Kernel) -> Tensor:
    """For every x_i, sum_j a_j k(x_i, x_j) over the points j after it."""
    from dmviz.losses import _fused

    s, none = torch.zeros(len(x), dtype=torch.float64), torch.zeros(1, x.shape[1], dtype=torch.float64).numpy()
    across, lengths, code = x.T.contiguous().numpy(), x.new_tensor(kernel.numbers).numpy(), _fused.CODES[kernel.name]
    over_rows(
        lambda i: _fused.kernel_rows(
            x[i].numpy(), across, a.numpy(), code, lengths, s[i].numpy(), none, False, i.start
        ),
        len(x),
        len(x) ** 2 // 2,
    )
    return s


LANES = 8
"""Blocks of rows are dealt to so many lanes, each with sums of its own, whatever the number of threads."""


def _own_pairs(x: Tensor, a: Tensor, kernel: Kernel) -> tuple[Tensor, Tensor]:
    """For every x_i, sum_j a_j k(x_i, x_j) over the points j after it; and the gradients over all points."""
    from dmviz.losses import _fused

    pairs = len(x) ** 2 // 2
    lanes = LANES if pairs >= PARALLEL else 1
    across, lengths = x.T.contiguous().numpy(), x.new_tensor(kernel.numbers).numpy()
    s, grad = torch.zeros(len(x), dtype=torch.float64), torch.zeros(lanes, *across.shape, dtype=torch.float64)

    def work(mine: slice) -> None:
        for lane in range(mine.start, mine.stop):
            _fused.own_rows(
                x.numpy(), across, a.numpy(), _fused.CODES[kernel.name], lengths, lane, lanes, s.numpy(),
                grad[lane].numpy(),
            )  # fmt: skip

    over_rows(work, lanes, pairs)
    return s, grad.sum(0).T


def _add_table_sums(x: Tensor, y: Tensor, b: Tensor, kernel: Radial, s: Tensor, grad: Tensor, want_grad: bool) -> None:
    """As `add_kernel_sums`, for a kernel that is read from a table."""
    from dmviz.losses import _fused_more

    across, b, (table, scale) = y.T.contiguous().numpy(), b.contiguous(), kernel.cells(x.dtype)
    over_rows(
        lambda i: _fused_more.table_rows(
            x[i].numpy(), across, b.numpy(), table, scale, s[i].numpy(), grad[i].numpy(), want_grad
        ),
        len(x),
        len(x) * len(y),
    )


def _own_table_pairs(x: Tensor, a: Tensor, kernel: Radial) -> tuple[Tensor, Tensor]:
    """As `_own_pairs`."""
    from dmviz.losses import _fused_more

    lanes = LANES if len(x) ** 2 // 2 >= PARALLEL else 1
    across, (table, scale) = x.T.contiguous().numpy(), kernel.cells(x.dtype)
    s, grad = torch.zeros(len(x), dtype=torch.float64), torch.zeros(lanes, *across.shape, dtype=torch.float64)

    def work(mine: slice) -> None:
        for lane in range(mine.start, mine.stop):
            _fused_more.own_table_rows(
                x.numpy(), across, a.numpy(), table, scale, lane, lanes, s.numpy(), grad[lane].numpy()
            )

    over_rows(work, lanes, len(x) ** 2 // 2)
    return s, grad.sum(0).T


def _own_products(x: Tensor, a: Tensor, kernel: Kernel, want_grad: bool) -> tuple[Tensor, Tensor]:
    n, x2 = len(x), x.square().sum(1)
    s, pulled = torch.zeros(n, dtype=torch.float64), torch.zeros(n, x.shape[1] + 1, dtype=torch.float64)
    share, twice = torch.cat((x, torch.ones_like(x[:, :1])), 1) * a[:, None], 2.0 * a
    buffer = x.new_empty(PANEL[0] * PANEL[1])
    for start in range(0, n, PANEL[0]):
        i = slice(start, min(start + PANEL[0], n))
        w = _weighed(x, x, (x2, x2), i, i, a[i], kernel, s[i], want_grad, buffer)
        if want_grad:
            pulled[i] += w @ share[i]
        for after in range(i.stop, n, PANEL[1]):
            j = slice(after, min(after + PANEL[1], n))
            w = _weighed(x, x, (x2, x2), i, j, twice[j], kernel, s[i], want_grad, buffer)
            if want_grad:
                pulled[i] += w @ share[j]
                pulled[j] += w.T @ share[i]
    return a.double() @ s, pulled[:, -1:] * x - pulled[:, :-1]


PANEL = (256, 1024)
"""Rows and columns whose product stays in the second cache."""


def panels(n: int, m: int) -> Iterator[tuple[slice, slice]]:
    for i in range(0, n, PANEL[0]):
        for j in range(0, m, PANEL[1]):
            yield slice(i, min(i + PANEL[0], n)), slice(j, min(j + PANEL[1], m))


class Rows(NamedTuple):
    """Points in an order that keeps neighbours together: a few consecutive ones look at near columns only."""

    order: Tensor  # (N,) where each came from
    x: Tensor  # (N, D) in that order
    middle: Tensor  # (B, D) of every `ROWS` of them
    radius: Tensor  # (B,) how far one of them is from it


ROWS = 8
"""Neighbours that look for near columns together."""

NEAR_DIMS, NEAR_PAIRS = 3, 200_000
"""Dimensions up to which, and pairs from which, it pays to look for the near ones."""

_CUT = 20.0
"""Terms e^-20 below the largest of their row are left out, in float32; e^-40 in float64."""


def rows_of(x: Tensor) -> Rows:
    """(N, D) float points in the order of a k-d tree, in blocks."""
    from scipy.spatial import cKDTree

    order = torch.from_numpy(cKDTree(x.numpy(), leafsize=ROWS, compact_nodes=False).indices.astype(np.int64))
    return blocked(x[order], order)


def blocked(ordered: Tensor, order: Tensor) -> Rows:
    """Rows whose points come in a good order already."""
    count = -(-len(ordered) // ROWS)
    blocks = torch.cat([ordered, ordered[-1:].expand(count * ROWS - len(ordered), -1)]).view(count, ROWS, -1)
    middle = 0.5 * (blocks.amin(1) + blocks.amax(1))
    radius = (blocks - middle[:, None]).square().sum(2).amax(1).sqrt() * (1.0 + 1e-5)
    return Rows(order, ordered, middle, radius)


def _near_softmin(
    rows: Rows, y: Tensor, h: Tensor, eps: float, p: int, want_grad: bool
) -> tuple[Tensor, Tensor, Tensor]:
    from dmviz.losses import _fused_transport

    found = [torch.empty(len(rows.x), dtype=torch.float64) for _ in range(2)]
    found.append(torch.zeros(rows.x.shape, dtype=torch.float64))
    across, (scale, cut) = y.T.contiguous().numpy(), _near_numbers(rows.x, eps, p)
    given = (*(t.numpy() for t in rows[1:]), across, h.contiguous().numpy(), scale, p, cut)
    out = [t.numpy() for t in found]
    over_rows(
        lambda r: _fused_transport.near_softmin(*given, r.start, r.stop, *out, want_grad),
        len(rows.radius),
        len(rows.x) * len(y),
    )
    peak, total, sums = (torch.empty_like(t).index_copy_(0, rows.order, t) for t in found)
    return peak, total, sums


def _near_numbers(x: Tensor, eps: float, p: int) -> tuple[Any, Any]:
    cut = _CUT if x.dtype == torch.float32 else 2.0 * _CUT
    return tuple(x.new_tensor([(0.5 if p == 2 else 1.0) / eps, cut]).numpy())  # type: ignore[return-value]


def share_slopes(
    x: Tensor,
    y: Tensor,
    rows: tuple[Tensor, Tensor, Tensor],
    order: Tensor | None,
    a: Tensor,
    scale: float,
    mu: Tensor | None,
    share_of: float,
) -> tuple[Tensor, float, Tensor]:
    """What a sparse plan's cost sum_ij P_ij c_ij, c = |x - y|^2, pulls at each x over its mass, plan's change included.

    And the cost, and the mu that solves (see `embedding_clustering._adjoint`): from the last one, to `share_of`.
    """
    from dmviz.losses import _fused_more

    back = torch.arange(len(x)) if order is None else order
    points, mass, plan = x[back].contiguous().numpy(), a[back].contiguous().numpy(), tuple(t.numpy() for t in rows)
    others, cost = y.contiguous().numpy(), torch.empty(int(rows[0][-1]), dtype=x.dtype).numpy()
    r, v = torch.zeros(len(x), dtype=torch.float64), torch.zeros(x.shape, dtype=torch.float64)
    s, m, pulled = (torch.zeros(len(y), dtype=torch.float64) for _ in range(3))
    _fused_more.share_costs(points, others, *plan, mass, cost, r.numpy(), s.numpy(), m.numpy())
    _fused_more.spread_rows(*plan, mass * r.numpy(), pulled.numpy())
    mu = torch.zeros_like(s) if mu is None else mu.clone()
    _fused_more.share_adjoint(*plan, mass, m.numpy(), (s - pulled).numpy(), share_of, 500, mu.numpy())
    _fused_more.share_pulls(points, others, *plan, cost, r.numpy(), mu.numpy(), scale, v.numpy())
    return torch.empty_like(v).index_copy_(0, back, v), float(a[back] @ r), mu


def softmin_parts(
    x: Tensor, y: Tensor, h: Tensor, eps: float, p: int, want_grad: bool, direct: bool, rows: Rows | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Largest exponent, sum of exponentials over it, and their sum times grad C (see `_entropic.softmin`)."""
    from dmviz.losses import _fused_transport

    if rows is not None:
        return _near_softmin(rows, y, h, eps, p, want_grad)
    scale = x.new_tensor((0.5 if p == 2 else 1.0) / eps).numpy()[()]
    peak = torch.full((len(x),), -math.inf, dtype=torch.float64)
    total, sums = torch.zeros_like(peak), torch.zeros(x.shape, dtype=torch.float64)
    x, y, h = x.contiguous(), y.contiguous(), h.contiguous()
    if direct:
        across = y.T.contiguous().numpy()
        over_rows(
            lambda i: _fused_transport.softmin_rows(
                x[i].numpy(), across, h.numpy(), scale, p, *(t[i].numpy() for t in (peak, total, sums)), want_grad
            ),
            len(x),
            len(x) * len(y),
        )
        return peak, total, sums
    close = x.new_tensor(1e4 * torch.finfo(x.dtype).eps).numpy()[()]
    x2, y2, row_sum, old = x.square().sum(1), y.square().sum(1), torch.zeros_like(peak), torch.ones_like(peak)
    for i, j in panels(len(x), len(y)):
        g = x[i] @ y[j].T
        _fused_transport.softmin_products(
            *(t.numpy() for t in (g, x[i], y[j], x2[i], y2[j], h[j])),
            scale, p, close, *(t[i].numpy() for t in (peak, total, row_sum, old)),
        )  # fmt: skip
        if want_grad:
            sums[i] = sums[i] * old[i, None] - g @ y[j]
    return peak, total, sums + row_sum[:, None] * x


def plan(
    x: Tensor,
    y: Tensor,
    h: Tensor,
    a: Tensor,
    eps: float,
    p: int,
    most: int,
    direct: bool = True,
    rows: Rows | None = None,
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor, Tensor]] | None:
    """Largest exponent, sum over it, marginal on y, and rows of the plan, where they fit: `_fused_transport.plan_rows`.

    The plan's rows, and only they, come in the order of `rows` where it is given.
    """
    from dmviz.losses import _fused_transport

    scale = x.new_tensor((0.5 if p == 2 else 1.0) / eps).numpy()[()]
    cut = x.new_tensor(17.0 if x.dtype == torch.float32 else 37.0).numpy()[()]
    peak, start = torch.empty(len(x), dtype=torch.float64), torch.empty(len(x) + 1, dtype=torch.int64)
    total, m, room = torch.empty_like(peak), torch.zeros(len(y), dtype=torch.float64), min(most, (len(x) + 1) * len(y))
    column, share = torch.empty(room, dtype=torch.int32), torch.empty(room, dtype=x.dtype)
    x, y, h = x.contiguous(), y.T.contiguous(), h.contiguous()
    if rows is not None:
        scale, _ = _near_numbers(x, eps, p)
        given, out = (*rows[1:], y, h, a[rows.order].contiguous()), (peak, total, m, start, column, share)
        fits = _fused_transport.near_plan(*(t.numpy() for t in given), scale, p, cut, *(t.numpy() for t in out))
        peak, total = (torch.empty_like(t).index_copy_(0, rows.order, t) for t in (peak, total))
        return (peak, total, m, (start, column, share)) if fits else None
    if p == 2 and not direct:
        fits = _plan_of_products(x, y, h, a, scale, cut, (peak, total, m, start, column, share))
        return (peak, total, m, (start, column, share)) if fits else None
    fits = _fused_transport.plan_rows(
        *(t.numpy() for t in (x, y, h, a)), scale, p, cut, *(t.numpy() for t in (peak, total, m, start, column, share))
    )
    return (peak, total, m, (start, column, share)) if fits else None


def _plan_of_products(
    x: Tensor, y: Tensor, h: Tensor, a: Tensor, scale: Any, cut: Any, out: tuple[Tensor, ...]
) -> bool:
    """In high dimension distances come from matrix products, some rows at a time; False where the plan does not fit."""
    from dmviz.losses import _fused_transport

    x2, y2, filled, arrays = x.square().sum(1), y.square().sum(0), 0, [t.numpy() for t in out]
    arrays[3][0] = 0
    for i in range(0, len(x), PANEL[0]):
        rows = slice(i, i + PANEL[0])
        given = [t.numpy() for t in (x[rows] @ y, x2[rows], y2, h, a)]
        filled = _fused_transport.plan_panel(*given, scale, cut, i, filled, *arrays)
        if filled < 0:
            return False
    return True


def newton_step(
    rows: tuple[Tensor, Tensor, Tensor], a: Tensor, m: Tensor, slope: Tensor, need: float, most: int
) -> tuple[Tensor, float]:
    """See `_fused_transport.newton_step`."""
    from dmviz.losses import _fused_transport

    u = torch.empty_like(m)
    left, _ = _fused_transport.newton_step(*(t.numpy() for t in (*rows, a, m, slope)), need, most, u.numpy())
    return u, float(left)


def add_stein_sums(
    x: Tensor, s: Tensor, y: Tensor, s_y: Tensor, a: Tensor, kernel: Kernel, out: tuple[Tensor, Tensor, Tensor]
) -> None:
    """Add Stein sums, gradients and derivatives in the score (see `_stein`), all float64."""
    from dmviz.losses import _fused

    x, s, a = x.contiguous(), s.contiguous(), a.contiguous()
    across, scores = y.T.contiguous().numpy(), s_y.T.contiguous().numpy()
    code, length = _fused.CODES[kernel.name], x.new_tensor(kernel.lengths[0]).numpy()[()]
    over_rows(
        lambda i: _fused.stein_rows(
            x[i].numpy(), s[i].numpy(), across, scores, a.numpy(), code, length, *(t[i].numpy() for t in out)
        ),
        len(x),
        len(x) * len(y),
    )
