"""What a network is to pamerge: a list of nodes, each of which treats channels in a known way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Kind = Literal["input", "weighted", "channelwise", "keeps", "join", "wire", "whole"]
"""How a node treats channels.

- ``input``: the network's input.
- ``weighted``: mixes channels with weights (convolution, linear). What it reads is a junction.
- ``channelwise``: has parameters of its own for each channel, keeps channels apart (batch norm, depthwise convolution).
- ``keeps``: a function that keeps channels apart (activation, pooling, reshape).
- ``join``: a function of several tensors that keeps channels apart (add, mul).
- ``wire``: only picks channels (concat, split).
- ``whole``: mixes channels without weights (softmax); allowed only where no weighted layer follows.
"""

Channels = NDArray[np.int64]


@dataclass(frozen=True)
class Node:
    """One operation and the tensor that it yields.

    The tensor has shape ``(batch, len(channels) * width, *space)``. A channel is a number that names the same neuron
    wherever it flows through operations that keep channels apart: a convolution's output, the batch norm and the
    activation behind it, and everything that is added to it all carry the same channels.
    """

    name: str
    kind: Kind
    op: str
    inputs: tuple[str, ...]
    channels: Channels
    width: int
    space: tuple[int, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""
    line: str = ""

    @property
    def features(self) -> int:
        """Size of the tensor's dimension 1."""
        return len(self.channels) * self.width

    def __str__(self) -> str:
        shape = "×".join(map(str, (self.features, *self.space)))
        reads = f"← {', '.join(self.inputs)}" if self.inputs else ""
        return f"{self.name:<32} {self.kind:<12} {self.op:<34} {shape:<16} {reads}".rstrip()


@dataclass(frozen=True)
class LayerGraph:
    """A network as :func:`~pamerge.graph.capture` sees it: nodes in the order of computation, and their tensors."""

    nodes: Mapping[str, Node]
    output: str
    tensors: Mapping[str, Mapping[str, Tensor]]

    @property
    def input(self) -> Node:
        """The node that stands for the network's input."""
        return next(iter(self.nodes.values()))

    def consumers(self) -> dict[str, list[Node]]:
        """Who reads the tensor of each node."""
        return consumers(self.nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def __str__(self) -> str:
        return "\n".join([*map(str, self), f"output: {self.output}"])


def consumers(nodes: Mapping[str, Node]) -> dict[str, list[Node]]:
    """Who reads the tensor of each node."""
    readers: dict[str, list[Node]] = {name: [] for name in nodes}
    for node in nodes.values():
        for name in dict.fromkeys(node.inputs):
            readers[name].append(node)
    return readers


def is_plain_sum(node: Node) -> bool:
    """Whether a node is ``x + y``, where one operand may be missing for some channels: the other is the sum then."""
    return node.op == "aten.add.Tensor" and node.settings == {"args": [{"input": 0}, {"input": 1}]}


def junction_values(nodes: Mapping[str, Node]) -> list[str]:
    """Names of the tensors that feed at least one weighted layer, in the order of computation."""
    return [name for name, readers in consumers(nodes).items() if any(node.kind == "weighted" for node in readers)]


def in_head(nodes: Mapping[str, Node]) -> set[str]:
    """Nodes behind which no weighted layer follows: the output layers and what comes after them."""
    readers = consumers(nodes)
    head: set[str] = set()
    for name in reversed(list(nodes)):
        if all(reader.name in head and reader.kind != "weighted" for reader in readers[name]):
            head.add(name)
    return head
