"""A subset of tasks as a ``torch.export`` program (``.pt2``), for runtimes that speak torch."""

from __future__ import annotations

import copy
import io
import os
from collections.abc import Iterable
from pathlib import Path

import torch

from pamerge.network import MultitaskNetwork
from pamerge.network.files import write_atomically


@torch.no_grad()
def export_program(
    network: MultitaskNetwork, path: str | os.PathLike[str], tasks: Iterable[str] | str | None = None
) -> torch.export.ExportedProgram:
    """Write some tasks (all by default) as a program ``x -> {task: tensor}`` of any batch size, and return it."""
    subnet = copy.deepcopy(network).eval().subnet(tasks).eval()
    some = next(subnet.parameters())
    example = torch.zeros(2, *network.input_size, device=some.device, dtype=some.dtype)
    program = torch.export.export(subnet, (example,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
    content = io.BytesIO()
    torch.export.save(program, content)
    write_atomically(Path(path), content.getvalue())
    return program
