"""torch's own FLOP formulas without the module tracking of FlopCounterMode, which takes most of its time."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class CountFlops(TorchDispatchMode):
    """Adds up what ``torch.utils.flop_counter`` counts (twice the multiply-accumulates)."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._overloadpacket in flop_registry:
            self.total += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=result)
        return result


def counted_flops(module: torch.nn.Module, x: torch.Tensor) -> int:
    """What one forward pass costs by torch's count."""
    with torch.inference_mode(False), torch.no_grad(), CountFlops() as counter:
        module(x)
    return counter.total
