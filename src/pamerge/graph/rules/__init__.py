"""The rules of the op table, and the table itself: which operation follows which rule.

Names are those that ``torch.export`` writes; every one of them is exercised by a test.
"""

from __future__ import annotations

from pamerge.graph.ops import Rule, joins_channels, keeps_channels, register_op
from pamerge.graph.rules.functions import cast, dropout, pad, pool, same, softmax
from pamerge.graph.rules.layers import convolution, linear, transposed_convolution
from pamerge.graph.rules.per_channel import arithmetic, batch_norm, group_norm, instance_norm, prelu
from pamerge.graph.rules.shapes import expand, permute, reduce, reshape, select, stack, transpose
from pamerge.graph.rules.wires import concat, narrow, slices, split


def _register(rule: Rule, names: str) -> None:
    register_op(*(f"aten.{name if '.' in name else name + '.default'}" for name in names.split()), rule=rule)


_register(convolution, "conv1d conv2d conv3d conv1d.padding conv2d.padding conv3d.padding")
_register(transposed_convolution, "conv_transpose1d conv_transpose2d.input conv_transpose3d.input")
_register(linear, "linear")
_register(batch_norm, "batch_norm")
_register(instance_norm, "instance_norm")
_register(group_norm, "group_norm")
_register(prelu, "prelu")
_register(arithmetic, "add.Tensor sub.Tensor mul.Tensor div.Tensor div.Tensor_mode")
_register(joins_channels, "maximum minimum max.other min.other where.self where.ScalarOther where.ScalarSelf")
_register(same, "clone contiguous detach lift_fresh_copy")
_register(cast, "to.dtype to.device to.dtype_layout type_as")
_register(
    reshape,
    "view view_as reshape reshape_as flatten.using_ints squeeze squeeze.dim squeeze.dims unsqueeze unflatten.int",
)
_register(expand, "expand expand_as")
_register(permute, "permute")
_register(transpose, "transpose.int")
_register(select, "select.int")
_register(stack, "stack")
_register(
    reduce,
    "mean.dim sum.dim_IntList amax amin max.dim min.dim argmax argmin logsumexp linalg_vector_norm std.dim var.dim "
    "std.correction var.correction",
)
_register(softmax, "softmax.int log_softmax.int")
_register(pad, "pad constant_pad_nd")
_register(concat, "cat concat")
_register(slices, "slice.Tensor")
_register(narrow, "narrow")
_register(split, "chunk split.Tensor split_with_sizes")
_register(dropout, "dropout feature_dropout")
_register(
    pool,
    "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d "
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
    "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d",
)
_register(
    keeps_channels,
    "relu relu6 leaky_relu elu celu selu gelu silu mish sigmoid tanh hardtanh hardsigmoid hardswish softplus "
    "log_sigmoid hardshrink softshrink threshold exp log log1p sqrt rsqrt abs neg square reciprocal sin cos erf "
    "clamp clamp_min clamp_max pow.Tensor_Scalar rsub.Scalar sign floor ceil round "
    "gt.Scalar ge.Scalar lt.Scalar le.Scalar zeros_like ones_like "
    "upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest3d.vec upsample_linear1d.vec "
    "upsample_bilinear2d.vec upsample_bicubic2d.vec upsample_trilinear3d.vec "
    "_upsample_nearest_exact1d.vec _upsample_nearest_exact2d.vec _upsample_nearest_exact3d.vec",
)
