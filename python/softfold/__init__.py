"""softfold: softmax, and everything that is a softmax, as one associative fold, with one answer bit for bit.

    >>> import numpy as np, softfold
    >>> softfold.softmax(np.array([1.0, 2.0, 3.0]))
    array([0.09003057, 0.24472847, 0.66524096])

softmax, log_softmax and logsumexp have SciPy's face (axis=None folds the whole array) and take arrays of NumPy,
PyTorch, JAX, CuPy and anything with DLPack. state, merge and finish reduce a row that lies in pieces. softfold.torch
and softfold.jax are those libraries' own faces. Everything that cannot be done is refused with softfold.Error.
"""

from softfold._core import (
    Partial,
    Stream,
    bits_version,
    finish_log_softmax,
    finish_softmax,
    get_num_threads,
    log_softmax,
    log_softmax_backward,
    logsumexp,
    logsumexp_backward,
    partial_width,
    set_num_threads,
    softmax,
    softmax_backward,
    state,
)
from softfold._core import __version__ as __version__
from softfold._attention import attention
from softfold._errors import DTypeError, Error, StateError, UnsupportedError, UsageError
from softfold._linear import linear_cross_entropy
from softfold._losses import cross_entropy, entropy, kl_divergence
from softfold._states import finish, finish_logsumexp, merge, merge_attention, merge_blocks
from softfold._sample import mask_logits, renormalise, sample
from softfold._shards import (
    cross_entropy_backward,
    fold_shard,
    join_cross_entropy,
    join_states,
    join_topk,
    sample_shard,
)
from softfold._topk import topk

__all__ = [
    "DTypeError", "Error", "StateError", "UnsupportedError", "UsageError",
    "bits_version", "get_num_threads", "set_num_threads",
    "softmax", "log_softmax", "logsumexp", "attention", "cross_entropy", "linear_cross_entropy", "entropy",
    "kl_divergence",
    "topk", "sample", "renormalise", "mask_logits",
    "softmax_backward", "log_softmax_backward", "logsumexp_backward",
    "Partial", "Stream", "state", "merge", "finish",
    "fold_shard", "partial_width", "join_states", "join_cross_entropy", "join_topk", "sample_shard", "cross_entropy_backward",
    "finish_softmax", "finish_log_softmax", "finish_logsumexp", "merge_attention", "merge_blocks",
]  # fmt: skip
