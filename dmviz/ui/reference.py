"""What the page Reference is made of: all entries of all menus, found and filtered, and each one in full."""

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args
from urllib.parse import urlencode

import streamlit as st

from dmviz import docs
from dmviz.catalog import FOLDERS, entry_class, menu
from dmviz.field import dims_of, drives
from dmviz.laws import Family, Law
from dmviz.run import Setup, dim_of, from_link, start

CHOSEN = "dmviz.reference"
ORDER = ("losses", "flows", "shapes", "datasets", "projections")
READS = {
    "samples": "points of the target",
    "score": "the score of the target",
    "nothing": "the particles alone",
    "loss": "a loss",
    "probe": "a loss felt anywhere",
}
MEANING: Mapping[str, str] = {
    "zero_at_target": "$F(X, X) = 0$",
    "nonnegative": r"$F \ge 0$",
    "symmetric": "$F(X, Y) = F(Y, X)$",
    "shift_free": "moving both clouds together changes nothing",
    "rotation_free": "turning both clouds together changes nothing",
    "triangle": "$F^{1/r}$ obeys the triangle inequality",
    "deterministic": "the value does not depend on chance",
}
STYLE = """<style>
.st-key-reference-list button {min-height: 1.7rem; padding: 0; text-align: left}
.st-key-reference-list .stMarkdown {margin-top: 0.8rem}
.katex-display {overflow-x: auto; overflow-y: hidden}
</style>"""
FIRST = """<style>@media (max-width: 640px) {
.st-key-reference-columns [data-testid="stHorizontalBlock"]:has(> [data-testid="stColumn"]) {
flex-direction: column-reverse}
}</style>"""
CLOUDS = (  # where an entry is shown: the first of these that it takes
    "",
    "target=gaussian_mixture",
    "loss=mmd",
    "target=gaussian&target.dim=1&source.dim=1",
    "target=iris&source.dim=4",
    "target=digits&source.dim=64",
)


# ---------------------------------------------------------------------------------------------------- the index


@dataclass(frozen=True)
class Card:
    """What is known of an entry without opening it."""

    folder: str
    name: str
    title: str
    family: str  # "" for all but losses
    reads: str
    laws: frozenset[str]
    cost: str
    sentence: str
    words: str  # all that a search looks through, in small letters

    @property
    def key(self) -> str:
        return f"{self.folder}.{self.name}"

    @property
    def group(self) -> str:
        kind = self.folder.capitalize()
        return f"{kind}: {self.family}" if self.family else kind


@cache
def cards() -> tuple[Card, ...]:
    """Every entry of every menu: losses by family, in the order of the menu, then the rest; by title within."""
    families: Sequence[str] = ("", *get_args(Family))
    assert set(ORDER) == set(FOLDERS)
    found = [_card(folder, name) for folder in ORDER for name in menu(folder)]
    return tuple(
        sorted(found, key=lambda c: (ORDER.index(c.folder), families.index(c.family), c.title.removeprefix("The ")))
    )


def _card(folder: str, name: str) -> Card:
    one = entry_class(folder, name)()
    family, cost, said = getattr(one, "family", ""), getattr(one, "cost", ""), docs.sentence(one)
    cited = " ".join(docs.citation(key) for key in one.source)
    words = " ".join((name.replace("_", " "), name, one.title, family, said, cited, " ".join(one.source))).casefold()
    laws = frozenset(getattr(one, "laws", ()))
    return Card(folder, name, one.title, family, getattr(one, "needs", ""), laws, cost, said, words)


def matching(
    search: str = "",
    folders: Iterable[str] = (),
    families: Iterable[str] = (),
    laws: Iterable[str] = (),
    reads: Iterable[str] = (),
) -> list[Card]:
    """Entries that hold every word of the search and every law, and lie in one of the menus, families and kinds of
    input asked for; nothing asked for means all."""
    folders, families, laws, reads = set(folders), set(families), set(laws), set(reads)
    return [
        card
        for card in cards()
        if all(word in card.words for word in search.casefold().split())
        and (not folders or card.folder in folders)
        and (not families or card.family in families)
        and (not reads or card.reads in reads)
        and laws <= card.laws
    ]


