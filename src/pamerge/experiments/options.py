"""Checks that what a file says fits what a function or dataclass takes. Errors name the key."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pamerge.errors import PamergeError

_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
_KINDS: Mapping[type, type | tuple[type, ...]] = {int: int, float: (int, float), str: str, bool: bool}


def check_table(content: Any, of: type, key: str = "") -> None:
    """A table must have the fields of a dataclass: none unknown, none missing, each of the right type."""
    if not isinstance(content, Mapping):
        raise PamergeError(f"{key} = {content!r}; expected a table.")
    known = {item.name: item for item in fields(of)}
    _check(content, known, get_type_hints(of), key)
    for name, item in known.items():
        if name not in content and item.default is MISSING and item.default_factory is MISSING:
            raise PamergeError(f"the key {_path(key, name)!r} is missing.")


def check_options(
    function: Callable[..., Any], key: str, options: Mapping[str, Any], given: Iterable[str] = ()
) -> None:
    """Options must be among the parameters of a function (other than those that it is given) and of their types."""
    known = [name for name in inspect.signature(function).parameters if name not in set(given)]
    _check(options, known, get_type_hints(function, localns={"Fabric": object}), key)


def call(function: Callable[..., Any], key: str, options: Mapping[str, Any], **given: Any) -> Any:
    """Call with a file's options, once they are checked."""
    check_options(function, key, options, given)
    return function(**given, **options)


def _check(content: Mapping[str, Any], known: Iterable[str], hints: Mapping[str, Any], key: str) -> None:
    for name, value in content.items():
        if name not in known:
            raise PamergeError(f"unknown key {_path(key, name)!r}; expected some of: {', '.join(known)}.")
        if not _fits(value, hints.get(name, Any)):
            raise PamergeError(f"{_path(key, name)} = {value!r}; expected {_describe(hints[name])}.")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value of a TOML file can be of a type; types that no such file can hold are left to the function."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _KINDS:
        return isinstance(value, _KINDS[hint]) and (hint is bool or not isinstance(value, bool))
    if hint is NoneType:
        return value is None
    if origin in (Union, UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if origin is Literal:
        return value in arguments
    if origin in (tuple, list, Sequence):
        return isinstance(value, (list, tuple)) and all(_fits(item, arguments[0]) for item in value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and all(_fits(item, arguments[1]) for item in value.values())
    return True


def _describe(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _NAMES:
        return _NAMES[hint]
    if origin in (Union, UnionType):
        return " or ".join(_describe(argument) for argument in arguments if argument is not NoneType)
    if origin is Literal:
        return f"one of: {', '.join(map(repr, arguments))}"
    if origin in (tuple, list, Sequence):
        return f"a list, each {_describe(arguments[0])}"
    return f"a table, each {_describe(arguments[1])}" if origin in (dict, Mapping) else "something else"


def _path(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
