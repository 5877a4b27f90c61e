"""Uploaded files, kept on this machine under the digest of their content, so that a link can name them."""

import contextlib
import os
import re
from hashlib import blake2b
from pathlib import Path

from dmviz.items import FileProblem

MOST_BYTES = 200 * 2**20
"""Largest file that is read or kept."""

_MOST_KEPT = 2 * 2**30  # bytes of uploads on the disk; the oldest go first
_TOKEN = re.compile(r"upload:([0-9a-f]{32})\.([a-z0-9]{1,8})")


def home() -> Path:
    """The folder for what dmviz keeps: the environment's DMVIZ_HOME, or a cache folder of the user's."""
    return Path(os.environ.get("DMVIZ_HOME") or Path.home() / ".cache" / "dmviz")


def keep_upload(name: str, data: bytes) -> str:
    """Keep a file's bytes and return the text, `upload:<digest>.<ending>`, that `file` reads as its path.

    The same bytes with the same ending give the same text. Raises FileProblem, one sentence, above 200 MB.
    """
    if len(data) > MOST_BYTES:
        raise FileProblem(f"{shown(name)}: a file must be at most {MOST_BYTES >> 20} MB, got {len(data) >> 20} MB")
    ending = re.sub(r"[^a-z0-9]", "", Path(name).suffix.lower())[:8] or "data"
    digest = blake2b(data, digest_size=16).hexdigest()
    folder = home() / "uploads"
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / f"{digest}.{ending}", data)
    _write(folder / f"{digest}.{ending}.name", Path(name).name.encode("utf-8", "replace"))
    _drop_oldest(folder, keep=f"{digest}.{ending}")
    return f"upload:{digest}.{ending}"


def located(path: str) -> tuple[Path, str]:
    """Where a path or an `upload:` text leads, and the name to show for it.

    Raises FileProblem, one sentence, where there is no such ordinary file, or one above 200 MB.
    """
    token = _TOKEN.fullmatch(path)
    if path.startswith("upload:") and not token:
        raise FileProblem(f"{shown(path)} is not the name of an upload; upload the file again")
    where = home() / "uploads" / path.removeprefix("upload:") if token else _local(path)
    name = _name_of(where) if token else shown(where.name)
    if not where.exists():
        gone = "is no longer on this machine; upload the file again"
        raise FileProblem(f"{shown(path)} {gone if token else 'does not exist; check the path'}")
    if not where.is_file():
        raise FileProblem(f"{shown(path)} is a folder or a device; give the path of a file")
    if (size := where.stat().st_size) > MOST_BYTES:
        raise FileProblem(f"{name}: a file must be at most {MOST_BYTES >> 20} MB, got {size >> 20} MB")
    return where, name


def shown(name: str) -> str:
    """A name as a sentence can carry it: one short line without control signs."""
    clean = "".join(c if c.isprintable() else "?" for c in name)
    return clean if len(clean) <= 60 else clean[:28] + "..." + clean[-28:]


def _local(path: str) -> Path:
    if not path.isprintable():
        raise FileProblem(f"{shown(path)} is not a path; check it for strange signs")
    try:
        return Path(path).expanduser()
    except RuntimeError:  # a ~user that does not exist
        return Path(path)


def _name_of(upload: Path) -> str:
    try:
        return shown(upload.with_name(upload.name + ".name").read_text("utf-8")) or upload.name
    except OSError:
        return upload.name


def _write(path: Path, data: bytes) -> None:
    """All or nothing, so that a reader never meets half a file."""
    if path.exists() and path.stat().st_size == len(data):
        path.touch()
        return
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(data)
    part.replace(path)


def _drop_oldest(folder: Path, keep: str) -> None:
    kept = sorted((p for p in folder.iterdir() if p.suffix not in (".name", ".part")), key=_age, reverse=True)
    total = 0
    for path in kept:
        with contextlib.suppress(OSError):  # another session may have removed it meanwhile
            total += path.stat().st_size
            if total > _MOST_KEPT and path.name != keep:
                path.unlink()
                path.with_name(path.name + ".name").unlink()


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
