"""From the word a user writes to a recipe: of the catalog, or a class of their own; and from `--set` to its settings."""

import inspect
import math
from collections.abc import Mapping
from dataclasses import fields
from types import NoneType
from typing import Any, get_args, get_type_hints

from tensorferry.errors import BadRecipe
from tensorferry.messages import did_you_mean
from tensorferry.recipes.catalog import find_card
from tensorferry.recipes.recipe import Range, Recipe, Settings
from tensorferry.recipes.references import load_reference

_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def find_recipe(reference: str) -> type[Recipe]:
    """The recipe of that name in the catalog, or the class that `package.module:name` or `file.py:name` names."""
    if reference.endswith(".py"):
        raise BadRecipe(f"{reference!r} is a file, and a recipe is a class in it; write {reference}:Recipe, or what it is called")
    named = reference if ":" in reference else find_card(reference).recipe
    found = load_reference(named, "recipe", "a recipe", BadRecipe)
    if not (isinstance(found, type) and issubclass(found, Recipe)):
        raise BadRecipe(
            f"{reference!r} is a {type(found).__name__}, and a recipe is a class that inherits from TorchRecipe or KerasRecipe "
            "of tensorferry.recipes.recipe"
        )
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise BadRecipe(f"the recipe {reference!r} lacks {', '.join(missing)}; a recipe has to say all of them")
    return found


def make_recipe(reference: str, settings: Mapping[str, str], start: str | None = None) -> Recipe:
    """The recipe with the settings that were asked for, read by their types, beginning from `start`; None: its usual one."""
    kind = find_recipe(reference)
    if start is not None and start not in kind.starts:
        raise BadRecipe(
            f"{reference!r} cannot begin from {start!r}{did_you_mean(start, kind.starts)}; "
            f"it begins from {' or '.join(kind.starts)}"
        )
    try:
        return kind(read_settings(kind.Settings, settings, reference), start)
    except ValueError as error:
        if isinstance(error, BadRecipe):
            raise
        raise BadRecipe(f"{reference!r} refuses these settings: {error}") from error


def read_settings(kind: type[Settings], texts: Mapping[str, str], reference: str) -> Settings:
    """Settings from texts, each read by the type that its field has."""
    types = get_type_hints(kind)
    names = [field.name for field in fields(kind)]
    for name in texts:
        if name not in names:
            raise BadRecipe(f"{reference!r} has no setting {name!r}{did_you_mean(name, names)}; it has {', '.join(names)}")
    values = {name: _read_value(name, text, types[name]) for name, text in texts.items()}
    for name, limits in _find_ranges(kind).items():
        value = values.get(name)
        if value is not None and not limits.holds(value):
            raise BadRecipe(f"expected {name} to be {_describe((type(value),))} {limits.words}, received {texts[name]!r}")
    return kind(**values)


def _find_ranges(kind: type[Settings]) -> dict[str, Range]:
    """Of every setting that has one; a class that declares a setting anew keeps the range that it had."""
    hints = [hint for base in reversed(kind.__mro__) for hint in get_type_hints(base, include_extras=True).items()]
    return {
        name: extra
        for name, hint in hints
        for option in (hint, *get_args(hint))
        for extra in getattr(option, "__metadata__", ())
        if isinstance(extra, Range)
    }


def _read_value(name: str, text: str, wanted: Any) -> Any:
    """
    >>> _read_value("rate", "1e-3", float), _read_value("flip", "no", bool), _read_value("edge", "none", int | None)
    (0.001, False, None)
    """
    options = get_args(wanted) or (wanted,)
    if NoneType in options and text.lower() == "none":
        return None
    for option in options:
        try:
            if option is bool:
                return _WORDS[text.lower()]
            if option in (int, float, str) and not (option is float and math.isnan(float(text))):
                return option(text)
        except (KeyError, ValueError):
            continue
    raise BadRecipe(f"cannot read {name}={text!r}; expected {_describe(options)}")


def _describe(options: tuple[Any, ...]) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", NoneType: "none"}
    return " or ".join(words.get(option, inspect.formatannotation(option)) for option in options)
