"""The ops that an exported program may call without trust.

Many ops of torch trust their caller: they read memory before it is written, or beyond its end, when shapes or indices do not
fit. What Python functions call is checked by those functions; in a file, nothing did. So an op is allowed by name: those that
torch.export writes for ordinary models, tried with arguments of all shapes. Some of them need a look at what they are given
each time that they are called (`program_calls`).
"""

import re
from typing import Any

import torch

from tensorferry.serve.runtimes.torch_compat import OpOverload
from tensorferry.serve.runtimes.trust import Untrusted

_aten = torch.ops.aten
_NAMES = """
__and__ __lshift__ __or__ __rshift__ __xor__ _adaptive_avg_pool2d _adaptive_avg_pool3d _assert_async _assert_scalar
_assert_tensor_metadata _conj _embedding_bag _log_softmax _native_batch_norm_legit_no_training _softmax _to_copy _unique2
_unsafe_index _unsafe_view _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d
_upsample_nearest_exact3d _weight_norm abs absolute acos acosh adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
adaptive_max_pool1d adaptive_max_pool2d add addbmm addcdiv addcmul addmm addmv addr adjoint affine_grid_generator alias
alias_copy all allclose alpha_dropout amax amin aminmax angle any arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh
argmax argmin argsort argwhere asin asinh atan atan2 atanh atleast_1d atleast_2d atleast_3d avg_pool1d avg_pool2d avg_pool3d
baddbmm bartlett_window batch_norm bernoulli bilinear binary_cross_entropy binary_cross_entropy_with_logits bincount bitwise_and
bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor blackman_window block_diag bmm broadcast_tensors
broadcast_to bucketize cartesian_prod cat cdist ceil celu chain_matmul channel_shuffle cholesky cholesky_inverse cholesky_solve
chunk clamp clamp_max clamp_min clip clone col2im column_stack combinations complex concat concatenate conj conj_physical
constant_pad_nd contiguous conv1d conv2d conv3d conv_depthwise3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d
convolution copy copysign corrcoef cos cosh cosine_embedding_loss cosine_similarity count_nonzero cov cross cross_entropy_loss
cummax cummin cumprod cumsum cumulative_trapezoid deg2rad detach detach_copy diag diag_embed diagflat diagonal diagonal_copy
diagonal_scatter diff digamma dist div divide dot dropout dsplit dstack einsum elu embedding embedding_bag eq equal erf erfc
erfinv exp exp2 expand expand_as expand_copy expm1 exponential eye fake_quantize_per_channel_affine
fake_quantize_per_channel_affine_cachemask fake_quantize_per_tensor_affine fake_quantize_per_tensor_affine_cachemask
feature_alpha_dropout feature_dropout fft_fft fft_fft2 fft_fftfreq fft_fftn fft_fftshift fft_hfft fft_ifft fft_ifft2 fft_ifftn
fft_ifftshift fft_ihfft fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftfreq fft_rfftn fill fix flatten flip fliplr
flipud float_power floor floor_divide fmax fmin fmod frac frobenius_norm full full_like gather gcd ge gelu ger glu greater
greater_equal grid_sampler grid_sampler_2d grid_sampler_3d group_norm gru gru_cell gt hamming_window hann_window hardshrink
hardsigmoid hardswish hardtanh heaviside hinge_embedding_loss histc hsplit hstack huber_loss hypot i0 igamma igammac im2col imag
index index_add index_copy index_fill index_put index_reduce index_select inner instance_norm inverse is_nonzero isclose
isfinite isin isinf isnan isneginf isposinf isreal istft kaiser_window kl_div kron kthvalue l1_loss layer_norm lcm ldexp le
leaky_relu lerp less less_equal lgamma lift_fresh lift_fresh_copy linalg_cholesky linalg_cholesky_ex linalg_cond linalg_cross
linalg_det linalg_diagonal linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_householder_product linalg_inv
linalg_inv_ex linalg_lu linalg_lu_factor linalg_lu_solve linalg_matmul linalg_matrix_exp linalg_matrix_norm linalg_matrix_power
linalg_matrix_rank linalg_multi_dot linalg_norm linalg_pinv linalg_qr linalg_slogdet linalg_solve linalg_solve_ex
linalg_solve_triangular linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve linalg_vander linalg_vecdot
linalg_vector_norm linear linspace log log10 log1p log2 log_normal log_sigmoid log_softmax logaddexp logaddexp2 logcumsumexp
logdet logical_and logical_not logical_or logical_xor logit logspace logsumexp lstm lstm_cell lt mH mT margin_ranking_loss
masked_fill masked_scatter masked_select matmul matrix_H matrix_exp matrix_power max max_pool1d max_pool1d_with_indices
max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices max_unpool2d max_unpool3d maximum mean median meshgrid min
minimum mish mm mode movedim mse_loss msort mul multinomial multiply mv mvlgamma nan_to_num nanmean nanmedian nanquantile nansum
narrow narrow_copy native_dropout native_group_norm native_layer_norm ne neg negative new_full new_ones new_zeros nextafter
nll_loss nll_loss2d nll_loss_nd nonzero nonzero_numpy nonzero_static norm normal normal_functional not_equal nuclear_norm
numpy_T one_hot ones ones_like orgqr outer pad pairwise_distance pdist permute permute_copy pixel_shuffle pixel_unshuffle
poisson_nll_loss polar polygamma positive pow prelu prod put quantile rad2deg rand rand_like randint randint_like randn
randn_like random randperm ravel real reciprocal reflection_pad1d reflection_pad2d reflection_pad3d relu relu6 remainder renorm
repeat repeat_interleave replication_pad1d replication_pad2d replication_pad3d reshape reshape_as resolve_conj resolve_neg
rms_norm rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell roll rot90 round row_stack rrelu rsqrt rsub scalar_tensor
scaled_dot_product_attention scatter scatter_add scatter_reduce searchsorted select select_copy select_scatter selu sgn sigmoid
sign signbit silu sin sinc sinh slice slice_copy slice_scatter slogdet smooth_l1_loss soft_margin_loss softmax softplus
softshrink sort special_bessel_j0 special_bessel_j1 special_digamma special_entr special_erf special_erfc special_erfcx
special_erfinv special_exp2 special_expit special_expm1 special_gammainc special_gammaincc special_gammaln special_i0
special_i0e special_i1 special_i1e special_log1p special_log_ndtr special_log_softmax special_logit special_logsumexp
special_multigammaln special_ndtr special_ndtri special_polygamma special_psi special_round special_sinc special_softmax
special_xlog1py special_xlogy special_zeta split split_copy split_with_sizes sqrt square squeeze squeeze_copy stack std std_mean
stft sub subtract sum sum_to_size svd swapaxes swapdims sym_constrain_range sym_constrain_range_for_size sym_numel sym_size
sym_storage_offset sym_stride t t_copy take take_along_dim tan tanh tensor_split tensordot threshold tile to topk trace
transpose transpose_copy trapezoid trapz triangular_solve tril tril_indices triplet_margin_loss triu triu_indices true_divide
trunc type_as unbind unflatten unfold unfold_copy uniform unique_consecutive unique_dim unsqueeze unsqueeze_copy
upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d
upsample_trilinear3d vander var var_mean vdot view view_as view_as_complex view_as_real vsplit vstack where xlogy zero zeros
zeros_like
"""
_ALLOWED = frozenset(_NAMES.split())
_PLAIN_TARGETS = frozenset(
    f"{module}.{name}"
    for module, names in {
        "_operator": "add and_ eq floordiv ge getitem gt le lshift lt mod mul ne neg or_ pos pow rshift sub truediv",
        "math": "ceil floor trunc",
        "torch": "sym_float sym_int sym_ite sym_max sym_min sym_not sym_sqrt sym_sum",
        "torch.ops.higher_order": "cond map_impl while_loop wrap_with_autocast wrap_with_set_grad_enabled",
    }.items()
    for name in names.split()
)
_OPERATOR = re.compile(r"torch\.ops\.aten\.(\w+)\.(\w+)")
_LEFT_OUT = frozenset(("lstm.data", "gru.data", "rnn_relu.data", "rnn_tanh.data", "view.dtype"))
_CHOICES = {"ScalarType": torch.dtype, "Layout": torch.layout, "MemoryFormat": torch.memory_format}