@cache
def opening(folder: str, name: str) -> dict[str, str]:
    """The link of a setup that takes this entry; empty where there is none.

    A cloud that waits for a file or a drawing opens as it is.
    """
    part = {"losses": "loss", "flows": "flow", "projections": "projection"}.get(folder, "target")
    cls = entry_class(folder, name)
    if part == "target":
        return {part: name} | _source_for(cls())
    if folder == "losses" and not drives(cls):
        return {}
    for clouds in CLOUDS:
        words = dict(pair.split("=") for pair in clouds.split("&") if pair)
        if part in words or (part == "projection" and "digits" not in clouds):
            continue
        try:
            start(from_link(words | {part: name, "n": "20", "m": "40"}), ())
        except (ValueError, OSError):
            continue
        return words | {part: name}
    return {}


def _source_for(target: Any) -> dict[str, str]:
    """The source in as many dimensions as the target, where that is known and not what it is anyway."""
    try:
        dim = dim_of(target)
    except (ValueError, OSError):
        return {}
    return {} if dim == Setup().source.dim else {"source.dim": str(dim)}  # type: ignore[union-attr]


# ---------------------------------------------------------------------------------------------------- the choice


def arrive() -> None:
    """Take up the entry in the address bar, or the one kept from before."""
    asked = st.query_params.get("entry")
    if asked is not None:
        st.session_state[CHOSEN] = asked
    elif st.session_state.get(CHOSEN):
        st.query_params["entry"] = st.session_state[CHOSEN]


def choose(key: str = "") -> None:
    """Open one entry, or the table of all; in the address bar too."""
    st.session_state[CHOSEN] = key
    if key:
        st.query_params["entry"] = key
    else:
        st.query_params.pop("entry", None)


def chosen() -> Card | None:
    """The entry to show; None, with a sentence where the link names none that exists."""
    key = st.session_state.get(CHOSEN, "")
    known = {card.key: card for card in cards()}
    if key and key not in known:
        near = difflib.get_close_matches(key, known, 3, 0.5)
        hint = f" Did you mean {' or '.join(near)}?" if near else " Pick one from the list."
        st.warning(f"There is no entry named {key[:80]!r}.{hint}", icon=":material/link_off:")
    return known.get(key)


def filters() -> list[Card]:
    """A search and four filters, and what they leave."""
    search = st.text_input("Search", placeholder="name, words, author or year", key="reference.search")
    left, right = st.columns(2, gap="small")
    with left:
        folders = _several("Menu", ORDER, str.capitalize, "all")
        laws = _several("Laws that hold", get_args(Law), law_name, "any")
    with right:
        families = _several("Family of losses", get_args(Family), str.capitalize, "all")
        reads = _several("Reads", tuple(READS), READS.__getitem__, "anything")
    return matching(search, folders, families, laws, reads)


def _several(title: str, choices: Sequence[str], words: Callable[[str], str], none: str) -> list[str]:
    key = f"reference.{title.split()[0].casefold()}"
    return list(st.multiselect(title, choices, format_func=words, placeholder=none, key=key))


def law_name(law: str) -> str:
    return law.replace("_", " ")


def listed(found: Sequence[Card], now: Card | None) -> None:
    """The entries as a list to click, group by group."""
    total = len(cards())
    st.caption(f"{len(found)} of {total} entries" if len(found) < total else f"{total} entries")
    if not found:
        st.info("Nothing matches. Take out a word or a filter.", icon=":material/search_off:")
        return
    st.html(STYLE)
    with st.container(height=620, border=False, gap=None, key="reference-list"):
        group = ""
        for card in found:
            if card.group != group:
                group = card.group
                st.markdown(f"**{group}**")
            st.button(
                card.title, key=f"reference.{card.key}", on_click=choose, args=(card.key,), type="tertiary",
                icon=":material/arrow_right:" if now == card else None,
            )  # fmt: skip


# ---------------------------------------------------------------------------------------------------- all of them


def overview(found: Sequence[Card]) -> None:
    """All that match, side by side: what they read and cost, and which laws they hold."""
    st.subheader("All entries, side by side")
    st.caption(
        "Tick a row to open it, click a column to sort. A law is ticked where a property test tries it and passes."
    )
    rows = [_summary(card) for card in found]
    config: dict[str, Any] = {
        "Entry": st.column_config.TextColumn(width="medium", pinned=True),
        "What it is": st.column_config.TextColumn(width="large"),
    }
    alt = f"Table of {len(rows)} entries with family, input, cost and laws."
    st.dataframe(
        rows, hide_index=True, height=680, column_config=config, key="reference.table", alt=alt,
        placeholder="", on_select=lambda: _picked(found), selection_mode="single-row",
    )  # fmt: skip


def _picked(found: Sequence[Card]) -> None:
    rows = st.session_state["reference.table"].selection.rows
    if rows:
        choose(found[rows[0]].key)


