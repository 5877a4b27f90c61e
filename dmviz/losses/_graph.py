"""Graphs of neighbours and the waves on them: eigenpairs of a graph's Laplacian."""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components, laplacian
from scipy.sparse.linalg import ArpackNoConvergence, eigsh
from scipy.spatial import cKDTree

Array = NDArray[np.float64]
_DENSE = 600  # nodes up to which all eigenpairs at once are the quickest
_BELOW = -1e-2  # eigenvalues are sought from here upwards: below 0, where the matrix can be solved
_RESTARTS = 60


def neighbour_laplacian(points: Array, neighbours: int) -> "sparse.csr_array":
    """D - A of the graph that links each of V different points to its nearest ones, and is then made connected.

    Parts that no link joins are joined by the shortest, as in a spanning tree.
    """
    count = len(points)
    near = cKDTree(points).query(points, min(neighbours + 1, count))[1].reshape(count, -1)
    source = np.repeat(np.arange(count), near.shape[1])
    links = sparse.csr_array((np.ones(source.size), (source, near.ravel())), shape=(count, count))
    parts, label = connected_components(links, directed=False)
    while parts > 1:
        pairs = np.array([_shortest(points, label == part) for part in range(parts)])
        links = links + sparse.csr_array((np.ones(parts), (pairs[:, 0], pairs[:, 1])), shape=(count, count))
        parts, label = connected_components(links, directed=False)
    links = ((links + links.T) > 0).astype(np.float64)
    links.setdiag(0)
    return laplacian(sparse.csr_array(links))


def _shortest(points: Array, inside: NDArray[np.bool_]) -> tuple[int, int]:
    """The shortest link from a part to the rest."""
    here, there = np.flatnonzero(inside), np.flatnonzero(~inside)
    far, index = cKDTree(points[there]).query(points[here])
    first = int(far.argmin())
    return int(here[first]), int(there[index[first]])


def eigenpairs(matrix: "sparse.csr_array | Array", count: int) -> tuple[Array, Array]:
    """(K,) the smallest eigenvalues above the first, 0, and (K, V) their eigenvectors, each of length 1.

    The matrix is the Laplacian of a connected graph. The start of the search is fixed, so one graph always has the same
    waves, also where an eigenvalue is repeated and any basis would do.
    """
    nodes = matrix.shape[0]
    count = min(count, nodes - 1)
    if nodes <= _DENSE or count > nodes // 2:
        values, vectors = np.linalg.eigh(sparse.csr_array(matrix).toarray())
    else:
        values, vectors = _slowest(sparse.csc_array(matrix), count + 1)
    order = values.argsort(kind="stable")[1 : count + 1]
    return values[order], np.ascontiguousarray(vectors[:, order].T)


def _slowest(matrix: "sparse.csc_array", count: int) -> tuple[Array, Array]:
    """(K,) smallest eigenvalues and (V, K) eigenvectors.

    Graphs of many dimensions have large gaps between these, and products with the matrix find them soon; those of few
    dimensions have not, but there the matrix is quick to solve.
    """
    nodes = matrix.shape[0]
    start = np.sin(1 + np.arange(nodes, dtype=np.float64) ** 1.5)
    top = 2 * matrix.diagonal().max()  # no eigenvalue of a Laplacian is larger
    turned = top * sparse.eye_array(nodes, format="csc") - matrix
    try:
        values, vectors = eigsh(turned, count, which="LA", v0=start, ncv=min(4 * count, nodes), maxiter=_RESTARTS)
    except ArpackNoConvergence:
        return eigsh(matrix, count, sigma=_BELOW, v0=start)  # type: ignore[no-any-return]
    return top - values, vectors
