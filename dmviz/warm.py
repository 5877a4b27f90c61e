"""`python -m dmviz.warm`: do once, at install, what a first run would otherwise wait for."""

import time


def main() -> None:
    """Compile the fused kernels into their cache on disk and copy plotly.js beside the player."""
    from dmviz.losses._compiled import warm
    from dmviz.ui.player import vendored

    start = time.perf_counter()
    print("Compiling kernels, the first time only ...", flush=True)
    warm()
    vendored()
    print(f"Ready after {time.perf_counter() - start:.0f} s.")


if __name__ == "__main__":
    main()
