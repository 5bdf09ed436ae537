"""``make demo``: merges two small networks, runs every subset of tasks and prints what each costs."""

from __future__ import annotations

import torch
from rich import box
from rich.console import Console
from rich.table import Table

import pamerge
from pamerge import Assigned, Separate, TaskSet, zoo
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
    schemes: dict[str, Scheme] = {
        "separate": Separate(),
        "half shared": Assigned(half_shared),
        "all shared": Assigned(lambda junction: dict.fromkeys(junction.task_sets(), networks)),
    }
    merged = {name: pamerge.merge(networks, [x], scheme) for name, scheme in schemes.items()}

    console = Console(width=100, highlight=False)
    table = Table(title="MFLOPs of every subset of tasks, before pruning", box=box.SIMPLE)
    table.add_column("tasks")
    for name in merged:
        table.add_column(name, justify="right")
    for tasks in all_subsets(networks):
        table.add_row(str(tasks), *(f"{network.flops(tasks) / 1e6:.2f}" for network in merged.values()))
    console.print(table)

    network = merged["half shared"]
    console.print(str(network))
    everything = network(x)
    console.print()
    for tasks in all_subsets(networks):
        outputs = network(x, tasks=tasks)
        same = all(torch.allclose(outputs[task], everything[task], atol=1e-5) for task in tasks)
        shapes = ", ".join(f"{task} {tuple(output.shape)}" for task, output in outputs.items())
        console.print(f"running {tasks}: {shapes}; {'the same' if same else 'NOT the same'} as in the full network")


if __name__ == "__main__":
    main()
