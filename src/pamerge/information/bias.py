"""How much information the Gaussian formula finds where there is none, and how many values really count.

With ``n = N − 1`` and p independent values, what p values leave of an independent label is a χ² variable with
n − p degrees of freedom, hence the expected estimate under independence, ``½ [ψ(n/2) − ψ((n − p)/2)] / ln 2`` a
label. But values that are correlated, dead, or drowned in the ridge λ cannot fit noise in full: with 1,000
correlated neurons the formula takes away far more than there is. With ``H = X (XᵀX + nλ I)⁻¹ Xᵀ`` the
residual is ``yᵀ(I − H)y``, and we match its first two moments by a scaled χ², ``c · χ²_ν`` (Satterthwaite
1946): ``c ν = tr(I − H)``, ``c² ν = tr((I − H)²)``. For independent values and λ → 0 this is ν = n − p and c
= 1, the formula above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg.lapack import dtrtri
from torch import Tensor


@dataclass(frozen=True)
class Freedom:
    """What sets of values leave of an independent label: ``c · χ²_ν`` in place of ``χ²_n``.

    Attributes:
        n: Degrees of freedom of the label, the number of samples minus one.
        scale: c, ``(sets,)``.
        degrees: ν, ``(sets,)``.
    """

    n: int
    scale: Tensor
    degrees: Tensor

    def every(self, step: int) -> Freedom:
        """Each ``step``-th entry, the first of them at ``step - 1``."""
        return Freedom(self.n, self.scale[step - 1 :: step], self.degrees[step - 1 :: step])


def freedom(xx: Tensor, noise: float, n: int) -> Freedom:
    """The degrees of freedom that all of these values leave.

    Args:
        xx: Covariance of the values, ``(p, p)``.
        noise: The ridge λ.
        n: Number of samples minus one.
    """
    inverse = torch.cholesky_inverse(_factor(xx, noise))
    return _matched(n, torch.tensor([len(xx)]), inverse.trace().reshape(1), (inverse**2).sum().reshape(1), noise)


def prefix_freedom(xx: Tensor, noise: float, n: int) -> Freedom:
    """The degrees of freedom that the first 1, 2, … values leave: :func:`freedom` of each leading block.

    With the Cholesky factor L of Σ + λ I, the leading block of L⁻¹ is the inverse of the leading block of L.
    So the trace and the squared norm of every leading block's inverse are running sums over ``L⁻¹ L⁻ᵀ``.
    """
    inverse, _ = dtrtri(_factor(xx, noise).numpy(), lower=1)
    gram = inverse @ inverse.T
    diagonal = gram.diagonal()
    lower = np.tril(gram, -1)
    squares = 2 * np.einsum("ij,ij->i", lower, lower) + diagonal**2
    trace, norm = (torch.from_numpy(terms.cumsum()) for terms in (diagonal, squares))
    return _matched(n, torch.arange(1, len(xx) + 1), trace, norm, noise)


def wishart_bias(left: Freedom, labels: int) -> Tensor:
    """Expected joint information in bits about ``labels`` labels that are independent of the values.

    ``½ Σ_{i < labels} [ψ((n − i)/2) − ψ((ν − i)/2) − ln c] / ln 2``, since the log-determinant of a Wishart
    matrix of ν degrees of freedom has expectation ``Σ_i ψ((ν − i)/2)`` plus a constant (Bishop 2006, eq.
    B.81).
    """
    i = torch.arange(labels, dtype=torch.float64)
    # Below one degree of freedom there is nothing to estimate from; the caller has warned of too few samples.
    nothing = torch.digamma(((left.n - i) / 2).clamp_min(0.5))
    something = torch.digamma(((left.degrees.unsqueeze(1) - i) / 2).clamp_min(0.5)) + left.scale.log().unsqueeze(1)
    bias: Tensor = 0.5 * (nothing - something).sum(1) / math.log(2)
    return bias


def _factor(xx: Tensor, noise: float) -> Tensor:
    factor: Tensor = torch.linalg.cholesky(xx + noise * torch.eye(len(xx), dtype=xx.dtype))
    return factor


def _matched(n: int, size: Tensor, inverse_trace: Tensor, inverse_squares: Tensor, noise: float) -> Freedom:
    first = n - size + noise * inverse_trace
    second = n - size + noise**2 * inverse_squares
    # Both are positive in exact arithmetic, since every eigenvalue of H is below one.
    first, second = first.clamp_min(1e-9), second.clamp_min(1e-9)
    return Freedom(n, second / first, first**2 / second)
