"""What a configuration can name: data, networks, schemes and pruners."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pamerge import zoo
from pamerge.data import Splits, celeba, digit_canvases, fashion_canvases, lfw, split_labels
from pamerge.errors import PamergeError
from pamerge.experiments.config import Choice
from pamerge.merging import MTZ, PAM, Scheme, Separate
from pamerge.pruning import VIB, Magnitude, Pruner, Taylor

TUNE = "tune"
"""``alpha = "tune"`` lets short pruning probes choose α for the mix."""

NETWORKS: Mapping[str, Callable[..., nn.Module]] = {
    "lenet5": zoo.lenet5,
    "vgg16": zoo.vgg16,
    "resnet18": zoo.resnet18,
    "resnet34": zoo.resnet34,
}
SCHEMES: Mapping[str, Callable[..., Scheme]] = {"separate": Separate, "mtz": MTZ, "pam": PAM}
PRUNERS: Mapping[str, Callable[..., Pruner]] = {"taylor": Taylor, "vib": VIB, "magnitude": Magnitude}


def make_data(choice: Choice, seed: int, folder: Path | None) -> Splits:
    """Training, validation and test data."""
    generator = torch.Generator().manual_seed(seed)
    options = dict(choice.options)
    match choice.name:
        case "digits":
            splits: Splits = call(digit_canvases, "data", options, generator=generator)
            return splits
        case "fashion":
            splits = call(fashion_canvases, "data", options, folder=_given(folder, choice), generator=generator)
            return splits
        case "lfw" | "celeba":
            parts = options.pop("tasks", 2)
            loader = lfw if choice.name == "lfw" else celeba
            splits = call(loader, "data", options, folder=_given(folder, choice), generator=generator)
            return splits.with_tasks(split_labels(splits.train.names, parts))
    raise PamergeError(f"data = {choice.name!r}; expected one of: digits, fashion, lfw, celeba.")


def make_network(choice: Choice, outputs: int, input_size: tuple[int, ...], generator: torch.Generator) -> nn.Module:
    """An untrained network."""
    factory = lookup(NETWORKS, choice, "network")
    given: dict[str, Any] = {"outputs": outputs, "generator": generator}
    if "input_size" in inspect.signature(factory).parameters:
        given["input_size"] = input_size
    network: nn.Module = call(factory, "network", choice.options, **given)
    return network


def make_scheme(choice: Choice) -> Scheme:
    """A merging scheme; α may still have to be tuned."""
    options = {name: value for name, value in choice.options.items() if value != TUNE}
    scheme: Scheme = call(lookup(SCHEMES, choice, "schemes"), f"schemes.{choice.name}", options)
    return scheme


def make_pruner(choice: Choice) -> Pruner:
    """A pruner."""
    pruner: Pruner = call(lookup(PRUNERS, choice, "pruners"), f"pruners.{choice.name}", choice.options)
    return pruner


def lookup(registry: Mapping[str, Callable[..., Any]], choice: Choice, key: str) -> Callable[..., Any]:
    """The thing with a name, or an error that lists the names."""
    if choice.name not in registry:
        raise PamergeError(f"{key} = {choice.name!r}; expected one of: {', '.join(registry)}.")
    return registry[choice.name]


def call(function: Callable[..., Any], key: str, options: Mapping[str, Any], **given: Any) -> Any:
    """Call with a configuration's options; one that the function does not know is an error that names its key."""
    known = set(inspect.signature(function).parameters) - set(given)
    unknown = sorted(set(options) - known)
    if unknown:
        raise PamergeError(f"unknown key {key + '.' + unknown[0]!r}; expected some of: {', '.join(sorted(known))}.")
    return function(**given, **options)


def _given(folder: Path | None, choice: Choice) -> Path:
    if folder is None:
        raise PamergeError(f"data = {choice.name!r} needs a folder with the downloaded files; expected --data FOLDER.")
    return folder