def vet_target(text: str) -> str:
    """What a node calls, if it is known to compute and nothing else; else raises Untrusted."""
    found = _OPERATOR.fullmatch(text)
    if found is None:
        if text not in _PLAIN_TARGETS:
            raise Untrusted(f"a call of {text[:80]!r}")
        return text
    name, overload = found.groups()
    operator = getattr(getattr(_aten, name, None), overload, None)
    if not isinstance(operator, OpOverload):
        raise Untrusted(f"a call of {text[:80]!r}, which this torch does not have")
    if not _is_allowed(operator, name):
        raise Untrusted(f"a call of {text[:80]!r}, which is not among the ops that are known to be safe")
    return text


def vet_loaded(program: Any) -> None:
    """Raise Untrusted for values that an op would take as they are, and that nothing else has looked at."""
    for name, value in (program.state_dict | program.constants).items():
        if isinstance(value, torch.Tensor):
            _vet_tensor(name, value)
    for graph in program.graph_module.modules():
        for node in graph.graph.nodes if isinstance(graph, torch.fx.GraphModule) else ():
            if isinstance(node.target, OpOverload):
                arguments = node.target._schema.arguments
                _vet_arguments(node, [*zip(arguments, node.args, strict=False), *_with_names(arguments, node.kwargs)])


