"""The multitask network: structure, blocks, running, cost, files."""

from pamerge.network.files import load, save
from pamerge.network.network import Change, Junction, MultitaskNetwork, Subnet

__all__ = ["Change", "Junction", "MultitaskNetwork", "Subnet", "load", "save"]
