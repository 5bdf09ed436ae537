"""How K networks become one."""

from pamerge.merging.assigned import Assigned
from pamerge.merging.material import Material
from pamerge.merging.merge import Scheme, merge, prepare
from pamerge.merging.mtz import MTZ
from pamerge.merging.pam import PAM
from pamerge.merging.regroup import Regrouping, regroup
from pamerge.merging.result import LayerMerging, Merging, Zipped
from pamerge.merging.separate import Separate

__all__ = [
    "MTZ",
    "PAM",
    "Assigned",
    "LayerMerging",
    "Material",
    "Merging",
    "Regrouping",
    "Scheme",
    "Separate",
    "Zipped",
    "merge",
    "prepare",
    "regroup",
]
