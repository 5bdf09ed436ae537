"""The arithmetic of the mixture estimator (Kolchinsky and Tracey 2017): functions of kernels and codes.

Every activation vector t_i is the centre of a Gaussian of variance s². With ``K_ik = exp(−‖t_i − t_k‖² /
2s²)`` all constants cancel:

    I(T; Y) = (1/N) Σ_i ln [ mean_{k: y_k = y_i} K_ik / mean_k K_ik ]
            = H(Y) + (1/N) Σ_i ln [ Σ_{k: y_k = y_i} K_ik / Σ_k K_ik ]   (in nats)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Readout:
    """Which sums over a kernel's columns a set of labels needs, as one matrix product.

    Labels of two classes come first, then those of more; constant ones carry nothing and are left out.

    Attributes:
        columns: Rows of zeros and ones, ``(Q, N)``: all samples; the rarer class of each label that has two; every
            class of the others.
        common: 1 where a sample is of the more common class of a label that has two, ``(L₂, N)``.
        sign: -1 there, 1 elsewhere.
        place: The row of the class of a sample, for each label with more than two classes, ``(L₊, N)``.
        entropy: H(Y_l) in nats, ``(L₂ + L₊,)``.
    """

    columns: Tensor
    common: Tensor
    sign: Tensor
    place: Tensor
    entropy: Tensor

    @classmethod
    def of(cls, codes: Tensor) -> Readout:
        """The readout of labels given as codes, ``(N, L)``, none of them missing."""
        rows = [torch.ones(len(codes), dtype=torch.float64)]
        common, place, entropy = [], [], []
        labels = [torch.unique(code, return_inverse=True, return_counts=True) for code in codes.T]
        for classes, inverse, counts in sorted(labels, key=lambda label: len(label[0]) > 2):
            if len(classes) == 1:
                continue
            shares = counts.double() / len(codes)
            entropy.append(-(shares * shares.log()).sum())
            if len(classes) == 2:
                # The sum over the common class is a difference, which halves the products for multi-label data.
                # It loses few digits; as a difference the sum over the rare class could lose many.
                rare = inverse == counts.argmin()
                rows.append(rare.double())
                common.append((~rare).double())
            else:
                place.append(inverse + len(rows))
                rows.extend((inverse == index).double() for index in range(len(classes)))
        nothing = torch.empty(0, len(codes), dtype=torch.float64)
        is_common = torch.stack(common) if common else nothing
        return cls(
            columns=torch.stack(rows),
            common=is_common,
            sign=1 - 2 * is_common,
            place=torch.stack(place) if place else nothing.long(),
            entropy=torch.stack(entropy) if entropy else torch.empty(0, dtype=torch.float64),
        )

    def to(self, dtype: torch.dtype) -> Readout:
        """The same in another precision."""
        columns, common, sign = (part.to(dtype) for part in (self.columns, self.common, self.sign))
        return Readout(columns, common, sign, self.place, self.entropy)

    def information(self, sums: Tensor) -> Tensor:
        """Information in bits about each label, ``(..., L)``, from ``columns @ K``, ``(..., Q, N)``."""
        # Ratios are taken before the logarithm: single precision is then enough for 1e-6 bits.
        shares = sums[..., 1:, :] / sums[..., :1, :]
        rare = shares[..., : len(self.common), :]
        own = torch.addcmul(self.common, rare, self.sign)
        if len(self.place):
            place = (self.place - 1).expand(*sums.shape[:-2], -1, -1)
            own = torch.cat([own, shares.gather(-2, place)], -2)
        logarithms = own.clamp_min_(torch.finfo(sums.dtype).tiny).log_()
        return (self.entropy + logarithms.mean(-1, dtype=torch.float64)) / math.log(2)


def squared_distances(values: Tensor) -> Tensor:
    """``‖t_i − t_k‖²`` of all pairs, ``(N, N)``, from values ``(N, F)``; exact zeros on the diagonal."""
    squares = (values**2).sum(1)
    distances = squares.unsqueeze(1) + squares - 2 * values @ values.T
    return distances.clamp_min_(0).fill_diagonal_(0)


def shuffles_of(codes: Tensor, count: int, generator: torch.Generator) -> list[Tensor]:
    """The labels with their samples permuted, ``count`` times; all labels of a sample move together."""
    return [codes[torch.randperm(len(codes), generator=generator)] for _ in range(count)]


def bandwidth(distances: Tensor, shuffled: list[Readout], leak: float) -> float:
    """The kernel variance s² at which shuffled labels give the share ``leak`` of their entropy, by bisection.

    A smaller s² makes samples so isolated that any labels, even shuffled ones, are told apart; a larger one
    blurs what the neurons say.

    Args:
        distances: Squared distances of the samples, with all neurons.
        shuffled: Labels whose samples were permuted.
        leak: A share between 0 and 1.
    """
    entropy = float(torch.stack([readout.entropy.sum() for readout in shuffled]).mean()) / math.log(2)
    if entropy <= 0 or float(distances.max()) <= 0:
        return 1.0
    scale = float(distances.mean())
    low, high = math.log(1e-5 * scale), math.log(1e4 * scale)
    while high - low > 1e-3:
        middle = (low + high) / 2
        if baseline(torch.exp(distances / (-2 * math.exp(middle))), shuffled) > leak * entropy:
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)


def baseline(kernel: Tensor, shuffled: list[Readout]) -> float:
    """The mean information in bits, summed over the labels, about shuffled labels; 0 without any."""
    found = [float(readout.information(readout.columns @ kernel).sum()) for readout in shuffled]
    return sum(found) / len(found) if found else 0.0
