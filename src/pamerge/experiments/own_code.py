"""The user's own code and files: what a configuration names as ``"module:function"``, and weights."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from pamerge.errors import PamergeError


@contextmanager
def modules_of(folder: Path) -> Iterator[None]:
    """Modules of a folder can be imported inside; they are forgotten afterwards, as another folder may have its own."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(folder):
                del sys.modules[name]


def load_network(key: str, factory: str, args: Mapping[str, Any], weights: Path | None) -> nn.Module:
    """What a factory makes, with its weights, in eval mode; errors name the configuration's key."""
    network = _made(factory, args, key)
    if not isinstance(network, nn.Module):
        raise PamergeError(f"{key}.factory = {factory!r} returned a {type(network).__name__}; expected an nn.Module.")
    if weights is not None:
        _load_weights(network, weights, f"{key}.weights")
    return network.eval()


def _load_weights(network: nn.Module, path: Path, key: str) -> None:
    if not path.is_file():
        raise PamergeError(f"{key}: there is no file {path}.")
    try:
        if path.suffix == ".safetensors":
            state: Any = load_file(path)
        elif path.suffix in (".pt", ".pth"):
            state = torch.load(path, map_location="cpu", weights_only=True)
        else:
            raise PamergeError(f"{key} = {path.name!r}; expected a .safetensors, .pt or .pth file.")
    except PamergeError:
        raise
    except Exception as error:  # every format has errors of its own
        raise PamergeError(
            f"{key}: {path} cannot be read ({_first_line(error)}); expected a state dict, as "
            "torch.save(network.state_dict(), …) or safetensors write it."
        ) from error
    if not isinstance(state, Mapping) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise PamergeError(f"{key}: {path} holds no state dict; expected names and tensors and nothing else.")
    own = network.state_dict()
    problems = [f"it has no {name!r}" for name in own if name not in state]
    problems += [f"it has {name!r}, which the network has not" for name in state if name not in own]
    problems += [
        f"{name!r} has shape {tuple(state[name].shape)}, in the network {tuple(value.shape)}"
        for name, value in own.items()
        if name in state and state[name].shape != value.shape
    ]
    if problems:
        more = f" (and {len(problems) - 1} more differences)" if len(problems) > 1 else ""
        raise PamergeError(f"{key}: {path} does not fit the network: {problems[0]}{more}.")
    network.load_state_dict(state)


def load_loaders(factory: str, args: Mapping[str, Any]) -> dict[str, Iterable[Any]]:
    """The parts of the data that a factory makes, each of which can be read again and again."""
    made = _made(factory, args, "data")
    found = {}
    for part in ("train", "validation", "calibration", "test"):
        loader = made.get(part) if isinstance(made, Mapping) else getattr(made, part, None)
        if loader is None and part in ("train", "validation"):
            raise PamergeError(
                f"data.factory = {factory!r} gave no {part} data; expected a dictionary with train, validation "
                "and, if you like, calibration and test."
            )
        if loader is not None:
            if not isinstance(loader, Iterable) or iter(loader) is loader:
                raise PamergeError(
                    f"data.factory = {factory!r}: its {part} data can be read only once or not at all; expected "
                    "something that gives batches whenever it is iterated, such as a DataLoader or a list."
                )
            found[part] = loader
    return found


def _made(factory: str, args: Mapping[str, Any], key: str) -> Any:
    """What the user's function returns."""
    label = f"{key}.factory = {factory!r}"
    if not re.fullmatch(r"[\w.]+:[\w.]+", factory):
        raise PamergeError(f"{label}; expected a module and a function, as 'models:age_network'.")
    module_name, _, path = factory.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise PamergeError(
                f"{label}: there is no module {error.name!r} beside the configuration or among the installed packages."
            ) from None
        raise PamergeError(f"{label}: the module cannot be imported ({where(error)}).") from error
    except Exception as error:
        raise PamergeError(f"{label}: the module cannot be imported ({where(error)}).") from error
    for name in path.split("."):
        if not hasattr(found, name):
            raise PamergeError(f"{label}: {getattr(found, '__file__', None) or module_name} has no {name!r}.")
        found = getattr(found, name)
    if not callable(found):
        raise PamergeError(f"{label} is a {type(found).__name__}; expected a function.")
    try:
        return found(**args)
    except PamergeError:
        raise
    except Exception as error:
        raise PamergeError(f"{label}: calling it with {dict(args)} failed ({where(error)}).") from error


def where(error: Exception, folder: Path | None = None) -> str:
    """The error, and the last line that it went through, in a folder if one is given."""
    frames = traceback.extract_tb(error.__traceback__)
    last = [frame for frame in frames if folder is None or Path(frame.filename).is_relative_to(folder)][-1]
    return f"{_first_line(error)}; {last.filename}, line {last.lineno}"


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
