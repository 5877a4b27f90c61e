"""What an entry says of itself: docstring, parameters, sources and code, as markdown; BibTeX of a setup."""

import inspect
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from dmviz.catalog import entry_class
from dmviz.params import Param, Range, params_of, to_text

# ---------------------------------------------------------------------------------------------------- about


def about(entry: Any) -> str:
    """The About panel of an entry: title, docstring, parameters with their values, facts and sources."""
    parts = [f"### {entry.title}", prose(entry), parameters(entry), facts(entry), sources(entry)]
    return "\n\n".join(part for part in parts if part)


def prose(entry: Any) -> str:
    """The docstring as markdown: each $$ formula $$ a block of its own, examples fenced as code."""
    text = textwrap.dedent(_docstring(entry)).strip()
    text = re.sub(r"\$\$(.+?)\$\$", _block, text, flags=re.DOTALL)
    return re.sub(r"\n{3,}", "\n\n", _fenced(text)).strip()


def sentence(entry: Any) -> str:
    """The first sentence of the docstring: what it is, to a curious student."""
    return " ".join(_docstring(entry).split("\n\n")[0].split())


def _docstring(entry: Any) -> str:
    text = inspect.getdoc(entry if inspect.isclass(entry) else type(entry)) or ""
    return "" if re.match(r"^\w+\(.*\)$", text) else text  # what a dataclass writes where there is none


def _block(found: re.Match[str]) -> str:
    # A line of a formula that starts with a sign would begin a list or a heading in markdown.
    formula = " ".join(found[1].split())
    return f"\n\n$$\n{formula}\n$$\n\n"


def _fenced(text: str) -> str:
    """Doctests within fences, since >>> starts a quotation in markdown."""
    lines: list[str] = []
    inside = given = False  # inside a fence of ours; inside one that the docstring has
    for line in text.splitlines():
        if line.strip().startswith("```"):
            given = not given
            if not given and lines and not lines[-1].strip():
                lines.pop()  # the empty line that ends a doctest
        if not given and not inside and line.startswith(">>>"):
            lines.append("```python")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)


