"""Every entry explains itself: formula, parameters, sources and code arrive on the page as they were written."""

import re
from pathlib import Path

import pytest

from dmviz import docs
from dmviz.catalog import FOLDERS, entry_class, menu
from dmviz.losses.energy_distance import EnergyDistance
from dmviz.losses.mmd import Mmd
from dmviz.params import params_of
from dmviz.run import Setup

ENTRIES = [(folder, name) for folder in FOLDERS for name in menu(folder)]


@pytest.mark.parametrize(("folder", "name"), ENTRIES)
def test_about_keeps_formula_parameters_and_doctest(folder: str, name: str) -> None:
    cls = entry_class(folder, name)
    text = docs.about(cls())
    assert text.startswith(f"### {cls.title}\n\n")
    written = re.findall(r"\$\$(.+?)\$\$", cls.__doc__, flags=re.DOTALL)
    shown = re.findall(r"^\$\$\n(.+)\n\$\$$", text, flags=re.MULTILINE)
    assert [" ".join(formula.split()) for formula in written] == shown
    assert text.count("```") % 2 == 0
    outside = re.sub(r"```python\n.*?```", "", text, flags=re.DOTALL)
    assert ">>>" not in outside and "```" not in outside
    for param in params_of(cls):
        assert re.search(rf"^\| {re.escape(param.name.replace('_', ' '))} \|", text, flags=re.MULTILINE)
    rows = re.findall(r"^\|.*$", text, flags=re.MULTILINE)
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} <= {7}  # six columns, whatever the words hold


@pytest.mark.parametrize(("folder", "name"), ENTRIES)
def test_every_source_is_a_reference_that_we_have(folder: str, name: str) -> None:
    for key in entry_class(folder, name).source:
        assert key in docs.references(), f"{name} cites {key}, which assets/references.bib does not have"
        assert "no year" not in docs.citation(key) and "No author" not in docs.citation(key)


@pytest.mark.parametrize(("folder", "name"), ENTRIES)
def test_code_is_the_file_of_the_entry(folder: str, name: str) -> None:
    cls = entry_class(folder, name)
    root = Path(docs.__file__).parent
    assert docs.code(cls()) == (root / folder / f"{name}.py").read_text(encoding="utf-8")


def test_the_table_shows_default_and_chosen_value() -> None:
    table = docs.parameters(Mmd(bandwidth=0.25, median=True))
    assert "| bandwidth | 0.001 to 1000 | length | 0.5 | 0.25 |" in table
    assert "| median | on, off |  | off | on |" in table
    assert docs.parameters(EnergyDistance()) == ""


def test_signs_of_markdown_stay_words_in_a_table() -> None:
    assert docs._cell("a|b *c* <i> $x$ _d_") == r"a\|b \*c\* \<i\> \$x\$ \_d\_"


def test_doctests_are_fenced_where_they_are_not() -> None:
    text = "Words.\n\n>>> 1 + 1  # here\n2\n\nMore words.\n\n```python\n>>> 2\n2\n\n```"
    assert (
        docs._fenced(text)
        == "Words.\n\n```python\n>>> 1 + 1  # here\n2\n```\n\nMore words.\n\n```python\n>>> 2\n2\n```"
    )


def test_bibtex_of_a_setup_has_each_source_once_and_reads_back() -> None:
    setup = Setup(loss=Mmd(), referees="energy_distance")
    found = {r.key for r in docs.read_bibtex(docs.bibtex(setup))}
    assert {*Mmd.source, *EnergyDistance.source, *setup.projection.source} <= found
    assert docs.bibtex(setup).count("{gretton2012kernel,") == 1


def test_without_its_files_a_citation_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "references", dict)
    assert "this installation does not have it" in docs.about(Mmd())
    assert docs.bibtex(Setup(loss=Mmd(), referees="")).startswith("% Not in this installation")


def test_a_citation_names_all_it_knows() -> None:
    assert docs.citation("szekely2013energy") == (
        "Gábor J. Székely and Maria L. Rizzo (2013). Energy statistics: A class of statistics based on distances. "
        "*Journal of Statistical Planning and Inference* 143(8), 1249–1272."
    )


HOSTILE = {
    "never closed": ("@article{a, title = {x\n@book{b, title = {Y}}", {"b": "Y"}),
    "parentheses": ("@book(b, title = {A (good) one})", {"b": "A (good) one"}),
    "joined": ('@string{s = "Sum"} @book{b, title = s # " of " # {Parts}}', {"b": "Sum of Parts"}),
    "a bare month": ("@book{b, title = {T}, month = jan}", {"b": "T"}),
    "a comment": ("@comment{@book{no, title = {N}}} words @book{b, title = {T}}", {"b": "T"}),
    "an at in a field": ("@book{b, title = {mail a@b.c}}", {"b": "mail a@b.c"}),
    "an empty entry": ("@book{b,}", {"b": None}),
    "no value": ("@book{b, title = , year = 3}", {"b": ""}),
    "only a brace": ("@book{", {}),
    "nothing": ("", {}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_reader_forgives(name: str) -> None:
    text, expected = HOSTILE[name]
    assert {r.key: r.fields.get("title") for r in docs.read_bibtex(text)} == expected


@pytest.mark.parametrize(
    ("latex", "letters"),
    [
        (r"Sz{\'e}kely, G{\'a}bor", "Székely, Gábor"),
        (r"Erd\H{o}s", "Erdős"),
        (r"Mo\"iss\'ee", "Moïssée"),
        (r"\"{O}zlem {\O}re {\aa}", "Özlem Øre å"),
        (r"A \$ and \_ and 5\%", "A $ and _ and 5%"),
        (r"Nguy\~{\^e}n", "Nguyễn"),
    ],
)
def test_accents_become_letters(latex: str, letters: str) -> None:
    assert docs.plain(latex) == letters
