"""Folder -> menu: every file in a menu folder is one entry, found by walking, imported when it is asked for."""

import importlib
import pkgutil
from functools import cache
from typing import Any

FOLDERS = ("shapes", "datasets", "projections", "losses", "flows")


@cache
def menu(folder: str) -> tuple[str, ...]:
    """Names of the entries in a folder, in alphabetical order. Files that start with _ are not on the menu."""
    package = importlib.import_module(f"dmviz.{folder}")
    return tuple(sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_")))


@cache
def entry_class(folder: str, name: str) -> type[Any]:
    """The one entry that a file holds.

    Raises ValueError with the names that exist when there is none of this name.
    """
    if name not in menu(folder):
        raise ValueError(f"no {folder.rstrip('s')} named {name!r}; there are {', '.join(menu(folder))}")
    module = importlib.import_module(f"dmviz.{folder}.{name}")
    found = [c for c in vars(module).values() if getattr(c, "__is_entry__", False) and c.__module__ == module.__name__]
    if len(found) != 1:
        raise TypeError(f"{module.__name__} must hold exactly one @entry class, found {len(found)}")
    return found[0]  # type: ignore[no-any-return]


def place_of(entry: object) -> tuple[str, str]:
    """Folder and name of an entry: the way back from a value to the menu."""
    _, folder, name = type(entry).__module__.rsplit(".", 2)
    return folder, name


def name_of(entry: object) -> str:
    return place_of(entry)[1]
