"""`python -m benchmarks`: all of them but the player's, one after the other, and the tables in the README.

`python -m benchmarks every --budget 600` runs one alone, with words of its own.
"""

import sys

from benchmarks import directions, every, live, losses, memory, table

PARTS = {"losses": losses, "every": every, "memory": memory, "directions": directions, "live": live, "table": table}


def main(words: list[str]) -> None:
    if words and words[0] not in PARTS:
        sys.exit(f"no benchmark named {words[0]!r}; there are {', '.join(PARTS)}")
    for name in words[:1] or PARTS:
        print(f"--- {name}", flush=True)
        PARTS[name].main(words[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
