"""What holds for every entry of every menu; no entry is named here."""

import dataclasses
import math
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dmviz.catalog import FOLDERS, entry_class, menu, name_of, place_of
from dmviz.laws import Family
from dmviz.params import Help, Param, Range, params_of, to_text

ENTRIES = [(folder, name) for folder in FOLDERS for name in menu(folder)]


@pytest.mark.parametrize(("folder", "name"), ENTRIES)
def test_an_entry_says_what_it_is(folder: str, name: str) -> None:
    cls = entry_class(folder, name)
    first = (cls.__doc__ or "").strip().splitlines()[0]
    assert first.endswith("."), "the first line of the docstring is one plain sentence"
    assert cls.title[0].isupper() or cls.title[0].isdigit()
    assert isinstance(cls.source, tuple)
    if folder in ("losses", "flows"):
        assert cls.source, "a method names its source"
        assert "$$" in cls.__doc__, "a method shows its formula"
    if folder == "losses":
        assert cls.family in get_args(Family)
        assert cls.needs in ("samples", "score", "nothing")


@pytest.mark.parametrize(("folder", "name"), ENTRIES)
def test_an_entry_is_a_frozen_value_found_again_by_name(folder: str, name: str) -> None:
    cls = entry_class(folder, name)
    one, other = cls(), cls()
    assert one == other
    assert hash(one) == hash(other)
    assert place_of(one) == (folder, name)
    assert name_of(one) == name
    for param in params_of(cls):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(one, param.name, param.default)


@pytest.mark.parametrize(("folder", "name"), ENTRIES)
def test_every_parameter_has_help_and_a_default_inside_its_range(folder: str, name: str) -> None:
    for param in params_of(entry_class(folder, name)):
        assert param.hint.help, f"{name}.{param.name} needs help text"
        if param.kind in ("int", "float"):
            assert isinstance(param.hint, Range), f"{name}.{param.name} needs a Range"
            assert not param.hint.log or param.hint.low > 0
        for other in param.hint.when or {}:
            assert other in {p.name for p in params_of(entry_class(folder, name))}


@pytest.mark.parametrize(("folder", "name"), ENTRIES)
def test_a_value_outside_its_range_is_refused_in_one_sentence(folder: str, name: str) -> None:
    cls = entry_class(folder, name)
    for param in params_of(cls):
        for value in wrong(param):
            with pytest.raises(ValueError, match=f"^{cls.__name__}: {param.name} must be") as caught:
                cls(**{param.name: value})
            assert "\n" not in str(caught.value)


def wrong(param: Param) -> list[Any]:
    if param.kind in ("int", "float"):
        hint = param.hint
        assert isinstance(hint, Range)
        return [hint.high * 2 + 1, hint.low - 1, math.nan, math.inf, "3", None, True]
    if param.kind == "bool":
        return [1, "yes", None]
    if param.kind == "choice":
        return ["no such choice", None, 3]
    assert isinstance(param.hint, Help)
    return ["x" * (param.hint.most + 1), None, 3]


def values(param: Param) -> st.SearchStrategy[Any]:
    if param.kind == "float":
        return st.floats(param.hint.low, param.hint.high)  # type: ignore[union-attr]
    if param.kind == "int":
        return st.integers(math.ceil(param.hint.low), math.floor(param.hint.high))  # type: ignore[union-attr]
    if param.kind == "bool":
        return st.booleans()
    if param.kind == "choice":
        return st.sampled_from(param.choices)
    return st.text(max_size=50)


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_text_form_of_a_value_reads_back_exactly(data: st.DataObject) -> None:
    folder, name = data.draw(st.sampled_from(ENTRIES))
    for param in params_of(entry_class(folder, name)):
        value = data.draw(values(param))
        assert param.parsed(to_text(value), name) == value


def test_a_name_that_is_not_on_the_menu_lists_those_that_are() -> None:
    with pytest.raises(ValueError, match="no loss.* named 'mdd'; there are .*energy_distance"):
        entry_class("losses", "mdd")
