from __future__ import annotations

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from support.architectures import inputs as architecture_inputs
from support.architectures import material
from torch import nn
from training.small import INPUT, OBJECTIVES, OUTPUTS, batches, inputs, labels, merged, original, same_weights, weights

from pamerge import Assigned, PamergeError
from pamerge.tasks import all_subsets
from pamerge.training import Classification, Custom
from pamerge.training.data import Batch, Batches
from pamerge.training.steps import Distillation, compute_gradients, set_training_mode, train_step

FABRIC = Fabric(accelerator="cpu", devices=1)


def read(raw, shapes=OUTPUTS, objectives=OBJECTIVES) -> Batch:
    (batch,) = Batches([raw], "data", objectives, None, lambda x: {t: (shapes[t],) for t in objectives})
    return batch


def gradients(network: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in network.named_parameters()}


def averaged_one_by_one(network, losses) -> dict[str, torch.Tensor]:
    """The gradient of each task on its own, averaged over the tasks that reach a parameter."""
    found: dict[str, list[torch.Tensor]] = {}
    for loss in losses:
        network.zero_grad()
        loss().backward()
        for name, parameter in network.named_parameters():
            if parameter.grad is not None:
                found.setdefault(name, []).append(parameter.grad.clone())
    network.zero_grad()
    return {name: torch.stack(parts).mean(0) for name, parts in found.items()}


@pytest.mark.parametrize("name", ["small_resnet", "lenet5", "densenet"])
def test_gradients_of_shared_blocks_are_averages_of_the_tasks_own_gradients(name):
    source, rng = material(name, 3 if name == "lenet5" else 2), np.random.default_rng(1)
    subsets = list(all_subsets(source.alignment.tasks))
    network = Assigned(lambda junction: {n: subsets[rng.integers(len(subsets))] for n in junction.task_sets()}).merge(
        source
    )
    network.double().train()
    x = architecture_inputs(name, 5).double()
    shapes = {task: network(x)[task].shape[1] for task in network.tasks}
    y = {task: torch.arange(5) % shapes[task] for task in network.tasks}
    objectives = dict.fromkeys(network.tasks, Classification())

    def loss_of(task):
        return lambda: Classification().loss(network(x, task)[task], y[task])

    expected = averaged_one_by_one(network, [loss_of(task) for task in network.tasks])
    result = compute_gradients(network, read((x, y), shapes, objectives), objectives, fabric=FABRIC)
    assert set(result.losses) == set(network.tasks)
    assert len(network.tasks) in {len(layout.group) for layout in network.layouts.values()}
    for parameter_name, gradient in gradients(network).items():
        torch.testing.assert_close(gradient, expected[parameter_name])


def test_tasks_without_labels_in_a_batch_are_not_run_and_do_not_dilute_the_average():
    network, (x, y) = merged().train(), batches(1)[0]
    y = {"shape": y["shape"], "size": torch.full_like(y["size"], torch.nan), "parts": y["parts"]}
    y["parts"][2:] = torch.nan
    expected = averaged_one_by_one(
        network,
        [
            lambda: OBJECTIVES["shape"].loss(network(x, "shape")["shape"], y["shape"]),
            lambda: OBJECTIVES["parts"].loss(network(x, "parts")["parts"][:2], y["parts"][:2]),
        ],
    )
    compute_gradients(network, read((x, y)), OBJECTIVES, fabric=FABRIC)
    for name, gradient in gradients(network).items():
        assert (gradient is None) == (name not in expected), name
        if gradient is not None:
            torch.testing.assert_close(gradient, expected[name])


def test_tasks_can_count_more_where_they_share_and_only_there():
    network, (x, y) = merged().double().train(), batches(1)[0]
    x, counts = x.double(), {"shape": 4.0, "size": 0.5, "parts": 1.0}
    alone: dict[str, dict[str, torch.Tensor]] = {}
    for task in network.tasks:
        compute_gradients(network, read((x, y)), OBJECTIVES, fabric=FABRIC, tasks=task)
        alone[task] = {name: gradient for name, gradient in gradients(network).items() if gradient is not None}
        network.zero_grad(set_to_none=True)
    plain = compute_gradients(network, read((x, y)), OBJECTIVES, fabric=FABRIC)
    network.zero_grad(set_to_none=True)
    weighted = compute_gradients(network, read((x, y)), OBJECTIVES, fabric=FABRIC, weights=counts)
    assert weighted.losses == plain.losses
    for name, gradient in gradients(network).items():
        tasks = [task for task in network.tasks if name in alone[task]]
        mean = sum(counts[task] * alone[task][name] for task in tasks) / sum(counts[task] for task in tasks)
        torch.testing.assert_close(gradient, mean)


def test_weights_do_not_change_the_scale_of_what_is_not_averaged():
    """A task alone is as it is without weights, its gates too, and gates of several get the mean of what they weigh."""
    network, batch = merged().double().train(), batches(1)[0]
    batch = (batch[0].double(), batch[1])
    gate = torch.ones((), dtype=torch.float64, requires_grad=True)

    def gate_gradient(tasks, weights) -> float:
        gate.grad = None
        compute_gradients(
            network,
            read(batch),
            OBJECTIVES,
            fabric=FABRIC,
            tasks=tasks,
            weights=weights,
            at_junction=lambda name, group, x: gate * x,
        )
        return float(gate.grad)

    weights = {"shape": 4.0, "size": 1.0, "parts": 1.0}
    alone = {task: gate_gradient(task, None) for task in OBJECTIVES}
    assert {task: gate_gradient(task, weights) for task in OBJECTIVES} == pytest.approx(alone)
    expected = sum(weights[task] / 2 * alone[task] for task in OBJECTIVES)
    assert gate_gradient(None, weights) == pytest.approx(expected)