def _summary(card: Card) -> dict[str, Any]:
    ticks = {law_name(law).capitalize(): law in card.laws if card.folder == "losses" else None for law in get_args(Law)}
    kind = card.family.capitalize() or card.folder.capitalize()
    head = {"Entry": card.title, "Kind": kind, "Reads": READS.get(card.reads, "")}
    return head | ticks | {"Cost": card.cost, "What it is": card.sentence}


# ---------------------------------------------------------------------------------------------------- one of them


def shown(card: Card) -> None:
    """One entry in full: formula, parameters, laws, cost, code and sources. On a phone it comes before the list."""
    st.html(FIRST)
    cls = entry_class(card.folder, card.name)
    one = cls()
    st.header(card.title, anchor=False)
    st.caption(f"{card.group} · `from {cls.__module__} import {cls.__name__}`")
    _actions(card, one)
    st.markdown(docs.prose(one))
    table = docs.parameters(cls)
    st.markdown("**Parameters**" if table else "**Parameters**: none.")
    if table:
        st.markdown(table)
    if card.folder == "losses":
        st.markdown(laws_of(one))
    st.markdown("\n".join(f"* {name}: {words}" for name, words in facts(one).items()))
    with st.expander("Code"):
        st.code(docs.code(one), language="python", line_numbers=True)
    if one.source:
        st.markdown(docs.sources(one))
        with st.expander("BibTeX"):
            st.code(docs.bibtex_of(one.source), language="bibtex")


def _actions(card: Card, one: Any) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        words = opening(card.folder, card.name)
        if words:
            st.page_link("pages/flow.py", label="Open in Flow", icon=":material/play_circle:", query_params=words)
        elif card.folder == "losses":
            st.caption("It only judges: name it among the referees of a run.")
        st.download_button(
            "Code", docs.code(one), f"{card.name}.py", "text/x-python", icon=":material/download:", on_click="ignore"
        )
        if one.source:
            st.download_button(
                "BibTeX", docs.bibtex_of(one.source), f"{card.name}.bib", "application/x-bibtex",
                icon=":material/download:", on_click="ignore",
            )  # fmt: skip
        st.button("All entries", icon=":material/table:", on_click=choose, key="reference.all")


def laws_of(loss: Any) -> str:
    """The laws that a loss holds, each with its meaning, and those it does not claim."""
    held = [law for law in get_args(Law) if law in loss.laws]
    rest = [law_name(law) for law in get_args(Law) if law not in loss.laws]
    root = f", here with $r = {loss.root:g}$" if "triangle" in held else ""
    lines = ["**Laws, each held by a test**", ""]
    lines += [f"* {law_name(law)}: {MEANING[law]}{root if law == 'triangle' else ''}" for law in held]
    if math.isfinite(loss.degree):
        lines.append(f"* scale: $F(sX, sY) = s^{{{loss.degree:g}}}\\,F(X, Y)$, lengths among the parameters scaled too")
    if len(lines) == 2:
        lines = ["**Laws**: none that holds exactly."]
    return "\n".join([*lines, "", f"Not claimed: {', '.join(rest)}." if rest else ""]).rstrip()


def facts(one: Any) -> dict[str, str]:
    """What it reads, costs and allows, in words."""
    found = {"Reads": READS.get(getattr(one, "needs", ""), ""), "Cost": docs.plain_cell(getattr(one, "cost", ""))}
    if hasattr(one, "family"):
        least, most = dims_of(one)
        if (least, most) != (1, None):
            found["Dimensions"] = (
                f"{least}" if least == most else f"{least} or more" if most is None else f"{least} to {most}"
            )
        if getattr(one, "ordered", False):
            found["Order"] = "particle i belongs to row i of the target"
        velocity = "in closed form, no autograd" if hasattr(one, "velocity") else "by autograd"
        found["Velocity"] = velocity if drives(one) else "none: it only judges"
        found["Felt where no particle is"] = "yes" if hasattr(one, "probe") else "no"
    if hasattr(one, "sample"):
        found |= {"Law known": _known(one)}
    return {name: words for name, words in found.items() if words}


def _known(shape: Any) -> str:
    from dmviz.cloud import seeded

    try:
        cloud = shape.sample(4, seeded(0))
    except (ValueError, OSError):
        return ""
    parts = [word for word, part in (("score", cloud.score), ("density", cloud.log_prob)) if part is not None]
    return " and ".join(parts) if parts else "samples only"


def link(card: Card) -> str:
    return "?" + urlencode({"entry": card.key})
