"""What a network is: capture, the op table, layers, alignment of several networks."""

from pamerge.graph.align import Alignment, align
from pamerge.graph.capture import capture
from pamerge.graph.layer_graph import LayerGraph, Node
from pamerge.graph.layering import layers
from pamerge.graph.ops import (
    Call,
    Draft,
    Problem,
    Value,
    joins_channels,
    keeps_channels,
    known_ops,
    mixes_output,
    register_op,
)

__all__ = [
    "Alignment",
    "Call",
    "Draft",
    "LayerGraph",
    "Node",
    "Problem",
    "Value",
    "align",
    "capture",
    "joins_channels",
    "keeps_channels",
    "known_ops",
    "layers",
    "mixes_output",
    "register_op",
]
