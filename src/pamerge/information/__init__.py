"""How much a set of neurons says about labels.

>>> import torch
>>> activations = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
>>> trace(activations, (activations[:, 2] > 0).long()).order[-1]  # the neuron that says most comes last
2

:func:`trace` orders a layer's neurons such that the first ones say as little as possible about labels, which
is what Algorithms 2 and 3 of the paper need. :func:`layer_redundancy` and :func:`layer_conditions` are the
paper's theory as numbers. Estimators: :class:`Gaussian` (closed form, streamed, the default) and
:class:`Mixture` (the paper's).
"""

from pamerge.information.conditions import LayerConditions, PairConditions, layer_conditions
from pamerge.information.gaussian import Gaussian
from pamerge.information.labels import Kind, Labels, kind_of, label_codes, label_columns
from pamerge.information.mixture import Mixture
from pamerge.information.moments import Moments, Source
from pamerge.information.protocol import Collector, Estimator, LayerInformation, State
from pamerge.information.redundancy import Redundancy, layer_redundancy
from pamerge.information.tracing import Trace, greedy, trace, trace_collected

__all__ = [
    "Collector",
    "Estimator",
    "Gaussian",
    "Kind",
    "Labels",
    "LayerConditions",
    "LayerInformation",
    "Mixture",
    "Moments",
    "PairConditions",
    "Redundancy",
    "Source",
    "State",
    "Trace",
    "greedy",
    "kind_of",
    "label_codes",
    "label_columns",
    "layer_conditions",
    "layer_redundancy",
    "trace",
    "trace_collected",
]
