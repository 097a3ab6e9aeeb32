"""Which ops `torch.autocast("tpu")` runs in which precision: torch's own lists for CUDA.

The lists are those of ATen/autocast_mode.h. Casts are ordinary ops, recorded by autograd; torch's
cache of cast weights is left out, since fused and compiled programs cast a weight once anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from tpu_compile.device import compat

aten = torch.ops.aten

_LOWER_PRECISION = """
    _convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d
    conv_transpose2d.input conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum
    mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot
    _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
    scaled_dot_product_attention
"""
_FLOAT32 = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
    pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm
    frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss
    cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss
    huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
    triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm
    logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
    _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d
    upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
    _upsample_bicubic2d_aa
"""
# Accumulate and return float32, unless the caller names a dtype.
_FLOAT32_RESULT = """
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm
    linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList
"""
_WIDEST = """
    addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
"""
# Ops whose overload with a dtype is another one.
_WITH_DTYPE: dict[OpOverload, Callable[..., Any]] = {
    aten.norm.Scalar: lambda self, p=2: aten.norm.ScalarOpt_dtype(self, p, dtype=torch.float32),
    aten.norm.ScalarOpt_dim: lambda self, p, dim, keepdim=False: aten.norm.ScalarOpt_dim_dtype(
        self, p, dim, keepdim, dtype=torch.float32
    ),
}


def kernels() -> Iterator[tuple[OpOverload, Callable[..., Any]]]:
    """Yield each op that autocast concerns with its kernel."""
    for names, make in (
        (_LOWER_PRECISION, _lower_precision),
        (_FLOAT32, _float32),
        (_FLOAT32_RESULT, _float32_result),
        (_WIDEST, _widest),
    ):
        for name in names.split():
            packet, _, overload = name.partition(".")
            op = getattr(getattr(aten, packet), overload or "default")
            yield op, make(op)
    for op, call in _WITH_DTYPE.items():
        yield op, _redirected(op, call)
    yield aten.binary_cross_entropy.default, _refuse_bce


def _is_eligible(item: Any) -> bool:
    return (
        isinstance(item, torch.Tensor)
        and item.device.type == compat.NAME
        and item.is_floating_point()
        and item.dtype is not torch.float64
    )


def _cast_all(dtype: torch.dtype, args: Any, kwargs: Any) -> Any:
    return pytree.tree_map(
        lambda item: item.to(dtype) if _is_eligible(item) else item, (args, kwargs)
    )


def _lower_precision(op: OpOverload) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with compat.no_autocast():
            args, kwargs = _cast_all(torch.get_autocast_dtype(compat.NAME), args, kwargs)
            return op(*args, **kwargs)

    return kernel


def _float32(op: OpOverload) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with compat.no_autocast():
            args, kwargs = _cast_all(torch.float32, args, kwargs)
            return op(*args, **kwargs)

    return kernel


def _float32_result(op: OpOverload) -> Callable[..., Any]:
    positions = {a.name: index for index, a in enumerate(op._schema.arguments)}

    def kernel(*args: Any, **kwargs: Any) -> Any:
        position = positions["dtype"]
        given = args[position] if position < len(args) else kwargs.get("dtype")
        with compat.no_autocast():
            if given is None and _is_eligible(args[0]):
                if position < len(args):
                    args = (*args[:position], torch.float32, *args[position + 1 :])
                else:
                    kwargs["dtype"] = torch.float32
            return op(*args, **kwargs)

    return kernel


def _widest(op: OpOverload) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype(compat.NAME)
        for item in pytree.tree_leaves((args, kwargs)):
            if _is_eligible(item):
                dtype = torch.promote_types(dtype, item.dtype)
        with compat.no_autocast():
            args, kwargs = _cast_all(dtype, args, kwargs)
            return op(*args, **kwargs)

    return kernel


def _redirected(op: OpOverload, call: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with compat.no_autocast():
            return (call if _is_eligible(args[0]) else op)(*args, **kwargs)

    return kernel


def _refuse_bce(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: the "
        "logarithm of a low-precision probability overflows. Use binary_cross_entropy_with_logits "
        "or BCEWithLogitsLoss, or leave the autocast region."
    )
