"""From an ``nn.Module`` and an example input to a :class:`LayerGraph`."""

from __future__ import annotations

import io
import logging
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from pamerge.errors import CaptureError
from pamerge.graph import rules  # noqa: F401  (fills the op table)
from pamerge.graph.layer_graph import LayerGraph, Node, in_head
from pamerge.graph.walk import BATCH, SAME_CHANNEL_TWICE, Walk, own_line, place


def capture(module: nn.Module, example: Tensor) -> LayerGraph:
    """What a network computes, as nodes that each treat channels in a known way.

    Args:
        module: the network, in eval mode. It takes one tensor and returns one tensor.
        example: an input with a batch dimension; its values do not matter.

    Raises:
        CaptureError: with the operation, the module path and the source line of what is not supported.
    """
    training = [path or "the network itself" for path, part in module.named_modules() if part.training]
    if training:
        raise CaptureError(f"The network is in training mode ({training[0]}); call .eval() on it first.")
    if not isinstance(example, Tensor) or example.dim() < 2 or len(example) == 0:
        raise CaptureError(
            "The example input must be a tensor with a batch dimension and channels, such as (1, 3, 72, 72)."
        )
    example = example[:1].repeat(BATCH, *[1] * (example.dim() - 1))
    with torch.no_grad():
        _try(module, example.clone())
        program = _export(module, example)
        walk = Walk(program)
        nodes, output = walk.run()
    nodes = _renumber(_without_dead_ends(nodes, output))
    _check(nodes, walk.notes)
    return LayerGraph(nodes, output, {name: walk.tensors.get(name, {}) for name in nodes})


def _try(module: nn.Module, example: Tensor) -> None:
    """Runs the network once: an error of the network's own is clearer here than from inside torch.export."""
    try:
        result = module(example)
    except Exception as error:
        raise CaptureError(
            f"The network {type(module).__name__} cannot run on an input of shape {tuple(example.shape)}: {error}"
        ) from error
    if not isinstance(result, Tensor):
        raise CaptureError(
            f"The network {type(module).__name__} returns a {type(result).__name__}; pamerge needs networks that "
            "return one tensor. Wrap the network in a module that picks one."
        )


def _export(module: nn.Module, example: Tensor) -> ExportedProgram:
    try:
        with _quiet():
            program = torch.export.export(module, (example,), strict=False)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        frames = traceback.extract_tb(error.__traceback__)
        where = own_line([(frame.filename, str(frame.lineno)) for frame in frames])
        raise CaptureError(
            f"torch.export cannot trace {type(module).__name__} ({where}): {lines[0]} A forward whose control flow "
            "depends on the values of tensors cannot be captured; rewrite that part without `if`, loops or .item()."
        ) from error
    program.graph.eliminate_dead_code()  # a part that the output does not need may be anything
    return program


@contextmanager
def _quiet() -> Iterator[None]:
    """torch.export logs and prints whole programs when it fails; the exception says enough."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _without_dead_ends(nodes: Mapping[str, Node], output: str) -> dict[str, Node]:
    """Drops what the output does not depend on."""
    wanted = {output, next(iter(nodes))}
    for name in reversed(list(nodes)):
        if name in wanted:
            wanted.update(nodes[name].inputs)
    return {name: node for name, node in nodes.items() if name in wanted}


def _renumber(nodes: Mapping[str, Node]) -> dict[str, Node]:
    """Channels as 0, 1, 2, … in the order in which they appear, the input's first."""
    found: dict[int, int] = {}
    renumbered = {}
    for name, node in nodes.items():
        numbers = [found.setdefault(channel, len(found)) for channel in node.channels.tolist()]
        renumbered[name] = replace(node, channels=np.array(numbers, dtype=np.int64))
    return renumbered


def _check(nodes: Mapping[str, Node], notes: Mapping[str, str]) -> None:
    if not any(node.kind == "weighted" for node in nodes.values()):
        raise CaptureError(
            "The network has no weighted layer (convolution or linear) between its input and its output; "
            "there is nothing to merge."
        )
    head = in_head(nodes)
    for node in nodes.values():
        where = node.op + place(node.path, node.line)
        if len(np.unique(node.channels)) != len(node.channels):  # because of a sum that came later
            raise CaptureError(f"Cannot capture {where}: {SAME_CHANNEL_TWICE}.")
        if node.kind != "whole":
            continue
        note = f" ({notes[node.name]})" if node.name in notes else ""
        if node.name not in head:
            raise CaptureError(
                f"{where} mixes channels{note}, and the weighted layer {_next_layer(nodes, node)!r} computes on the "
                "result. Such an operation is supported only behind a network's last weighted layer."
            )
        if any(name not in head for name in node.inputs):
            raise CaptureError(
                f"{where} mixes the channels of a hidden layer{note} into the output; only the outputs of a network's "
                "last weighted layers can be mixed. Put a convolution or a linear layer before it."
            )


def _next_layer(nodes: Mapping[str, Node], start: Node) -> str:
    """The first weighted layer that depends on a node."""
    behind = {start.name}
    for node in nodes.values():
        if behind & set(node.inputs):
            if node.kind == "weighted":
                return node.name
            behind.add(node.name)
    raise AssertionError("no weighted layer follows")
