"""From the word a user writes to a recipe: of the catalog, or a class of their own; and from `--set` to its settings.

`package.module:name` and `file.py:name` name a thing in a module or in a file.
"""

import importlib
import importlib.util
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import ModuleType, NoneType
from typing import Any, get_args, get_type_hints

from tensorferry.errors import BadRecipe, FerryError
from tensorferry.extras import FRAMEWORK_EXTRAS, missing_extra
from tensorferry.import_path import working_folder_first
from tensorferry.messages import did_you_mean, kind_and_first_line
from tensorferry.recipes.catalog import find_card
from tensorferry.recipes.recipe import Range, Recipe, RecipeSettings

_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def find_recipe(reference: str) -> type[Recipe]:
    """The recipe of that name in the catalog, or the class that `package.module:name` or `file.py:name` names."""
    if reference.endswith(".py"):
        raise BadRecipe(f"{reference!r} is a file; name the recipe class in it, as in {reference}:Recipe")
    named = reference if ":" in reference else find_card(reference).recipe
    found = load_reference(named, "recipe", "a recipe", BadRecipe)
    if not (isinstance(found, type) and issubclass(found, Recipe)):
        raise BadRecipe(
            f"{reference!r} is a {type(found).__name__}, but a recipe is a class that inherits from TorchRecipe or KerasRecipe "
            "of tensorferry.recipes.recipe"
        )
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise BadRecipe(f"the recipe {reference!r} does not define {', '.join(missing)}; a recipe needs all of them")
    return found


def make_recipe(reference: str, settings: Mapping[str, str], start: str | None = None) -> Recipe:
    """The recipe with the settings that were asked for, read by their types, beginning from `start`; None: its usual one."""
    kind = find_recipe(reference)
    if start is not None and start not in kind.starts:
        raise BadRecipe(
            f"{reference!r} cannot start from {start!r}{did_you_mean(start, kind.starts)}; "
            f"it starts from {' or '.join(kind.starts)}"
        )
    try:
        return kind(read_settings(kind.Settings, settings, reference), start)
    except ValueError as error:
        if isinstance(error, BadRecipe):
            raise
        raise BadRecipe(f"{reference!r} refuses these settings: {error}") from error


def read_settings(kind: type[RecipeSettings], texts: Mapping[str, str], reference: str) -> RecipeSettings:
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


def _find_ranges(kind: type[RecipeSettings]) -> dict[str, Range]:
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


def load_reference(text: str, noun: str, what: str, error: type[FerryError]) -> Any:
    """The callable that `text` names; `noun` and `what` say for errors of that type what it is, as "function" of "a model"."""
    where, _, name = text.rpartition(":")
    if not where or not name.isidentifier():
        raise error(f"cannot read {text!r} as {what}; write package.module:{noun} or file.py:{noun}")
    module = _load_file(Path(where), error) if where.endswith(".py") else _load_module(where, error)
    found = getattr(module, name, None)
    if not callable(found):
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise error(f"{where} has no {noun} {name!r}{did_you_mean(name, names)}")
    return found


def _load_file(path: Path, error: type[FerryError]) -> ModuleType:
    if not path.is_file():
        raise error(f"there is no file {str(path)!r}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None  # a file that ends with .py has a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _run_import(str(path), lambda: spec.loader.exec_module(module), error)  # type: ignore[union-attr]
    return module


def _load_module(name: str, error: type[FerryError]) -> ModuleType:
    with working_folder_first():
        return _run_import(name, lambda: importlib.import_module(name), error)


def _run_import(name: str, load: Callable[[], Any], error: type[FerryError]) -> Any:
    try:
        return load()
    except Exception as cause:  # whatever a user's module can raise
        missing = cause.name if isinstance(cause, ModuleNotFoundError) else None
        if missing in FRAMEWORK_EXTRAS:
            raise missing_extra(repr(name), missing) from cause
        raise error(f"cannot import {name!r}: {kind_and_first_line(cause)}") from cause
