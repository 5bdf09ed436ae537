"""Which tensors of an exported program share memory: an operation in place changes all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node as FxNode

from pamerge.graph.ops import Problem

# In eval mode they return their very input, although torch.export's shapes-only tensors do not show it.
_RETURN_THEIR_INPUT = {"aten.dropout.default", "aten.feature_dropout.default"}
_CHANGE_NOTHING = {"aten.detach_.default"}


@dataclass(frozen=True)
class Overwritten:
    """Stands for a tensor whose memory was changed through a view of it, so that nobody knows its channels any more."""

    op: str


def written_argument(op: OpOverload) -> str | None:
    """The argument that an operation changes in place, if any."""
    written = [a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if not written:
        return None
    if written != [op._schema.arguments[0].name]:
        raise Problem(f"it changes its argument(s) {', '.join(written)} in place")
    return written[0]


class Memory:
    """Groups the tensors of a program by the memory that they live in."""

    def __init__(self) -> None:
        self._home: dict[int, int] = {}  # storage → the storage that it really is
        self._residents: dict[int, list[FxNode]] = {}
        self._constants: set[int] = set()

    def add(self, fx_node: FxNode, is_constant: bool = False) -> None:
        """Note where a tensor lives."""
        if not isinstance(fx_node.meta.get("val"), Tensor):
            return
        if str(fx_node.target) in _RETURN_THEIR_INPUT:
            self._home[_storage(fx_node)] = self._home_of(fx_node.all_input_nodes[0])
        self._residents.setdefault(self._home_of(fx_node), []).append(fx_node)
        if is_constant:
            self._constants.add(self._home_of(fx_node))

    def _home_of(self, fx_node: FxNode) -> int:
        storage = _storage(fx_node)
        return self._home.get(storage, storage)

    def overwritten_by(self, fx_node: FxNode) -> Iterator[tuple[FxNode, bool]]:
        """The tensors that an operation in place changes, and whether each is just its result, not another view."""
        home = self._home_of(fx_node)
        if home in self._constants and str(fx_node.target) not in _CHANGE_NOTHING:
            raise Problem("it changes a parameter or buffer of the network")
        for other in self._residents[home]:
            yield other, _view(other) == _view(fx_node)


def _storage(fx_node: FxNode) -> int:
    return int(fx_node.meta["val"].untyped_storage()._cdata)


def _view(fx_node: FxNode) -> tuple[object, ...]:
    tensor: Tensor = fx_node.meta["val"]
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