def parameters(entry: Any) -> str:
    """A table: name, range, unit, default, the value here (not of a class, which has none), and what it does."""
    params = params_of(_class(entry))
    if not params:
        return ""
    rows = [["Parameter", "Range", "Unit", "Default", "Here", "What it does"], ["---"] * 6]
    rows += [_row(param, getattr(entry, param.name, param.default)) for param in params]
    if inspect.isclass(entry):
        rows = [row[:4] + row[5:] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _row(param: Param, value: Any) -> list[str]:
    hint = param.hint
    unit = hint.unit if isinstance(hint, Range) else ""
    words = [param.name.replace("_", " "), _range(param), unit, _shown(param.default), _shown(value), hint.help]
    return [_cell(word) for word in words]


def _range(param: Param) -> str:
    if isinstance(param.hint, Range):
        return f"{param.hint.low:g} to {param.hint.high:g}"
    return {"bool": "on, off", "choice": ", ".join(param.choices)}.get(param.kind, "text")


def _shown(value: Any, most: int = 40) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    text = f"{value:g}" if isinstance(value, float) else to_text(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def plain_cell(text: str) -> str:
    """Words in which markdown finds no signs."""
    return _cell(text)


def _cell(text: str) -> str:
    plain = " ".join(text.split())
    return re.sub(r"([\\|`*_<>\[\]$~])", r"\\\1", plain)


_FACTS = {"family": "Family", "needs": "Reads", "cost": "Cost", "laws": "Laws, each held by a test"}


def facts(entry: Any) -> str:
    """What an entry declares of itself: what it reads, what it costs, which laws it obeys."""
    said = []
    for name, title in _FACTS.items():
        value = getattr(entry, name, None)
        if isinstance(value, str) and value:
            said.append(f"* {title}: {_cell(value)}")
        elif isinstance(value, frozenset) and value:
            said.append(f"* {title}: {', '.join(sorted(law.replace('_', ' ') for law in value))}")
    return "\n".join(said)


def sources(entry: Any) -> str:
    """The literature behind an entry, one line each."""
    lines = [f"* {citation(key)}" for key in getattr(entry, "source", ())]
    return "\n".join(["**Sources**", "", *lines]) if lines else ""


def code(entry: Any) -> str:
    """The file that holds an entry."""
    module = inspect.getmodule(_class(entry))
    try:
        return inspect.getsource(module) if module else ""
    except OSError:
        return "# This installation of dmviz has no source files."


def _class(entry: Any) -> type:
    return entry if inspect.isclass(entry) else type(entry)


# ---------------------------------------------------------------------------------------------------- references


@dataclass(frozen=True)
class Reference:
    """One entry of a .bib file: its fields as plain text, and the entry as it was written."""

    kind: str
    key: str
    fields: Mapping[str, str]
    text: str


def citation(key: str) -> str:
    """One line of markdown for a key: authors, year, title, where, link."""
    found = references().get(key)
    if found is None:
        return f"{_cell(key)} (the reference is in the repository of dmviz; this installation does not have it)"
    part = found.fields
    where = next((part[n] for n in ("journal", "booktitle", "publisher", "school", "howpublished") if n in part), "")
    volume = part.get("volume", "") + (f"({part['number']})" if "number" in part and "volume" in part else "")
    place = ", ".join(
        p for p in (" ".join(p for p in (where and f"*{_cell(where)}*", volume) if p), part.get("pages")) if p
    )
    said = [
        f"{_cell(_names(part))} ({part.get('year', 'no year')}). {_cell(part.get('title', key))}.",
        place and f"{place}.",
    ]
    return " ".join(p for p in (*said, _link(part)) if p)


def _names(part: Mapping[str, str]) -> str:
    people = [_person(name) for name in re.split(r"\s+and\s+", part.get("author") or part.get("editor") or "")]
    people = [name for name in people if name]
    if len(people) > 4:
        return f"{people[0]} and others"
    return " and ".join(p for p in (", ".join(people[:-1]), *people[-1:]) if p) or "No author"


def _person(name: str) -> str:
    last, comma, first = name.partition(",")
    return " ".join(f"{first} {last}".split()) if comma else name.strip()


def _link(part: Mapping[str, str]) -> str:
    if "doi" in part:
        return f"[doi:{_cell(part['doi'])}](https://doi.org/{part['doi']})"
    if "eprint" in part:
        return f"[arXiv:{_cell(part['eprint'])}](https://arxiv.org/abs/{part['eprint']})"
    return f"[link]({part['url']})" if part.get("url", "").startswith("https://") else ""


def bibtex(setup: Any) -> str:
    """All sources of a setup and of its referees as BibTeX, each once."""
    parts = [getattr(setup, field.name) for field in fields(setup) if field.metadata.get("part")]
    parts += [entry_class("losses", name) for name in setup.referee_names()]
    return bibtex_of(key for part in parts for key in part.source) or "% The parts of this setup cite nothing."


def bibtex_of(keys: Iterable[str]) -> str:
    """These references as BibTeX, each once."""
    keys, known = dict.fromkeys(keys), references()
    lost = [key for key in keys if key not in known]
    said = [known[key].text for key in keys if key in known]
    if lost:
        said.append(f"% Not in this installation, see the repository of dmviz: {', '.join(lost)}")
    return "\n\n".join(said)


@cache
def references() -> dict[str, Reference]:
    """Every reference of dmviz by its key, from assets/*.bib: the first of two with one key."""
    found: dict[str, Reference] = {}
    for path in _files():
        for reference in read_bibtex(path.read_text(encoding="utf-8", errors="replace")):
            found.setdefault(reference.key, reference)
    return found


def _files() -> list[Path]:
    """Beside the package in the repository, or inside it in a wheel that ships them."""
    package = Path(__file__).parent
    roots = [package.parent / "assets", package / "assets"]
    return [path for root in roots for path in sorted(root.glob("*.bib"))]


# ---------------------------------------------------------------------------------------------------- BibTeX


def read_bibtex(text: str) -> Iterator[Reference]:
    r"""The entries of a .bib file. Forgiving: what is not an entry, or never ends, is passed over.

    >>> [found] = read_bibtex(r'@Book{a1, TITLE = {On {G}auss}, author = "M{\"u}ller, F.", year = 2011}')
    >>> found.key, dict(found.fields)
    ('a1', {'title': 'On Gauss', 'author': 'Müller, F.', 'year': '2011'})
    """
    macros = {month.lower()[:3]: month for month in _MONTHS}
    at = 0
    while (start := re.compile(r"@\s*(\w+)\s*[{(]").search(text, at)) is not None:
        kind, end = start[1].lower(), _closing(text, start.end())
        if end is None:
            at = start.end()
            continue
        body, at = text[start.end() : end], end + 1
        if kind == "string":
            macros |= _fields(body, macros)
        elif kind not in ("comment", "preamble"):
            key, _, rest = body.partition(",")
            yield Reference(kind, key.strip(), _fields(rest, macros), text[start.start() : at].strip())


_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
           "November", "December")  # fmt: skip


def _closing(text: str, at: int) -> int | None:
    """Where the brace or parenthesis just before `at` closes; None where it never does."""
    round_ = text[at - 1] == "("
    depth = 0  # of braces inside
    for place in range(at, len(text)):
        sign, before = text[place], text[place - 1]
        if before == "\\":
            continue
        if depth == 0 and sign == (")" if round_ else "}"):
            return place
        depth += {"{": 1, "}": -1}.get(sign, 0)
        if depth < 0 or (sign == "@" and before == "\n"):
            return None  # unbalanced, or a new entry began: this one was never closed
    return None


def _fields(body: str, macros: Mapping[str, str]) -> dict[str, str]:
    found, at = {}, 0
    while (name := re.compile(r"([A-Za-z][\w-]*)\s*=\s*").search(body, at)) is not None:
        value, at = _value(body, name.end(), macros)
        found[name[1].lower()] = plain(value)
    return found


def _value(body: str, at: int, macros: Mapping[str, str]) -> tuple[str, int]:
    """Text of a field that starts at `at`, pieces joined by # put together, and where it ends."""
    said = ""
    while at < len(body):
        if body[at] == "{":
            end = _closing(body, at + 1) or len(body)
            said, at = said + body[at + 1 : end], end + 1
        elif body[at] == '"':
            end = _quote_end(body, at + 1)
            said, at = said + body[at + 1 : end], end + 1
        else:
            word = re.compile(r"[^\s,#{}]*").match(body, at)
            end = word.end() if word else at
            said, at = said + macros.get(body[at:end].lower(), body[at:end]), end
        joined = re.compile(r"\s*#\s*").match(body, at)
        if joined is None:
            break
        at = joined.end()
    return said, max(at, 1)


def _quote_end(body: str, at: int) -> int:
    depth = 0
    for place in range(at, len(body)):
        depth += {"{": 1, "}": -1}.get(body[place], 0)
        if body[place] == '"' and depth == 0 and body[place - 1] != "\\":
            return place
    return len(body)


_ACCENTS = {"'": "\u0301", "`": "\u0300", "^": "\u0302", '"': "\u0308", "~": "\u0303", "=": "\u0304", ".": "\u0307",
            "c": "\u0327", "v": "\u030c", "u": "\u0306", "H": "\u030b", "k": "\u0328", "r": "\u030a"}  # fmt: skip
_SIGNS = {"ss": "ß", "o": "ø", "O": "Ø", "l": "ł", "L": "Ł", "ae": "æ", "AE": "Æ", "oe": "œ", "aa": "å", "AA": "Å",
          "i": "ı", "j": "ȷ", "&": "&", "%": "%", "_": "_", "#": "#", "$": "$"}  # fmt: skip


def plain(text: str) -> str:
    r"""LaTeX of a .bib field as letters.

    >>> plain(r"Sch{\"o}lkopf, Fran{\c{c}}ois, \v{S}id{\'\i}k, {\L}ukasz -- {MMD} \& more")
    'Schölkopf, François, Šidík, Łukasz – MMD & more'
    """
    text = re.sub(r"\\([a-zA-Z])\{\\([ij])\}|\\([a-zA-Z])\s+\\([ij])\b", r"\\\1\3{\2\4}", text)
    for _ in range(2):  # a letter may carry two
        text = re.sub(r"\\(['`^\"~=.])\s*\{?\\?([^\W\d_])\}?", _accented, text)
    text = re.sub(r"\\([cvuHkr])(?:\s*\{\\?([A-Za-z])\}|\s+([A-Za-z]))", _accented, text)
    text = re.sub(r"\\(ss|ae|AE|oe|aa|AA|[oOlLij])(?![A-Za-z])\s*|\\([&%_#$])", lambda m: _SIGNS[m[1] or m[2]], text)
    text = re.sub(r"(?<!\\)[{}]|\\(?=[{}])", "", text).replace("---", "—").replace("--", "–").replace("~", " ")
    return unicodedata.normalize("NFC", " ".join(text.split()))


def _accented(found: re.Match[str]) -> str:
    letter = next(group for group in found.groups()[1:] if group)
    return unicodedata.normalize("NFC", letter + _ACCENTS[found[1]])