def test_a_block_that_no_task_of_the_batch_needs_is_left_alone_by_the_optimiser():
    network = merged().train()
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.1)
    train_step(network, read(batches(1)[0]), OBJECTIVES, optimizer, fabric=FABRIC)
    before = weights(network)
    result = train_step(network, read(batches(1, tasks=("shape",))[0]), OBJECTIVES, optimizer, fabric=FABRIC)
    assert set(result.losses) == {"shape"}
    for key, layout in network.layouts.items():
        changed = not torch.equal(network.blocks[key].weight, before[f"blocks.{key}.weight"])
        assert changed == ("shape" in layout.group), key


def test_only_the_tasks_that_are_asked_for_are_trained():
    network = merged().train()
    result = compute_gradients(network, read(batches(1)[0]), OBJECTIVES, fabric=FABRIC, tasks="size")
    assert set(result.losses) == {"size"}
    for key, layout in network.layouts.items():
        assert (network.blocks[key].weight.grad is not None) == ("size" in layout.group)


def test_gates_at_junctions_and_their_penalty_get_gradients():
    network = merged().train()
    gates = {
        (j.name, group): torch.ones(len(neurons), requires_grad=True)
        for j in network.junctions.values()
        for group, neurons in j.groups.items()
    }

    def gate(junction, group, z):
        value = gates[junction, group]
        return z * value.repeat_interleave(z.shape[1] // len(value)).view(1, -1, *[1] * (z.dim() - 2))

    first = next(iter(gates.values()))
    batch = read(batches(1)[0])
    compute_gradients(network, batch, OBJECTIVES, fabric=FABRIC, at_junction=gate)
    without = first.grad.clone()
    assert all(value.grad is not None for value in gates.values())
    first.grad = None
    compute_gradients(network, batch, OBJECTIVES, fabric=FABRIC, at_junction=gate, penalty=lambda: 5 * first.sum())
    torch.testing.assert_close(first.grad, without + 5)


def test_the_loss_of_a_task_is_a_mix_of_labels_and_teacher():
    network, (x, y) = merged().eval(), batches(1)[0]
    teacher = original("shape")
    output = network(x, "shape")["shape"].detach()
    from_labels = float(Classification().loss(output, y["shape"]))
    from_teacher = float(Classification().distillation(output, teacher(x).detach()))
    y["size"] = torch.full_like(y["size"], torch.nan)
    lessons = Distillation({"shape": teacher, "size": original("size")}, {"shape": 0.3, "size": 0.4})
    losses = compute_gradients(network, read((x, y)), OBJECTIVES, fabric=FABRIC, distillation=lessons).losses
    assert losses["shape"] == pytest.approx(0.7 * from_labels + 0.3 * from_teacher, rel=1e-5)
    alone = float(OBJECTIVES["size"].distillation(network(x)["size"], original("size")(x)).detach())
    assert losses["size"] == pytest.approx(0.4 * alone, rel=1e-5)
    assert losses["parts"] == pytest.approx(float(OBJECTIVES["parts"].loss(network(x)["parts"], y["parts"]).detach()))
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_a_batch_with_nothing_to_learn_from_changes_nothing():
    network = merged().train()
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0, momentum=0.9)
    train_step(network, read(batches(1)[0]), OBJECTIVES, optimizer, fabric=FABRIC)
    before = weights(network)
    result = train_step(network, read(inputs(4)), OBJECTIVES, optimizer, fabric=FABRIC)
    assert (result.losses, result.samples) == ({}, 4)
    assert same_weights(network, before)


def test_a_loss_that_is_no_scalar_is_refused():
    objective = Custom(lambda y, t: (y - t).square(), nn.functional.l1_loss)
    x = torch.zeros(4, *INPUT)
    with pytest.raises(PamergeError, match=r"Task 'size': the loss is \(4, 1\); expected a scalar tensor"):
        compute_gradients(
            merged(),
            read((x, {"size": labels(x)["size"]}), OUTPUTS, {"size": objective}),
            {"size": objective},
            fabric=FABRIC,
        )


def test_frozen_batch_norms_keep_their_statistics_and_train_their_weights():
    network = merged(batch_norm=True)
    norms = {n: m for n, m in network.named_modules() if isinstance(m, nn.BatchNorm2d)}
    before = {n: (m.running_mean.clone(), m.weight.detach().clone()) for n, m in norms.items()}
    optimizer = torch.optim.Adam(network.parameters())
    set_training_mode(network, freeze_batch_norm=True)
    train_step(network, read(batches(1)[0]), OBJECTIVES, optimizer, fabric=FABRIC)
    assert all(torch.equal(norms[name].running_mean, mean) for name, (mean, _) in before.items())
    assert any(not torch.equal(norms[name].weight, weight) for name, (_, weight) in before.items())
    set_training_mode(network)
    train_step(network, read(batches(1)[0]), OBJECTIVES, optimizer, fabric=FABRIC)
    assert all(not torch.equal(norms[name].running_mean, mean) for name, (mean, _) in before.items())
