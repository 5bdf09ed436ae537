"""Devices, precision and several processes, all through lightning-fabric.

The network is *not* wrapped in DistributedDataParallel: pruning replaces its blocks, and a batch may use only some of
them, while DDP fixes the parameters and its gradient buckets when it is made. Gradients are instead summed over the
processes in one buffer after the backward pass, each process's part weighted by its number of labels, so that the
result is that of one process with the combined batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from pamerge.errors import PamergeError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_LOADER_OPTIONS = (
    *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context"),
    *("generator", "prefetch_factor", "persistent_workers"),
)


def resolve_fabric(fabric: Fabric | None, module: nn.Module) -> Fabric:
    """The caller's fabric, checked; by default one process on the device where the module is."""
    from lightning_fabric import Fabric  # here, because it takes seconds to import and not everyone trains

    if fabric is None:
        device = next((tensor.device for tensor in [*module.parameters(), *module.buffers()]), torch.device("cpu"))
        devices = 1 if device.type == "cpu" else [device.index or 0]
        return Fabric(accelerator=device.type, devices=devices)
    if not isinstance(fabric, Fabric):
        raise PamergeError(f"fabric is a {type(fabric).__name__}; expected a lightning_fabric.Fabric.")
    if fabric.world_size > 1 and not torch.distributed.is_initialized():
        raise PamergeError(
            f"fabric has {fabric.world_size} processes that were not started; call fabric.launch() first."
        )
    precision = getattr(fabric.strategy.precision, "precision", "32-true")
    if precision not in ("32-true", "16-mixed", "bf16-mixed"):
        raise PamergeError(f"fabric has precision {precision!r}; expected '32-true', '16-mixed' or 'bf16-mixed'.")
    return fabric


def shard(data: Iterable[Any], fabric: Fabric) -> Iterable[Any]:
    """This process's part of the data: every n-th batch of a DataLoader, whose batch size is that of one process.

    Not ``fabric.setup_dataloaders``, whose sampler repeats samples until all processes have equally many, which
    changes metrics, and shuffles by itself instead of with the loader's generator. A loader that is sharded already,
    data without an order (an IterableDataset) and other iterables are taken as each process gives them.
    """
    if fabric.world_size == 1 or not isinstance(data, DataLoader) or isinstance(data.dataset, IterableDataset):
        return data
    inner = getattr(data.batch_sampler, "sampler", None)
    if any(hasattr(sampler, "num_replicas") for sampler in (data.sampler, data.batch_sampler, inner)):
        return data
    share = {"rank": fabric.global_rank, "processes": fabric.world_size}
    if type(data) is not DataLoader:
        return EveryNth(data, **share)  # we cannot know how to make another one of its class
    options = {name: getattr(data, name) for name in _LOADER_OPTIONS}
    if data.batch_sampler is not None:
        return DataLoader(data.dataset, batch_sampler=EveryNth(data.batch_sampler, **share), **options)
    return DataLoader(data.dataset, batch_size=None, sampler=EveryNth(data.sampler, **share), **options)


class EveryNth:
    """Every n-th item of a sampler or loader, from this process's on."""

    def __init__(self, sampler: Iterable[Any], rank: int, processes: int) -> None:
        self.sampler = sampler
        self.rank = rank
        self.processes = processes

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self.sampler), self.rank, None, self.processes)

    def __len__(self) -> int:
        return max(0, -((self.rank - len(self.sampler)) // self.processes))  # type: ignore[arg-type]


def start_epoch(data: Any, epoch: int) -> None:
    """Tell samplers that shuffle by the number of the epoch (those of distributed training) which one it is."""
    inner = getattr(getattr(data, "batch_sampler", None), "sampler", None)
    for sampler in (getattr(data, "sampler", None), getattr(data, "batch_sampler", None), inner):
        set_epoch = getattr(sampler, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
    if hasattr(data, "_num_iter_calls"):  # fabric's own wrapper sets the epoch of its sampler from this
        data._num_iter_calls = epoch


def sum_over_processes(tensors: Sequence[Tensor], fabric: Fabric) -> None:
    """Replace tensors by their sums over all processes, in one message for each type of number."""
    if fabric.world_size == 1:
        return
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        same = [tensor for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in same])
        total = fabric.all_reduce(flat, reduce_op="sum")
        assert isinstance(total, Tensor)
        for tensor, part in zip(same, torch.split(total, [tensor.numel() for tensor in same]), strict=True):
            tensor.detach().copy_(part.view_as(tensor))


def sums_of(numbers: Sequence[float], fabric: Fabric) -> list[float]:
    """Numbers, summed over all processes."""
    if fabric.world_size == 1:
        return list(numbers)
    total = fabric.all_reduce(torch.tensor(numbers, dtype=torch.float64, device=fabric.device), reduce_op="sum")
    assert isinstance(total, Tensor)
    return [float(number) for number in total.tolist()]


def sums_by_task(scores: Mapping[str, Tensor], tasks: Sequence[str], fabric: Fabric) -> dict[str, Tensor]:
    """For each task, ``(sums, counts)`` summed over all processes; a process may lack a task."""
    if fabric.world_size == 1:
        return dict(scores)
    sizes = torch.tensor([scores[task].shape[1] if task in scores else 0 for task in tasks], device=fabric.device)
    gathered = fabric.all_gather(sizes)
    assert isinstance(gathered, Tensor)
    lengths = gathered.amax(0).tolist()
    padded = [torch.zeros(2, length, dtype=torch.float64, device=fabric.device) for length in lengths]
    for task, buffer in zip(tasks, padded, strict=True):
        if task in scores:
            buffer.copy_(scores[task])
    sum_over_processes(padded, fabric)
    return {task: buffer for task, buffer in zip(tasks, padded, strict=True) if buffer.shape[1]}


def share_weights(module: nn.Module, fabric: Fabric) -> None:
    """Give every process the first one's parameters and buffers."""
    if fabric.world_size == 1:
        return
    with torch.no_grad():
        tensors = [*module.parameters(), *module.buffers()]
        if fabric.global_rank != 0:
            for tensor in tensors:
                tensor.zero_()
        sum_over_processes(tensors, fabric)


def average_statistics(module: nn.Module, fabric: Fabric) -> None:
    """Average batch-norm statistics, which every process gathers on its own part of the data."""
    if fabric.world_size == 1:
        return
    statistics = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
    sum_over_processes(statistics, fabric)
    for buffer in statistics:
        buffer.div_(fabric.world_size)


def sum_gradients(parameters: Iterable[Tensor], fabric: Fabric) -> None:
    """Sum the gradients of parameters that the network does not have, such as a pruner's own, over the processes."""
    found = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = parameter.new_zeros(parameter.shape)
        found.append(parameter.grad)
    sum_over_processes(found, fabric)
