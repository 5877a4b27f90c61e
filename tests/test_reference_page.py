"""The index behind the Reference page: complete, searchable, and each entry opens in Flow where it can drive."""

from itertools import islice
from typing import get_args

import pytest

from dmviz import docs
from dmviz.catalog import FOLDERS, entry_class, menu
from dmviz.field import drives
from dmviz.laws import Family, Law
from dmviz.losses.mmd import Mmd
from dmviz.losses.sliced_wasserstein import SlicedWasserstein
from dmviz.run import from_link, simulate
from dmviz.ui import reference

WAIT = ("datasets.file", "shapes.drawn")  # for a file, or for points drawn by hand


def names(**asked: object) -> set[str]:
    return {card.key for card in reference.matching(**asked)}  # type: ignore[arg-type]


def test_the_index_holds_every_entry_once_with_losses_family_by_family() -> None:
    found = [card.key for card in reference.cards()]
    assert sorted(found) == sorted(f"{folder}.{name}" for folder in FOLDERS for name in menu(folder))
    groups = list(dict.fromkeys(card.group for card in reference.cards()))
    assert groups == [f"Losses: {family}" for family in get_args(Family)] + [
        "Flows", "Shapes", "Datasets", "Projections"]  # fmt: skip
    assert all(card.sentence for card in reference.cards())


def test_a_search_finds_names_words_authors_and_years() -> None:
    assert "losses.mmd" in names(search="maximum MEAN")
    assert "losses.mmd" in names(search="gretton 2012") and "flows.adam" in names(search="Kingma")
    assert not names(search="gretton zebra")
    assert names() == {card.key for card in reference.cards()}


def test_filters_by_family_laws_and_input_all_hold_at_once() -> None:
    kernels = names(families=["kernels"], laws=["symmetric", "nonnegative"], reads=["samples"])
    assert "losses.mmd" in kernels and "losses.ksd" not in kernels
    for key in kernels:
        loss = entry_class(*key.split("."))()
        assert loss.family == "kernels" and {"symmetric", "nonnegative"} <= loss.laws
    assert names(folders=["flows"], reads=["score"]) == {
        f"flows.{name}" for name in menu("flows") if entry_class("flows", name).needs == "score"
    }


@pytest.mark.parametrize("card", reference.cards(), ids=lambda card: card.key)
def test_every_entry_opens_in_flow_and_makes_a_step_unless_it_only_judges(card: reference.Card) -> None:
    words = reference.opening(card.folder, card.name)
    if card.folder == "losses" and not drives(entry_class(card.folder, card.name)):
        assert words == {}
        return
    assert card.name in words.values()
    if card.key not in WAIT:
        setup = from_link(words | {"n": "20", "m": "40", "referees": ""})
        assert len(list(islice(simulate(setup), 2))) == 2


def test_every_law_has_a_meaning_and_every_input_a_name() -> None:
    assert set(reference.MEANING) == set(get_args(Law))
    assert {card.reads for card in reference.cards()} - {""} <= set(reference.READS)


def test_laws_are_told_with_their_meaning_and_those_not_claimed_beside_them() -> None:
    told = reference.laws_of(SlicedWasserstein())
    assert "* symmetric: $F(X, Y) = F(Y, X)$" in told
    assert "here with $r = 2$" in told and "s^{2}" in told
    held = SlicedWasserstein().laws
    assert all((f"* {law.replace('_', ' ')}:" in told) == (law in held) for law in get_args(Law))


def test_facts_tell_limits_of_a_loss_and_what_is_known_of_a_shape() -> None:
    one = reference.facts(entry_class("losses", "wasserstein_1d")())
    assert one["Dimensions"] == "1" and one["Reads"] == "points of the target"
    assert reference.facts(entry_class("losses", "mauve")())["Velocity"] == "none: it only judges"
    assert reference.facts(entry_class("shapes", "gaussian")())["Law known"] == "score and density"


def test_the_table_of_a_class_leaves_out_the_value_here() -> None:
    assert docs.parameters(Mmd).startswith("| Parameter | Range | Unit | Default | What it does |")
    assert docs.parameters(Mmd(bandwidth=0.25)).startswith("| Parameter | Range | Unit | Default | Here |")


def test_bibtex_of_an_entry_has_its_sources_alone_and_reads_back() -> None:
    text = docs.bibtex_of(["gretton2012kernel", "gretton2012kernel", "no such key"])
    assert [found.key for found in docs.read_bibtex(text)] == ["gretton2012kernel"]
    assert text.endswith("% Not in this installation, see the repository of dmviz: no such key")
