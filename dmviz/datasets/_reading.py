"""Files -> a table, known by their content and bounded before anything large is allocated.

Whatever the bytes, `read` gives a pyarrow Table with notes, or raises FileProblem with one sentence.
"""

import io
import json
import math
import re
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dmviz.datasets._parquet import read_apart
from dmviz.datasets._store import shown
from dmviz.items import FileProblem

MOST_NUMBERS = 20_000_000
MOST_COLUMNS = 10_000
_MOST_UNPACKED = 2**30  # bytes
_MATRIX_NAMES = ("x", "X", "embeddings", "embedding", "data", "arr_0")

_FOREIGN = (  # first bytes of what people also try
    (b"\x80\x02", "a Python pickle, which may run code", "save the numbers as npy or csv"),
    (b"\x80\x03", "a Python pickle, which may run code", "save the numbers as npy or csv"),
    (b"\x80\x04", "a Python pickle, which may run code", "save the numbers as npy or csv"),
    (b"\x80\x05", "a Python pickle, which may run code", "save the numbers as npy or csv"),
    (b"\x1f\x8b", "compressed with gzip", "unpack it first"),
    (b"BZh", "compressed with bzip2", "unpack it first"),
    (b"\xfd7zXZ", "compressed with xz", "unpack it first"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it first"),
    (b"\x89HDF", "an HDF5 file", "save its table as parquet or npy"),
    (b"\x89PNG", "a picture", "give a table of numbers"),
    (b"\xff\xd8\xff", "a picture", "give a table of numbers"),
    (b"GIF8", "a picture", "give a table of numbers"),
    (b"%PDF", "a PDF", "give a table of numbers"),
    (b"ARROW1", "an Arrow file", "save it as parquet"),
    (b"SQLite format 3", "an SQLite database", "save its table as csv or parquet"),
    (b"\xd0\xcf\x11\xe0", "an old spreadsheet or document", "save it as csv"),
)


class Sheet(NamedTuple):
    """A table as read. `matrix` names the column of lists that holds the numbers, where the file says so."""

    table: Any  # pyarrow.Table
    notes: tuple[str, ...] = ()
    matrix: str = ""


def read(path: Path, name: str, wanted: Sequence[str] = ()) -> Sheet:
    """The table in a file, whatever its ending. `wanted`: patterns of the columns that a parquet file must give."""
    try:
        with path.open("rb") as file:
            head = file.read(64)
            kind, reader = _kind_of(head, name)
            sheet = reader(path, name, wanted)
    except FileProblem:
        raise
    except Exception as error:
        # The border to foreign bytes: parsers raise dozens of types, and a person needs one sentence of each.
        reason = str(error).strip().partition("\n")[0][:160] or type(error).__name__
        raise FileProblem(f"{name} cannot be read as {kind}; it may be damaged or cut off ({shown(reason)})") from error
    ending = path.suffix.lower().lstrip(".")
    if ending in _ENDINGS and kind not in _ENDINGS[ending]:
        note = f"read as {kind}, which its content is, and not as the ending .{ending} says"
        sheet = sheet._replace(notes=(note, *sheet.notes))
    if sheet.table.num_rows == 0:
        raise FileProblem(f"{name} has no rows; a table needs at least one row of numbers")
    return _with_distinct_names(sheet)


Reader = Callable[[Path, str, Sequence[str]], Sheet]


def _kind_of(head: bytes, name: str) -> tuple[str, Reader]:
    if not head:
        raise FileProblem(f"{name} is empty")
    for start, what, remedy in _FOREIGN:
        if head.startswith(start):
            raise FileProblem(f"{name} is {what}; {remedy}")
    if head.startswith(b"\x93NUMPY"):
        return "npy", _npy
    if head.startswith(b"PK\x03\x04") or head.startswith(b"PK\x05\x06"):
        return "npz", _npz
    if head.startswith(b"PAR1"):
        return "parquet", _parquet
    return "text", _text


_ENDINGS = {
    "npy": {"npy"},
    "npz": {"npz"},
    "parquet": {"parquet"},
    "csv": {"text"},
    "tsv": {"text"},
    "txt": {"text"},
    "jsonl": {"text"},
    "ndjson": {"text"},
    "json": {"text"},
}


def _bounded(numbers: int, columns: int, name: str) -> None:
    if numbers > MOST_NUMBERS:
        raise FileProblem(
            f"{name} holds {numbers:,} cells, and at most {MOST_NUMBERS:,} are read; take fewer rows or columns"
        )
    if columns > MOST_COLUMNS:
        raise FileProblem(f"{name} has {columns:,} columns, and at most {MOST_COLUMNS:,} are read")


# ---- npy and npz: the header says how much there is, and it is asked before a byte is allocated


def _npy(path: Path, name: str, wanted: Sequence[str]) -> Sheet:
    with path.open("rb") as file:
        array = _array(file, name, path.stat().st_size)
    return _sheet_of_arrays({"x": array}, name)


def _npz(path: Path, name: str, wanted: Sequence[str]) -> Sheet:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if any(m.filename.startswith(("xl/", "word/", "content.xml")) for m in members):
            raise FileProblem(f"{name} is a spreadsheet or document; save it as csv")
        arrays = [m for m in members if m.filename.endswith(".npy")]
        if not arrays:
            raise FileProblem(f"{name} is a zip archive without arrays; unpack it, or save the numbers as npz")
        if len(arrays) > 1000:
            raise FileProblem(f"{name} holds {len(arrays):,} arrays, and at most 1,000 are read")
        found: dict[str, np.ndarray] = {}
        for member in arrays:
            if member.flag_bits & 1:
                raise FileProblem(f"{name} is protected by a password; unpack it first")
            with archive.open(member) as file:
                array = _array(file, f"{name}: array {shown(member.filename)[:-4]!r}", member.file_size)
            found[member.filename.removesuffix(".npy")] = array
            _bounded(sum(a.size for a in found.values()), 0, name)
    return _sheet_of_arrays(found, name)


def _array(file: Any, name: str, size: int) -> np.ndarray:
    """One array in npy form of which `size` bytes are said to exist, with its bounds checked first."""
    version = np.lib.format.read_magic(file)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in read_header:
        raise FileProblem(f"{name} is npy version {version[0]}.{version[1]}; versions 1.0 and 2.0 are read")
    shape, fortran, dtype = read_header[version](file)
    if dtype.hasobject:
        raise FileProblem(f"{name} holds Python objects (a pickle, which may run code); save plain numbers")
    count = math.prod(shape)
    columns = count // max(1, shape[0]) if shape else 1
    _bounded(count, columns, name)
    if count * dtype.itemsize > min(_MOST_UNPACKED, size):
        raise FileProblem(f"{name} is cut off: its header promises {count * dtype.itemsize:,} bytes of numbers")
    raw = file.read(count * dtype.itemsize)
    if len(raw) < count * dtype.itemsize:
        raise FileProblem(f"{name} is cut off: {len(raw):,} of {count * dtype.itemsize:,} bytes are there")
    return np.frombuffer(raw, dtype, count).reshape(shape, order="F" if fortran else "C")


def _sheet_of_arrays(arrays: dict[str, np.ndarray], name: str) -> Sheet:
    import pyarrow as pa

    arrays = {k: a for k, a in arrays.items() if a.ndim}
    if not arrays:
        raise FileProblem(f"{name} holds a single number; a table needs rows")
    matrices = [k for k, a in arrays.items() if a.ndim > 1 and a.dtype.kind in "biuf"]
    main = next((k for k in _MATRIX_NAMES if k in matrices), matrices[0] if matrices else "")
    rows = len(arrays[main] if main else next(iter(arrays.values())))
    notes, columns = [], {}
    for key, array in arrays.items():
        if len(array) != rows:
            notes.append(f"array {shown(key)!r} left out: it has {len(array):,} rows and the others {rows:,}")
        elif array.dtype.names:
            columns.update({str(field): _column(array[field], notes, str(field)) for field in array.dtype.names})
        else:
            columns["x" if key == main else key] = _column(array, notes, key)
    return Sheet(pa.table(columns), tuple(notes), "x" if main else "")


def _column(array: np.ndarray, notes: list[str], key: str) -> Any:
    import pyarrow as pa

    array = np.ascontiguousarray(array)
    if array.dtype.byteorder == ">" or array.dtype == np.longdouble:
        array = array.astype(np.float64 if array.dtype.kind == "f" else array.dtype.newbyteorder("="))
    if array.dtype.kind in "SUMmcV":  # words, dates, complex numbers and raw bytes: good for labels only
        flat = [_word(v) for v in array.reshape(len(array), -1)[:, 0].tolist()] if array.size else []
        return pa.array(flat, pa.string())
    if array.ndim == 1:
        return pa.array(array)
    width = math.prod(array.shape[1:])
    if array.ndim > 2:
        shape = " x ".join(str(side) for side in array.shape[1:])
        notes.append(f"each {shape} entry of {shown(key)!r} is taken as {width:,} columns")
    if width == 0:
        return pa.nulls(len(array))
    return pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), width)


