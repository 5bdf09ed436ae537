"""How K networks become one."""

from pamerge.merging.assigned import Assigned
from pamerge.merging.material import Material
from pamerge.merging.merge import Scheme, merge
from pamerge.merging.separate import Separate

__all__ = ["Assigned", "Material", "Scheme", "Separate", "merge"]
