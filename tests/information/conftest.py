import pytest
import torch


@pytest.fixture
def rng():
    """A fresh generator with a fixed seed."""
    return torch.Generator().manual_seed(0)
