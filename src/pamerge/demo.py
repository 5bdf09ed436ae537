"""``make demo``: merges two small networks, runs every subset of tasks and prints what each costs."""

from __future__ import annotations

import torch
from rich.console import Console
from rich.table import Table

import pamerge
from pamerge import Assigned, MultitaskNetwork, Separate, TaskSet, zoo
from pamerge.merging import Scheme
from pamerge.network import Junction
from pamerge.tasks import all_subsets


def half_shared(junction: Junction) -> dict[int, TaskSet]:
    """Shares every second neuron among all tasks; the rest stay with the task that they came from."""
    everyone = TaskSet(task for group in junction.groups for task in group)
    return {n: everyone if i % 2 else tasks for i, (n, tasks) in enumerate(junction.task_sets().items())}


def main() -> None:
    """Two LeNet-5 on 28×112 inputs, merged in three ways."""
    torch.manual_seed(0)
    x = torch.randn(8, 1, 28, 112)
    networks = {task: zoo.lenet5(5, (1, 28, 112)).eval() for task in ("tops", "shoes")}
    everyone = Assigned(lambda junction: dict.fromkeys(junction.task_sets(), networks))
    schemes: dict[str, Scheme] = {"separate": Separate(), "half shared": Assigned(half_shared), "all shared": everyone}
    merged: dict[str, MultitaskNetwork] = {
        name: pamerge.merge(networks, [x], scheme) for name, scheme in schemes.items()
    }

    console = Console()
    table = Table(title="MFLOPs of every subset of tasks (before pruning)")
    for column in ("tasks", *merged):
        table.add_column(column, justify="left" if column == "tasks" else "right")
    for tasks in all_subsets(networks):
        table.add_row(str(tasks), *(f"{network.flops(tasks) / 1e6:.2f}" for network in merged.values()))
    console.print(table)

    network = merged["half shared"]
    console.print(str(network), highlight=False)
    for tasks in all_subsets(networks):
        outputs = network(x, tasks=tasks)
        same = all(torch.allclose(outputs[task], network(x)[task], atol=1e-5) for task in tasks)
        shapes = ", ".join(f"{task} {tuple(output.shape)}" for task, output in outputs.items())
        console.print(f"network(x, tasks={set(tasks)}) → {shapes}; as in the full network: {same}", highlight=False)


if __name__ == "__main__":
    main()
