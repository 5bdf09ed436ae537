"""Zipping: which neurons of two networks compute nearly the same, and the weights that serve both (He et al. 2018).

A layer's neuron with weights w (its bias as the weight of a constant input) changes its output by ``dᵀ H d`` in the
mean square when w changes by d, with ``H = E[x xᵀ]`` over the layer's inputs x. Two neurons that are made one with
weights w differ from what they were by ``(w − w_A)ᵀ H_A (w − w_A) + (w − w_B)ᵀ H_B (w − w_B)``.
"""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor


def coupling(h_a: Tensor, h_b: Tensor, epsilon: float = 1e-6) -> Tensor:
    """``(H_A⁻¹ + H_B⁻¹)⁻¹ = H_A (H_A + H_B)⁻¹ H_B``, computed without inverting either."""
    solved: Tensor = torch.linalg.solve(_regular(h_a + h_b, epsilon), h_b)
    return h_a @ solved


def shared_weights(w_a: Tensor, w_b: Tensor, h_a: Tensor, h_b: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Weights that change both neurons least: ``(H_A + H_B)⁻¹ (H_A w_A + H_B w_B)``; rows are neurons, ``(n, inputs)``.

    Where the data say nothing (no input varies in some direction), the weights are the mean of both.
    """
    mean = (w_a + w_b) / 2
    pull = h_a @ (w_a - mean).T + h_b @ (w_b - mean).T
    solved: Tensor = torch.linalg.solve(_regular(h_a + h_b, epsilon), pull)
    return mean + solved.T


def functional_difference(w_a: Tensor, w_b: Tensor, h_a: Tensor, h_b: Tensor, epsilon: float = 1e-6) -> Tensor:
    """``½ dᵀ (H_A⁻¹ + H_B⁻¹)⁻¹ d`` with ``d = w_A,i − w_B,j``, for all pairs: what sharing i with j costs at least.

    Args:
        w_a: ``(n, …, inputs)``; dimensions in between (positions of a kernel) are summed over.
        w_b: ``(m, …, inputs)``.
        h_a: second moments ``(inputs, inputs)`` of the inputs on the first network's data.
        h_b: the same for the second.
        epsilon: relative regularisation.

    Returns:
        ``(n, m)``.
    """
    matrix = coupling(h_a, h_b, epsilon)
    matrix = (matrix + matrix.T) / 2
    left, right = w_a.flatten(1), w_b.flatten(1)
    weighted_left, weighted_right = (w_a @ matrix).flatten(1), (w_b @ matrix).flatten(1)
    own = (left * weighted_left).sum(1)[:, None] + (right * weighted_right).sum(1)[None, :]
    return 0.5 * (own - 2 * weighted_left @ right.T).clamp_min(0)


def match(cost: Tensor) -> list[tuple[int, int]]:
    """Pairs, one-to-one, with the least total cost; of unequal sides some stay alone."""
    rows, columns = linear_sum_assignment(cost.cpu().numpy())
    return list(zip(rows.tolist(), columns.tolist(), strict=True))


def _regular(matrix: Tensor, epsilon: float) -> Tensor:
    scale = matrix.diagonal().mean().clamp_min(1e-30)
    return matrix + epsilon * scale * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
