"""What a configuration can name: data, networks, schemes and pruners."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pamerge import zoo
from pamerge.data import Splits, celeba, digit_canvases, fashion_canvases, folder_of, lfw, split_labels
from pamerge.errors import PamergeError
from pamerge.experiments.config import Choice, parse_choice
from pamerge.experiments.options import call, check_options
from pamerge.information import Estimator, Gaussian, Mixture
from pamerge.merging import MTZ, PAM, Scheme, Separate
from pamerge.pruning import VIB, Magnitude, Pruner, Taylor

PRUNE_FIRST = "prune_first"
"""The option of a scheme that prunes the networks one by one before it merges them, with this share of the effort."""

TUNE = "tune"
"""``alpha = "tune"`` lets short pruning probes choose α for the mix."""

CACHE = "pamerge-cache"
"""Crops of faces are kept in this folder beside the images."""

DATA: Mapping[str, Callable[..., Splits]] = {
    "digits": digit_canvases,
    "fashion": fashion_canvases,
    "lfw": lfw,
    "celeba": celeba,
}
FACES = ("lfw", "celeba")
NETWORKS: Mapping[str, Callable[..., nn.Module]] = {
    "lenet5": zoo.lenet5,
    "vgg16": zoo.vgg16,
    "resnet18": zoo.resnet18,
    "resnet34": zoo.resnet34,
}
SCHEMES: Mapping[str, Callable[..., Scheme]] = {"separate": Separate, "mtz": MTZ, "pam": PAM}
PRUNERS: Mapping[str, Callable[..., Pruner]] = {"taylor": Taylor, "vib": VIB, "magnitude": Magnitude}
ESTIMATORS: Mapping[str, Callable[..., Estimator]] = {"gaussian": Gaussian, "mixture": Mixture}


def make_data(
    choice: Choice, seed: int, folder: Path | None, on_progress: Callable[[int, int], None] | None = None
) -> Splits:
    """Training, validation and test data.

    Args:
        choice: the data set, with its options; ``tasks`` is the number of tasks, the number of labels of each, or a
            table of the labels of each.
        seed: decides the division.
        folder: the downloaded files, or a folder that holds them in a folder with the data set's name.
        on_progress: is told how many images of faces have been read, and of how many.
    """
    load = lookup(DATA, choice, "data")
    options = dict(choice.options)
    given: dict[str, Any] = {"generator": torch.Generator().manual_seed(seed)}
    tasks = options.pop("tasks", 2)
    check_options(_divided, "data", {"tasks": tasks}, {"splits"})
    if choice.name != "digits":
        given["folder"] = _given(folder, choice)
    if choice.name in FACES:
        given["on_progress"] = on_progress
        if os.access(given["folder"], os.W_OK):
            options.setdefault("cache_dir", str(given["folder"] / CACHE))
    splits: Splits = call(load, "data", options, **given)
    return _divided(splits.with_memory_format(torch.channels_last), tasks)


def _divided(splits: Splits, tasks: int | Sequence[int] | Mapping[str, Sequence[str]]) -> Splits:
    try:
        return splits.with_tasks(tasks if isinstance(tasks, Mapping) else split_labels(splits.train.names, tasks))
    except PamergeError as error:
        raise PamergeError(f"data.tasks: {error}") from None


def make_network(choice: Choice, outputs: int, input_size: tuple[int, ...], generator: torch.Generator) -> nn.Module:
    """An untrained network."""
    factory = lookup(NETWORKS, choice, "network")
    given: dict[str, Any] = {"outputs": outputs, "generator": generator}
    if "input_size" in inspect.signature(factory).parameters:
        given["input_size"] = input_size
    network: nn.Module = call(factory, "network", choice.options, **given)
    return network


def make_scheme(choice: Choice, key: str = "schemes") -> Scheme:
    """A merging scheme; α may still have to be tuned."""
    tuned = ("alpha", TUNE)
    ours, share = ("label", PRUNE_FIRST), choice.options.get(PRUNE_FIRST, 0.5)
    if not isinstance(share, (int, float)) or not 0 < share < 1:
        raise PamergeError(
            f"{PRUNE_FIRST} = {share!r}; expected the share of the effort, between 0 and 1, that the networks are "
            "pruned with one by one before they are merged."
        )
    options = {name: value for name, value in choice.options.items() if name not in ours and (name, value) != tuned}
    factory = lookup(SCHEMES, choice, key)
    if "estimator" in options and "estimator" in inspect.signature(factory).parameters:
        options["estimator"] = _make(ESTIMATORS, options["estimator"], f"{key}.{choice.name}.estimator")
    scheme: Scheme = call(factory, f"{key}.{choice.name}", options)
    return scheme


def make_pruner(choice: Choice, key: str = "pruners") -> Pruner:
    """A pruner."""
    options = {name: value for name, value in choice.options.items() if name != "label"}
    pruner: Pruner = call(lookup(PRUNERS, choice, key), f"{key}.{choice.name}", options)
    return pruner


def lookup(registry: Mapping[str, Callable[..., Any]], choice: Choice, key: str) -> Callable[..., Any]:
    """The thing with a name, or an error that lists the names."""
    if choice.name not in registry:
        raise PamergeError(f"{key} = {choice.name!r}; expected one of: {', '.join(registry)}.")
    return registry[choice.name]


def _make(registry: Mapping[str, Callable[..., Any]], value: Any, key: str) -> Any:
    choice = parse_choice(value, key)
    return call(lookup(registry, choice, key), key, choice.options)


def _given(folder: Path | None, choice: Choice) -> Path:
    if folder is None:
        raise PamergeError(f"data = {choice.name!r} needs a folder with the downloaded files; expected --data FOLDER.")
    if not folder.is_dir():
        raise PamergeError(f"There is no folder {folder}; expected the downloaded files of {choice.name} there.")
    return folder_of(choice.name, folder)
