"""What a network costs, counted from its structure without running it.

Two conventions. ``"paper"``: a convolution takes ``(2·Cin·Kh·Kw − 1)·Cout·Hout·Wout`` operations and a linear
layer ``(2·in − 1)·out``, the count of the PAM paper's tables. ``"2mac"``: twice the multiply-accumulates, the
count of ``torch.utils.flop_counter``. Biases, batch norms, pooling and activations count as nothing in both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from pamerge.errors import PamergeError
from pamerge.network.layout import BlockLayout
from pamerge.network.program import Program

Convention = Literal["paper", "2mac"]
Spaces = Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
"""For each block, the spatial sizes of what it reads and of what it yields."""

_COUNTED = {"conv", "conv_transpose", "depthwise", "linear"}


def block_flops(
    block: BlockLayout,
    space_in: tuple[int, ...],
    space_out: tuple[int, ...],
    convention: Convention = "paper",
) -> int:
    """Operations of one block for one sample."""
    if convention not in ("paper", "2mac"):
        raise PamergeError(f"convention={convention!r} is not known; expected 'paper' or '2mac'.")
    if block.node.op not in _COUNTED:
        return 0
    inputs, outputs = len(block.inputs) * block.input_width, len(block.outputs) * block.node.width
    kernel: int = math.prod(block.node.settings.get("kernel", ()))
    results = outputs * math.prod(space_out)
    match block.node.op:
        case "depthwise":
            macs = kernel * results
        case "conv_transpose":
            macs = inputs * math.prod(space_in) * kernel * outputs
        case _:
            macs = inputs * kernel * results
    return 2 * macs - results if convention == "paper" else 2 * macs


def block_parameters(block: nn.Module) -> int:
    """Number of parameters of one block."""
    return sum(parameter.numel() for parameter in block.parameters())


def measured_spaces(program: Program, blocks: Mapping[str, nn.Module], input_size: tuple[int, ...]) -> Spaces:
    """Spatial sizes for another input size, by running the program on tensors without data."""
    found: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    class Recorder(dict[str, nn.Module]):
        def __getitem__(self, key: str) -> nn.Module:
            def record(x: Tensor) -> Tensor:
                result: Tensor = blocks[key](x)
                found[key] = (tuple(x.shape[2:]), tuple(result.shape[2:]))
                return result

            return record  # type: ignore[return-value]

    some = next(iter(blocks.values()))
    like = next((tensor for tensor in [*some.parameters(), *some.buffers()]), torch.empty(0))
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        x = torch.empty((1, *input_size), dtype=like.dtype, device=like.device)
        program.run(x, Recorder(), training=False)
    return found
