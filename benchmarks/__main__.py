"""`python -m benchmarks`: all of them but the player's, one after the other, and the tables in the README."""

from benchmarks import directions, live, losses, memory, table


def main() -> None:
    for part in (losses, memory, directions, live, table):
        print(f"--- {part.__name__}", flush=True)
        part.main([])


if __name__ == "__main__":
    main()
