"""What a loss may claim of itself: laws that property tests try, and the family it belongs to."""

from typing import Literal

Law = Literal[  # the app shows a law because its test passes
    "zero_at_target",  # F(X, X) = 0
    "nonnegative",  # F >= 0
    "symmetric",  # F(X, Y) = F(Y, X)
    "shift_free",  # moving both clouds together changes nothing
    "rotation_free",  # turning both clouds together changes nothing
    "triangle",  # F^(1 / root) obeys the triangle inequality
    "deterministic",  # the value does not depend on rng
]

Family = Literal[  # what a loss looks at, in the order of the menu
    "transport",  # plans that carry mass
    "slices",  # transport on lines, circles and trees
    "kernels",  # bumps around points
    "characteristic functions",  # waves
    "moments and order",  # means, covariances, ranks, histograms
    "densities",  # ratios and scores of two laws
    "regularizers",  # one cloud alone
    "evaluation",  # read, never descended
]
