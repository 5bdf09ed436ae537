"""How unimportant neurons are found and removed."""

from pamerge.pruning.magnitude import Magnitude
from pamerge.pruning.path import PruningPath, PruningStep
from pamerge.pruning.protocol import Pruner, QuietSession, Scores, Session, Surroundings
from pamerge.pruning.prune import prune
from pamerge.pruning.taylor import Taylor
from pamerge.pruning.vib import VIB

__all__ = [
    "VIB",
    "Magnitude",
    "Pruner",
    "PruningPath",
    "PruningStep",
    "QuietSession",
    "Scores",
    "Session",
    "Surroundings",
    "Taylor",
    "prune",
]
