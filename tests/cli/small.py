"""Small inputs of the command line: an experiment, and a user's own networks."""

from __future__ import annotations

from pathlib import Path

EXPERIMENT = """
name = "tiny"
schemes = ["separate", {name = "pam", alpha = 0.1}]
pruners = [{name = "taylor", batches = 1}]
max_drop = 0.5
effort = 80
finetune = 4
data = {name = "digits", train = 200, validation = 50, test = 50}
network = "lenet5"
pretraining = {epochs = 1}
prune = {steps = 2, recovery = 2, final = 4, fraction = 0.1, laps = 3}
"""

TUNED = EXPERIMENT.replace(
    'schemes = ["separate", {name = "pam", alpha = 0.1}]',
    'schemes = [{name = "mtz", steps = 2, samples = 50}, {name = "pam", alpha = "tune"}]\n'
    "tune = {alphas = [0.1], exclusives = [], zips = [false], finetune_steps = 2, "
    "prune_options = {laps = 1, steps = 1, final = 1}}",
).replace("effort = 80", "effort = 160")

MODELS = """
from torch import nn

def network(outputs=3, width=6):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4),
        nn.Flatten(), nn.Linear(width * 4, 12), nn.ReLU(), nn.Linear(12, outputs),
    )

def no_network():
    return 3

def broken():
    raise ValueError("there is no such model")

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        x = x.flatten(1, 2)
        return self.out(self.attention(x, x, x)[0].mean(1))
"""

DATA = """
import torch
from torch.utils.data import DataLoader, TensorDataset

def batches(samples):
    inputs, labels = zip(*samples)
    kinds, sizes = zip(*labels)
    return torch.stack(inputs), {"kind": torch.stack(kinds), "size": torch.stack(sizes)}

def loaders(count=64):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 1, 8, 8, generator=generator)
    kinds = inputs.flatten(1)[:, :3].argmax(1)
    sizes = inputs.mean((1, 2, 3)).unsqueeze(1)
    data = [(x, (k, s)) for x, k, s in zip(inputs, kinds, sizes)]
    shuffle = torch.Generator().manual_seed(1)
    return {
        "train": DataLoader(data, 16, shuffle=True, generator=shuffle, collate_fn=batches),
        "validation": DataLoader(data[:32], 16, collate_fn=batches),
    }

def fails_later():
    parts = loaders()

    class Interrupted:
        def __iter__(self):
            yield next(iter(parts["train"]))
            raise KeyError("sample 17")

    return {**parts, "train": Interrupted()}

def one_part():
    return {"train": []}
"""

MERGE = """
out = "small.pam"
scheme = {name = "pam", alpha = 0.1}
pruner = {name = "taylor", batches = 1}
max_drop = 2.0
finetune = 5

[networks.kind]
factory = "my_models:network"
objective = "classification"

[networks.size]
factory = "my_models:network"
args = {outputs = 1, width = 4}

[data]
factory = "my_data:loaders"

[prune]
laps = 2
steps = 2
recovery = 2
final = 4
fraction = 0.1

[mix]
kind = 0.5
"kind+size" = 0.5
"""


def own_project(folder: Path, config: str = MERGE) -> Path:
    """A folder with a user's modules; returns the configuration."""
    (folder / "my_models.py").write_text(MODELS)
    (folder / "my_data.py").write_text(DATA)
    path = folder / "small.toml"
    path.write_text(config)
    return path


def experiment(folder: Path, config: str = EXPERIMENT) -> Path:
    path = folder / "tiny.toml"
    path.write_text(config)
    return path
