"""``merge``: K trained networks become one."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pamerge.errors import CaptureError, PamergeError, PamergeWarning
from pamerge.graph import capture
from pamerge.graph.align import Alignment, align
from pamerge.merging.material import Material
from pamerge.merging.pam import PAM
from pamerge.network.network import MultitaskNetwork
from pamerge.tasks import check_task_names


class Scheme(Protocol):
    """How K networks become one: a frozen description with one method."""

    def merge(self, material: Material) -> MultitaskNetwork:
        """The merged network."""
        ...


def merge(
    networks: Mapping[str, nn.Module],
    calibration: Iterable[Any],
    scheme: Scheme | None = None,
    *,
    objectives: Mapping[str, Any] | None = None,
    train: Iterable[Any] | None = None,
    start: MultitaskNetwork | None = None,
) -> MultitaskNetwork:
    """Merge trained networks that take the same input into one multitask network.

    Args:
        networks: a network for each task, in eval mode; they are left as they are.
        calibration: an iterable of ``(inputs, targets)`` batches such as a DataLoader; ``targets`` maps a task to
            its labels. Batches without labels (just ``inputs``) do for schemes that need none.
        scheme: how to merge; :class:`PAM` with its defaults if it is left out.
        objectives: the kind of each task; by default it is read off the labels.
        train: training batches, for schemes that fine-tune while they merge.
        start: what :class:`Separate` made of these networks and :func:`prune` has pruned since: it is merged instead of
            the networks as they came. Left as it is.

    Raises:
        CaptureError: a network has a part that pamerge does not know.
        PamergeError: the networks do not fit together, or the data does not fit them.
    """
    material = prepare(networks, calibration, objectives=objectives, train=train)
    if start is not None:
        material = material.started_from(start)
    return (scheme or PAM()).merge(material)


def prepare(
    networks: Mapping[str, nn.Module],
    calibration: Iterable[Any],
    *,
    objectives: Mapping[str, Any] | None = None,
    train: Iterable[Any] | None = None,
) -> Material:
    """Capture and align networks once, to merge them with several schemes; the arguments are those of :func:`merge`."""
    _check_networks(networks)
    example = _example(calibration)
    graphs = {}
    for task, module in networks.items():
        try:
            graphs[task] = capture(module, example)
        except CaptureError as error:
            raise CaptureError(f"Task {task!r}: {error}") from error
    material = Material(dict(networks), graphs, align(graphs), calibration, objectives, train)
    _check_captured(material, example)
    _warn_if_nothing_matches(material.alignment)
    return material


def _check_networks(networks: Mapping[str, nn.Module]) -> None:
    if not isinstance(networks, Mapping):
        raise PamergeError(
            "networks must map the name of each task to its network, as in {'age': age_net, 'gender': gender_net}."
        )
    check_task_names(networks)
    places = {}
    for task, module in networks.items():
        if not isinstance(module, nn.Module):
            raise PamergeError(f"The network of task {task!r} is a {type(module).__name__}; expected an nn.Module.")
        if any(part.training for part in module.modules()):
            raise PamergeError(f"The network of task {task!r} is in training mode; call .eval() on it first.")
        places[task] = {(str(p.device), str(p.dtype).removeprefix("torch.")) for p in module.parameters()}
    if len(set.union(*places.values())) > 1:
        listed = "; ".join(
            f"{task}: {', '.join(' '.join(place) for place in sorted(found))}" for task, found in places.items()
        )
        raise PamergeError(f"The networks must be on one device and of one type; found {listed}.")


def _example(calibration: Iterable[Any]) -> Tensor:
    try:
        batch = next(iter(calibration))
    except (StopIteration, TypeError):
        raise PamergeError("calibration is empty or not iterable; expected batches of (inputs, targets).") from None
    inputs = batch[0] if isinstance(batch, (tuple, list)) else batch
    if not isinstance(inputs, Tensor) or inputs.dim() < 2 or len(inputs) == 0:
        raise PamergeError(
            "A calibration batch must be (inputs, targets) with inputs a tensor of shape (batch, channels, …)."
        )
    return inputs


@torch.no_grad()
def _check_captured(material: Material, example: Tensor) -> None:
    """Compares with the user's networks on a batch of another size: a capture that is wrong must not go unnoticed."""
    network = material.side_by_side()
    batch = torch.cat([example[:1], example[-1:], example[:1].flip(-1)])
    results = network(batch)
    for task, module in material.networks.items():
        expected = module(batch.clone())  # a network may change its input in place
        worst = float((results[task] - expected).abs().max()) if expected.shape == results[task].shape else float("inf")
        if not worst <= 1e-3 * max(1.0, float(expected.abs().max())):
            raise CaptureError(
                f"Task {task!r}: the captured network does not compute what the original computes "
                f"(largest difference {worst:.2g}). Does its forward depend on the batch size, on chance, or on state? "
                "If not, this is a bug in pamerge."
            )


def _warn_if_nothing_matches(alignment: Alignment) -> None:
    if len(alignment.tasks) > 1 and not alignment.matched_layers():
        reasons = "; ".join(alignment.differences.values())
        warnings.warn(
            f"The networks have only their input in common and stay separate: {reasons}.",
            PamergeWarning,
            stacklevel=3,
        )
