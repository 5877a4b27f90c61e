"""@entry and typed parameters: one annotation gives the check, the widget, the link, the help and the property tests.

```python
@entry
class Mmd:
    bandwidth: Annotated[float, Range(0.01, 10, unit="length", log=True, help="how far a particle feels")] = 0.5
    kernel: Annotated[Literal["gaussian", "laplacian"], Help("shape of the pull")] = "gaussian"
```
"""

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

Kind = Literal["float", "int", "bool", "choice", "text"]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Range:
    """Bounds, unit and help of a number. Units the tests understand: "length", "1/length", "time".

    `when` shows the widget only while another field has one of the given values.
    """

    low: float
    high: float
    unit: str = ""
    log: bool = False
    help: str = ""
    when: Mapping[str, tuple[Any, ...]] | None = None


@dataclass(frozen=True)
class Help:
    """Help of a choice, a switch or a text; `most` bounds the length of a text in characters."""

    help: str = ""
    most: int = 20_000
    when: Mapping[str, tuple[Any, ...]] | None = None


@dataclass(frozen=True)
class Param:
    """One field of an entry, as read from its annotation."""

    name: str
    kind: Kind
    default: Any
    hint: Range | Help
    choices: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Words for the widget: sentence case, with the unit."""
        words = self.name.replace("_", " ")
        unit = getattr(self.hint, "unit", "")
        return words[:1].upper() + words[1:] + (f" ({unit})" if unit else "")

    def shown_in(self, entry: object) -> bool:
        """Whether this field matters, given the entry's other fields."""
        return all(getattr(entry, name) in values for name, values in (self.hint.when or {}).items())

    def checked(self, value: Any, owner: str) -> Any:
        """`value` in this field's type, or a ValueError that says what must hold and what came."""
        return _CHECKS[self.kind](self, value, f"{owner}: {self.name} must be")

    def parsed(self, text: str, owner: str) -> Any:
        """The value that `to_text` wrote, or a ValueError in the words of `checked`."""
        if self.kind == "bool":
            words = {"1": True, "true": True, "0": False, "false": False}
            return self.checked(words.get(text.lower(), text), owner)
        if self.kind in ("float", "int"):
            try:
                return self.checked(float(text) if self.kind == "float" else int(text), owner)
            except ValueError as error:
                if str(error).startswith(owner):
                    raise
                raise ValueError(f"{owner}: {self.name} must be {_wanted(self)}, got {text!r}") from None
        return self.checked(text, owner)


def _wanted(param: Param) -> str:
    hint = param.hint
    bounds = f" in [{hint.low:g}, {hint.high:g}]" if isinstance(hint, Range) else ""
    return ("a whole number" if param.kind == "int" else "a number") + bounds


def _number(param: Param, value: Any, must: str) -> float | int:
    hint, whole = param.hint, param.kind == "int"
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if fits and isinstance(hint, Range) and not hint.low <= value <= hint.high:
        raise ValueError(f"{must} in [{hint.low:g}, {hint.high:g}], got {value:g}")
    if not fits or (whole and value != int(value)):
        raise ValueError(f"{must} {_wanted(param)}, got {value!r}")
    return int(value) if whole else float(value)


def _switch(param: Param, value: Any, must: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{must} true or false, got {value!r}")
    return value


def _choice(param: Param, value: Any, must: str) -> Any:
    if value not in param.choices:
        raise ValueError(f"{must} one of {', '.join(param.choices)}, got {value!r}")
    return value


def _text(param: Param, value: Any, must: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{must} text, got {value!r}")
    if isinstance(param.hint, Help) and len(value) > param.hint.most:
        raise ValueError(f"{must} at most {param.hint.most} characters, got {len(value)}")
    return value


_CHECKS = {"float": _number, "int": _number, "bool": _switch, "choice": _choice, "text": _text}


@dataclass_transform(frozen_default=True)
def entry(cls: type[_T]) -> type[_T]:
    """Make a class a frozen value whose fields are checked, and normalised, when it is built."""
    check_more = cls.__dict__.get("__post_init__")

    def check(self: Any) -> None:
        for param in params_of(type(self)):
            object.__setattr__(self, param.name, param.checked(getattr(self, param.name), type(self).__name__))
        if check_more is not None:
            check_more(self)

    cls.__post_init__ = check  # type: ignore[attr-defined]
    made = dataclass(frozen=True)(cls)
    made.__is_entry__ = True  # type: ignore[attr-defined]
    return made


def params_of(cls: Any) -> tuple[Param, ...]:
    """The fields of an entry class, in the order written."""
    return _params_of(cls)


@cache
def _params_of(cls: Any) -> tuple[Param, ...]:
    hints = get_type_hints(cls, include_extras=True)
    found = []
    for field in fields(cls):  # type: ignore[arg-type]
        if field.metadata.get("part"):  # an entry within a setup, which has fields of its own
            continue
        if field.default is MISSING:
            raise TypeError(f"{cls.__name__}: {field.name} needs a default, since every entry starts as its defaults")
        found.append(_param(field.name, hints[field.name], field.default))
    return tuple(found)


def _param(name: str, annotation: Any, default: Any) -> Param:
    base, *marks = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    hint = next((mark for mark in marks if isinstance(mark, (Range, Help))), Help())
    if get_origin(base) is Literal:
        return Param(name, "choice", default, hint, get_args(base))
    kind: Kind = {bool: "bool", int: "int", float: "float", str: "text"}[base]  # type: ignore[assignment]
    return Param(name, kind, default, hint)


def to_text(value: Any) -> str:
    """One value as the link writes it; `Param.parsed` reads it back exactly."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return repr(value) if isinstance(value, float) else str(value)


def settings(entry_value: Any) -> dict[str, str]:
    """The fields that differ from their defaults, as text."""
    params = params_of(type(entry_value))
    return {p.name: to_text(v) for p in params if (v := getattr(entry_value, p.name)) != p.default}
