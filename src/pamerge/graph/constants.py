"""What an exported program computes with besides its input: parameters, buffers and what is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node as FxNode

from pamerge.graph.memory import written_argument
from pamerge.graph.ops import Problem


def constants_of(program: ExportedProgram) -> dict[str, Tensor]:
    """Placeholder → parameter, buffer or constant; a parameter stays an ``nn.Parameter``."""
    state: dict[str, Any] = {**program.state_dict, **program.constants}
    signature = program.graph_signature
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    return {placeholder: state[name] for placeholder, name in names.items()}


def fold(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Computes now what does not depend on the input: a reshaped or normalised weight is just another weight."""
    if not isinstance(op, OpOverload):
        raise Problem("it is not supported")
    if torch.Tag.nondeterministic_seeded in op.tags:
        raise Problem("it draws random numbers")
    if written_argument(op) is not None:
        args = [args[0].clone(), *args[1:]]
    return op(*args, **kwargs)


class Parameters:
    """Knows the learned parameters that constants are made of; no two layers may use the same numbers of them."""

    def __init__(self) -> None:
        self._sources: dict[FxNode, frozenset[int]] = {}  # parameters by their storage, which tied modules share
        self._claims: dict[int, list[tuple[str, Tensor]]] = {}

    def add(self, fx_node: FxNode, tensor: Tensor) -> None:
        """Note a constant of the program."""
        if isinstance(tensor, nn.Parameter):
            self._sources[fx_node] = frozenset([tensor.untyped_storage()._cdata])

    def derive(self, fx_node: FxNode, result: Any) -> Any:
        """Note what was computed from constants; what is made of parameters is learned like them."""
        sources = frozenset[int]().union(*(self._sources.get(node, ()) for node in fx_node.all_input_nodes))
        self._sources[fx_node] = sources
        if isinstance(result, (list, tuple)):
            return [_learned(item) if sources else item for item in result]
        return _learned(result) if sources else result

    def claim(self, fx_node: FxNode, tensor: Tensor, layer: str) -> None:
        """A layer uses a constant as its weights; different layers may use different slices of one parameter."""
        for parameter in self._sources.get(fx_node, ()):
            claims = self._claims.setdefault(parameter, [])
            for first, taken in claims:
                if _overlap(taken, tensor, parameter):
                    raise Problem(
                        f"its weights are used twice (first in {first!r}); a weighted layer can be called only once. "
                        "Give each call a module of its own"
                    )
            claims.append((layer, tensor))


def _learned(tensor: Any) -> Any:
    return nn.Parameter(tensor) if isinstance(tensor, Tensor) and tensor.is_floating_point() else tensor


def _overlap(one: Tensor, other: Tensor, parameter: int) -> bool:
    """Whether two tensors made of one parameter have a number of it in common; computed ones may have all of them."""
    storage = one.untyped_storage()
    if storage._cdata != parameter or other.untyped_storage()._cdata != parameter:
        return True
    marks = torch.zeros(storage.nbytes() // one.element_size(), dtype=torch.bool)
    marks.as_strided(one.shape, one.stride(), one.storage_offset()).fill_(True)
    return bool(marks.as_strided(other.shape, other.stride(), other.storage_offset()).any())