def _word(value: Any) -> str | None:
    if value is None:
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


# ---- parquet: the footer says how many values each column holds


def _parquet(path: Path, name: str, wanted: Sequence[str]) -> Sheet:
    table, problem = read_apart(path, wanted, MOST_NUMBERS, _MOST_UNPACKED)
    if problem:
        raise FileProblem(f"{name} {problem}")
    _bounded(0, table.num_columns, name)
    return Sheet(table)


# ---- text: csv and its kin, json lines, json


def _text(path: Path, name: str, wanted: Sequence[str]) -> Sheet:
    text, notes = _decoded(path.read_bytes(), name)
    start = text.lstrip()[:1]
    if not start:
        raise FileProblem(f"{name} is empty")
    sheet = _json(text, name) if start in "{[" else _csv(text, name)
    return sheet._replace(notes=(*notes, *sheet.notes))


def _decoded(data: bytes, name: str) -> tuple[str, tuple[str, ...]]:
    notes: tuple[str, ...] = ()
    if data.startswith((b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff")):
        raise FileProblem(f"{name} is in UTF-32; save it as UTF-8")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        try:
            text = data.decode("utf-16")
        except UnicodeDecodeError as error:
            raise FileProblem(f"{name} is damaged UTF-16 at byte {error.start:,}; save it as UTF-8") from None
        notes = ("read as UTF-16",)
    else:
        if b"\x00" in data[:4096]:
            likely = data[1:4096:2].count(0) * 3 > len(data[:4096]) or data[0:4096:2].count(0) * 3 > len(data[:4096])
            what = "looks like UTF-16 without a byte-order mark" if likely else "is not text, and no kind that is read"
            raise FileProblem(f"{name}: {what}; save it as csv in UTF-8, parquet, npy, npz or json lines")
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise FileProblem(
                f"{name} is not UTF-8: byte {error.start:,} is 0x{data[error.start]:02x}; save it as UTF-8"
            ) from None
    if "\x00" in text:
        raise FileProblem(f"{name} has a zero byte in its text, at sign {text.index(chr(0)):,}; save it as plain UTF-8")
    return text.replace("\r\n", "\n").replace("\r", "\n"), notes


def _csv(text: str, name: str) -> Sheet:
    import pyarrow.csv as pc

    text = text.lstrip("\n")
    mark = _delimiter(text)
    if mark == " ":
        text, mark = re.sub(r"[ \t]+", "\t", re.sub(r"(?m)^[ \t]+|[ \t]+$", "", text)), "\t"
    header = _cells(text, mark)
    _bounded(text.count(mark) + text.count("\n"), len(header), name)
    bare = all(_is_number(cell) for cell in header)
    torn: list[Any] = []

    def keep_torn(row: Any) -> str:
        torn.append(row)
        return "skip"

    raw = text.encode()
    table = pc.read_csv(
        io.BytesIO(raw),
        # One block, so that a column's type is judged by all of its rows.
        read_options=pc.ReadOptions(use_threads=False, block_size=len(raw) + 1024, autogenerate_column_names=bare),
        parse_options=pc.ParseOptions(delimiter=mark, newlines_in_values='"' in text, invalid_row_handler=keep_torn),
        convert_options=pc.ConvertOptions(
            null_values=["", "nan", "NaN", "NAN", "-nan", "NA", "null", "NULL"],
            decimal_point="," if mark == ";" and re.search(r"(^|;)-?\d+,\d+(;|$)", text[:4096], re.M) else ".",
        ),
    )
    if torn:
        row = torn[0]
        number = f" {row.number - (0 if bare else 1):,}" if row.number else ""
        raise FileProblem(
            f"{name}: row{number} has {row.actual_columns:,} cells and the first line {row.expected_columns:,}; "
            f"every row needs the same number"
        )
    if not bare:
        return Sheet(table)
    width = table.num_columns
    names = [f"x{i}" for i in range(width)]
    note = f"no header: columns are named x0 to x{width - 1}" if width > 1 else "no header: the column is named x0"
    return Sheet(table.rename_columns(names), (note,))


def _cells(text: str, mark: str) -> list[str]:
    line = text.partition("\n")[0]
    return [cell.strip().strip('"') for cell in line.split(mark)]


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"[-+]?(\d+[.,]?\d*|[.,]\d+)([eE][-+]?\d+)?", cell) is not None


def _delimiter(text: str) -> str:
    """The sign that splits the first lines into the same number of cells, and into the most."""
    lines = [re.sub(r'"[^"]*"', "", line) for line in text[:65536].split("\n")[:20] if line.strip()]
    if len(text) > 65536 and len(lines) > 1:
        lines.pop()  # may be cut
    counts = {mark: [line.count(mark) for line in lines] for mark in "\t;,|"}
    even = {mark: c[0] for mark, c in counts.items() if c and c[0] and min(c) == max(c)}
    some = even or {mark: c[0] for mark, c in counts.items() if c and c[0]}
    if some:
        # 1,5;2,5 has both signs evenly: the semicolon and the tab are never part of a number.
        return next((mark for mark in "\t;" if mark in some), max(some, key=lambda mark: some[mark]))
    words = [line.split() for line in lines]
    if words and len(words[0]) > 1 and all(len(w) == len(words[0]) for w in words) and _is_number(words[-1][0]):
        return " "
    return ","


def _json(text: str, name: str) -> Sheet:
    _bounded(text.count(",") + 1, 0, name)
    try:
        whole = json.loads(text)
    except RecursionError:
        raise FileProblem(f"{name} is nested too deeply; give one flat record a line") from None
    except ValueError:
        whole = list(_lines(text, name))
    if isinstance(whole, dict):
        whole = _records(whole)
    if all(isinstance(row, (int, float)) and not isinstance(row, bool) for row in whole):
        whole = [[row] for row in whole] if len(whole) != 1 or text.lstrip()[0] == "[" else whole
    if whole and all(isinstance(row, list) for row in whole):
        return _sheet_of_records([{"x": row} for row in whole], name, "x")
    for number, row in enumerate(whole, 1):
        if not isinstance(row, dict):
            raise FileProblem(f'{name}: row {number:,} must be a record such as {{"x": 1}}, got {shown(str(row))}')
    return _sheet_of_records(whole, name, "")


def _lines(text: str, name: str) -> Iterable[Any]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as error:
                reason = getattr(error, "msg", "a number or a nesting that is too long")
                raise FileProblem(f"{name}: line {number:,} is not JSON: {reason}") from None


def _records(whole: dict[str, Any]) -> list[Any]:
    """Records of one JSON object: columns of equal length, or a single record."""
    values = list(whole.values())
    if values and all(isinstance(v, dict) for v in values):  # as pandas writes it: {column: {row: cell}}
        values = [list(v.values()) for v in values]
    lists = bool(values) and all(isinstance(v, list) for v in values)
    if lists and len({len(v) for v in values}) == 1 and not any(isinstance(c, list) for c in values[0]):
        return [dict(zip(whole, row, strict=True)) for row in zip(*values, strict=True)]
    return [whole]


def _sheet_of_records(rows: list[dict[str, Any]], name: str, matrix: str) -> Sheet:
    import pyarrow as pa

    keys = list(dict.fromkeys(key for row in rows for key in row))
    _bounded(len(rows) * len(keys), len(keys), name)
    columns = {key: _json_column([row.get(key) for row in rows]) for key in keys}
    return Sheet(pa.table(columns) if columns else pa.table({"x": pa.nulls(0)}), (), matrix)


def _json_column(values: list[Any]) -> Any:
    import pyarrow as pa

    there = [v for v in values if v is not None]
    if all(isinstance(v, bool) for v in there):
        return pa.array(values, pa.bool_())
    if all(isinstance(v, (int, float)) for v in there):
        return pa.array([None if v is None else _float(v) for v in values], pa.float64())
    if all(isinstance(v, list) and all(isinstance(c, (int, float)) or c is None for c in v) for v in there):
        rows = [None if v is None else [math.nan if c is None else _float(c) for c in v] for v in values]
        return pa.array(rows, pa.list_(pa.float64()))
    return pa.array([None if v is None else v if isinstance(v, str) else json.dumps(v) for v in values], pa.string())


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number beyond 1e308
        return math.inf if value > 0 else -math.inf


def _with_distinct_names(sheet: Sheet) -> Sheet:
    names: dict[str, None] = {}
    notes = list(sheet.notes)
    for i, given in enumerate(sheet.table.column_names, 1):
        clean = shown(given.strip()).replace(",", "_") or f"column {i}"  # commas part the names that people choose
        new, copy = clean, 1
        while new in names:
            copy += 1
            new = f"{clean} ({copy})"
        if copy > 1:
            notes.append(f"a second column {clean!r} is named {new!r}")
        names[new] = None
    return Sheet(sheet.table.rename_columns(list(names)), tuple(notes), sheet.matrix)
