import pytest
import torch


@pytest.fixture
def rng():
    """A fresh generator with a fixed seed."""
    return torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
