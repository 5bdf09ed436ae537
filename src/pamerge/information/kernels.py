"""The arithmetic of the mixture estimator (Kolchinsky and Tracey 2017): functions of kernels and codes.

Every activation vector t_i is the centre of a Gaussian of variance s². With ``K_ik = exp(−‖t_i − t_k‖² /
2s²)`` all constants cancel (METHODS §3):

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

    Attributes:
        columns: Rows of zeros and ones, ``(Q, N)``: all samples, then the samples of each class.
        place: The row that holds the class of sample i for label l, ``(L, N)``.
        rest: Where that row holds the *other* class, ``(L, N)``: of two classes only the rarer is summed up.
        entropy: H(Y_l) in nats, ``(L,)``.
    """

    columns: Tensor
    place: Tensor
    rest: Tensor
    entropy: Tensor

    @classmethod
    def of(cls, codes: Tensor) -> Readout:
        """The readout of labels given as codes, ``(N, L)``, none of them missing."""
        rows = [torch.ones(len(codes), dtype=torch.float64)]
        place = torch.zeros(codes.shape[1], len(codes), dtype=torch.long)
        rest = torch.zeros(codes.shape[1], len(codes), dtype=torch.bool)
        entropy = torch.zeros(codes.shape[1], dtype=torch.float64)
        for label, code in enumerate(codes.T):
            classes, inverse, counts = torch.unique(code, return_inverse=True, return_counts=True)
            shares = counts.double() / len(codes)
            entropy[label] = -(shares * shares.log()).sum()
            if len(classes) == 2:
                # A kernel's sum over the common class is the difference, which loses few digits; over the
                # rare class it could lose many. It halves the products for multi-label data.
                rare = int(counts.argmin())
                rest[label] = inverse != rare
                place[label] = len(rows)
                rows.append((inverse == rare).double())
            elif len(classes) > 2:
                place[label] = inverse + len(rows)
                rows.extend((inverse == index).double() for index in range(len(classes)))
        return cls(torch.stack(rows), place, rest, entropy)

    def to(self, dtype: torch.dtype) -> Readout:
        """The same in another precision."""
        return Readout(self.columns.to(dtype), self.place, self.rest, self.entropy)

    def information(self, sums: Tensor) -> Tensor:
        """Information in bits about each label, ``(..., L)``, from ``columns @ K``, ``(..., Q, N)``."""
        everything = sums[..., :1, :]
        own = sums.gather(-2, self.place.expand(*sums.shape[:-2], -1, -1))
        own = torch.where(self.rest, everything - own, own)
        # The ratio is taken before the logarithm: single precision is then enough for 1e-6 bits.
        ratio = own.div_(everything).clamp_min_(torch.finfo(sums.dtype).tiny).log_()
        return (self.entropy + ratio.mean(-1, dtype=torch.float64)) / math.log(2)


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
    blurs what the neurons say (METHODS §3, the trap).

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