def _is_allowed(operator: OpOverload, name: str) -> bool:
    """Whether a program may call an overload of the op `name`, such as `add_` (which may be in place)."""
    schema = operator._schema
    is_listed = name in _ALLOWED or (name.endswith("_") and name[:-1] in _ALLOWED)
    # what TorchScript calls takes numbers for types as well
    is_left_out = f"{name}.{schema.overload_name}" in _LEFT_OUT or schema.overload_name.startswith("prim_")
    # of plain numbers, only what says something of sizes; others belong to TorchScript, and may divide by zero
    has_tensors = name.startswith(("_assert_", "sym_")) or any(
        "Tensor" in str(value.type) for value in (*schema.arguments, *schema.returns)
    )
    return is_listed and has_tensors and not is_left_out and not any(argument.is_out for argument in schema.arguments)


def _vet_tensor(name: str, value: torch.Tensor) -> None:
    if value.layout != torch.strided or value.is_quantized:
        raise Untrusted(f"a tensor that is not dense ('{name}')")
    # such a value is more than one where it is counted, and one where it is used
    if value.dtype == torch.bool and bool((value.contiguous().view(torch.uint8) > 1).any()):
        raise Untrusted(f"a tensor whose values are neither true nor false ('{name}')")


def _with_names(arguments: Any, given: dict[str, Any]) -> list[tuple[Any, Any]]:
    return [(argument, given[argument.name]) for argument in arguments if argument.name in given]


def _vet_arguments(node: Any, given: list[tuple[Any, Any]]) -> None:
    for argument, value in given:
        kind = next((kind for word, kind in _CHOICES.items() if word in str(argument.real_type)), None)
        # torch also takes a number for each of them, and uses it to look into tables
        if kind is not None and value is not None and not isinstance(value, kind):
            raise Untrusted(f"a number for the {argument.name} of {node.target}")
        if kind is torch.layout and value not in (None, torch.strided):
            raise Untrusted(f"a tensor that is not dense, made by {node.target}")
