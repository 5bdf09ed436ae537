"""About how long a layer takes on a CPU, to choose between several narrow layers and one dense one with zeros.

Fitted to onnxruntime's float kernels on one core: channels are computed in blocks of 16, so a layer with 5 outputs
costs what one with 16 costs; inputs whose number is no multiple of 4 take a slower kernel; and every node costs some
microseconds. Only ratios matter, so one table serves machines of different speed.
"""

from __future__ import annotations

import math

from pamerge.graph.layer_graph import Node

NODE = 8.0  # microseconds of each node
MACS = 40e3  # multiply-accumulates a microsecond
NUMBERS = 1.2e3  # float numbers copied a microsecond, with the change of memory layout that a copy causes
BLOCK = 16
UNEVEN = 1.4
MARGIN = 1.25  # fusing must promise this much: a wrong guess costs more than a missed gain


def layer_time(node: Node, inputs: int, outputs: int) -> float:
    """Microseconds of a weighted layer for one sample."""
    kernel: int = math.prod(node.settings.get("kernel", ()))
    pixels = math.prod(node.space)
    if node.op == "linear":  # bound by reading the weights
        return NODE + inputs * outputs / (MACS / 8)
    time = inputs * kernel * pixels * math.ceil(outputs / BLOCK) * BLOCK / MACS
    return NODE + time * (UNEVEN if inputs % 4 and inputs > BLOCK else 1.0)


def copy_time(shape: tuple[int, ...], parts: int) -> float:
    """Microseconds of collecting features from several places."""
    return NODE * (1 + parts / 2) + math.prod(shape) / NUMBERS
