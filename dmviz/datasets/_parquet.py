"""Reads one parquet file in a process of its own: a damaged footer ends pyarrow's process, not the app's.

Run as a script, so that the child imports nothing but pyarrow: path, a file for the answer, limits and patterns as
JSON. It prints one sentence where the file is too large, and writes the table as an Arrow stream otherwise.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

_SECONDS = 120


class Crash(RuntimeError):
    """The child ended without an answer."""


def read_apart(path: Path, patterns: Sequence[str], most_cells: int, most_bytes: int) -> tuple[Any, str]:
    """The columns that match one of the patterns, all where there are none, and "" or why there is no table."""
    import pyarrow as pa

    limits = json.dumps({"patterns": list(patterns), "cells": most_cells, "bytes": most_bytes})
    with tempfile.TemporaryDirectory() as folder:
        answer = os.path.join(folder, "table.arrow")
        call = [sys.executable, "-I", __file__, str(path), answer, limits]
        try:
            done = subprocess.run(call, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            raise Crash(f"reading took more than {_SECONDS} s") from None
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "what():" in line or "Error" in line]
            raise Crash(lines[-1].strip().removeprefix("what():") if lines else "its reader stopped")
        if done.stdout.strip():
            return None, done.stdout.strip()
        with pa.OSFile(answer) as file:
            return pa.ipc.open_stream(file).read_all(), ""


def _main(path: str, answer: str, limits: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    bound = json.loads(limits)
    with pq.ParquetFile(path) as file:
        names = list(dict.fromkeys(file.schema_arrow.names))
        if bound["patterns"]:
            names = [name for name in names if _wanted(name.strip().replace(",", "_"), bound["patterns"])]
        problem = _too_large(file.metadata, names, bound)
        if problem:
            print(problem)
            return
        table = file.read(columns=names, use_threads=False)
    table.validate(full=True)  # offsets and text of a damaged page would end the parent instead
    with pa.OSFile(answer, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)


def _wanted(name: str, patterns: list[str]) -> bool:
    # The parent shortens long names for its sentences, so these are told apart there.
    return len(name) > 60 or any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def _too_large(meta: Any, names: list[str], bound: dict[str, int]) -> str:
    leaves = [
        group.column(i)
        for group in (meta.row_group(g) for g in range(meta.num_row_groups))
        for i in range(group.num_columns)
        if group.column(i).path_in_schema.split(".")[0] in names
    ]
    cells = max(sum(leaf.num_values for leaf in leaves), meta.num_rows)
    size = sum(leaf.total_uncompressed_size for leaf in leaves)
    if cells > bound["cells"]:
        return f"holds {cells:,} cells, and at most {bound['cells']:,} are read; take fewer rows or columns"
    if size > bound["bytes"]:
        return f"unpacks to {size >> 20:,} MB, and at most {bound['bytes'] >> 20:,} MB are read; take fewer columns"
    return ""


def _limit_memory() -> None:
    try:
        import resource  # not on Windows
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, 8 * 2**30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    _limit_memory()
    _main(*sys.argv[1:])
