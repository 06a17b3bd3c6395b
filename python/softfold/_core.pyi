"""Types of softfold._core; help() on each function has the shapes, dtypes, errors and bounds."""

from collections.abc import Sequence
from typing import Any, Literal, SupportsFloat, final

import numpy as np

# An array of NumPy, PyTorch, JAX, CuPy, or anything with DLPack; the result is of the first operand's kind.
Array = Any
ArrayLike = Any
Axis = int | Sequence[int] | None
Empty = Literal["zero", "nan"]

__version__: str
bits_version: int

def softmax(
    x: ArrayLike, axis: Axis = None, *, out: Array | None = None, dtype: Any = None, scale: SupportsFloat = 1.0,
    scales: ArrayLike | None = None, lengths: ArrayLike | None = None, offsets: ArrayLike | None = None,
    mask: ArrayLike | None = None, causal: bool = False, empty: Empty = "zero",
) -> Array: ...
def log_softmax(
    x: ArrayLike, axis: Axis = None, *, out: Array | None = None, dtype: Any = None, scale: SupportsFloat = 1.0,
    scales: ArrayLike | None = None, lengths: ArrayLike | None = None, offsets: ArrayLike | None = None,
    mask: ArrayLike | None = None, causal: bool = False, empty: Empty = "zero",
) -> Array: ...
def logsumexp(
    a: ArrayLike, axis: Axis = None, b: ArrayLike | None = None, keepdims: bool = False, return_sign: bool = False, *,
    out: Array | None = None, dtype: Any = None, scale: SupportsFloat = 1.0, scales: ArrayLike | None = None,
    lengths: ArrayLike | None = None, offsets: ArrayLike | None = None, mask: ArrayLike | None = None,
    causal: bool = False, empty: Empty = "zero",
) -> Any: ...
def state(
    x: ArrayLike, axis: Axis = None, keepdims: bool = False, *, out: Array | None = None, dtype: Any = None,
    scale: SupportsFloat = 1.0, scales: ArrayLike | None = None, lengths: ArrayLike | None = None,
    offsets: ArrayLike | None = None, mask: ArrayLike | None = None, causal: bool = False, empty: Empty = "zero",
) -> Array: ...
def softmax_backward(
    y: Array, dy: Array, axis: Axis = None, *, out: Array | None = None, dtype: Any = None,
    scale: SupportsFloat = 1.0, scales: ArrayLike | None = None, lengths: ArrayLike | None = None,
    offsets: ArrayLike | None = None, mask: ArrayLike | None = None, causal: bool = False, empty: Empty = "zero",
) -> Array: ...
def log_softmax_backward(
    y: Array, dy: Array, axis: Axis = None, *, out: Array | None = None, dtype: Any = None,
    scale: SupportsFloat = 1.0, scales: ArrayLike | None = None, lengths: ArrayLike | None = None,
    offsets: ArrayLike | None = None, mask: ArrayLike | None = None, causal: bool = False, empty: Empty = "zero",
) -> Array: ...
def logsumexp_backward(
    x: Array, states: Array, dlse: Array, axis: Axis = None, *, out: Array | None = None, dtype: Any = None,
    scale: SupportsFloat = 1.0, scales: ArrayLike | None = None, lengths: ArrayLike | None = None,
    offsets: ArrayLike | None = None, mask: ArrayLike | None = None, causal: bool = False, empty: Empty = "zero",
) -> Array: ...
def finish_softmax(
    x: Array, states: Array, axis: Axis = None, *, out: Array | None = None, dtype: Any = None,
    scale: SupportsFloat = 1.0, scales: ArrayLike | None = None, lengths: ArrayLike | None = None,
    offsets: ArrayLike | None = None, mask: ArrayLike | None = None, causal: bool = False, empty: Empty = "zero",
) -> Array: ...
def finish_log_softmax(
    x: Array, states: Array, axis: Axis = None, *, out: Array | None = None, dtype: Any = None,
    scale: SupportsFloat = 1.0, scales: ArrayLike | None = None, lengths: ArrayLike | None = None,
    offsets: ArrayLike | None = None, mask: ArrayLike | None = None, causal: bool = False, empty: Empty = "zero",
) -> Array: ...
def set_num_threads(threads: int) -> None: ...
def get_num_threads() -> int: ...
def attention_into(
    q: Array, k: Array, v: Array, out: Array, lse: Array | None = None, *, state: Array | None = None,
    scale: float | None = None, causal: bool = False, window: tuple[int, int] = (-1, -1), softcap: float = 0.0,
    sink: Array | None = None, bias: Array | None = None, mask: Array | None = None, slopes: Array | None = None,
    lengths: Array | None = None, starts: Array | None = None, index: Array | None = None,
    q_offsets: Array | None = None, kv_offsets: Array | None = None, max_q: int = 0, max_kv: int = 0,
    layout: str = "bhtd", stream: int = 0,
) -> None: ...  # fmt: skip
def cross_entropy_into(
    inputs: tuple[Array, ...], out: Array, axis: int = -1, *, weight: Array | None = None, ignore_index: int = -100,
    reduction: str = "mean", label_smoothing: float = 0.0, z_loss: float = 0.0, log_probability: Array | None = None,
    states: Array | None = None, gradient: Array | None = None, status: Array | None = None,
    scale: SupportsFloat = 1.0, scales: ArrayLike | None = None, lengths: ArrayLike | None = None,
    offsets: ArrayLike | None = None, mask: ArrayLike | None = None, causal: bool = False, empty: Empty = "zero",
    shard_offset: int = 0, shard_size: int = 0, stream: int = 0,
) -> None: ...
def partial_width(n: int, offset: int, size: int, k: int = 0) -> int: ...
def fold_shard_into(
    x: Array, partials: Array, axis: int, offset: int, size: int, *, target: Array | None = None, k: int = 0,
    scale: SupportsFloat = 1.0, scales: ArrayLike | None = None, lengths: ArrayLike | None = None,
    mask: ArrayLike | None = None, stream: int = 0,
) -> None: ...
def join_states_into(partials: Array, states: Array, *, stream: int = 0) -> None: ...
def join_cross_entropy_into(
    partials: Array, target: Array, loss: Array, *, weight: Array | None = None, ignore_index: int = -100,
    reduction: str = "mean", z_loss: float = 0.0, empty: Empty = "zero", log_probability: Array | None = None,
    states: Array | None = None, stream: int = 0,
) -> None: ...
def join_topk_into(
    partials: Array, values: Array, indices: Array, *, sorted: bool = True, empty: Empty = "zero",
    probabilities: Array | None = None, log_probabilities: Array | None = None, lse: Array | None = None,
    stream: int = 0,
) -> None: ...
def sample_shard_into(
    x: Array, partials: Array, tokens: Array, axis: int, offset: int, size: int, *, seed: int | Array = 0,
    draw: int | Array = 0, row_ids: Array | None = None, scale: SupportsFloat = 1.0, scales: ArrayLike | None = None,
    lengths: ArrayLike | None = None, mask: ArrayLike | None = None, stream: int = 0,
) -> None: ...
def linear_cross_entropy_into(
    inputs: tuple[Array, ...], out: Array, *, bias: Array | None = None, softcap: float = 0.0, mode: str = "fast",
    class_weight: Array | None = None, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float = 0.0, z_loss: float = 0.0, dloss: Array | None = None,
    log_probability: Array | None = None, states: Array | None = None, dx: Array | None = None,
    dweight: Array | None = None, dbias: Array | None = None, scale: SupportsFloat = 1.0,
    mask: ArrayLike | None = None, empty: Empty = "zero", stream: int = 0,
) -> None: ...
def entropy_into(
    inputs: tuple[Array, ...], out: Array, axis: int = -1, *, states: Array | None = None,
    gradient: Array | None = None, scale: SupportsFloat = 1.0, scales: ArrayLike | None = None,
    lengths: ArrayLike | None = None, offsets: ArrayLike | None = None, mask: ArrayLike | None = None,
    causal: bool = False, empty: Empty = "zero", stream: int = 0,
) -> None: ...
def kl_divergence_into(
    inputs: tuple[Array, ...], out: Array | None, axis: int = -1, *, p_states: Array | None = None,
    q_states: Array | None = None, p_gradient: Array | None = None, q_gradient: Array | None = None,
    scale: SupportsFloat = 1.0, scales: ArrayLike | None = None, lengths: ArrayLike | None = None,
    offsets: ArrayLike | None = None, mask: ArrayLike | None = None, causal: bool = False, empty: Empty = "zero",
    stream: int = 0,
) -> None: ...
def topk_into(
    x: Array, values: Array, indices: Array, axis: int = -1, *, sorted: bool = True,
    probabilities: Array | None = None, log_probabilities: Array | None = None, lse: Array | None = None,
    scale: SupportsFloat = 1.0, scales: ArrayLike | None = None, lengths: ArrayLike | None = None,
    mask: ArrayLike | None = None, causal: bool = False, empty: Empty = "zero", stream: int = 0,
) -> None: ...
def sample_into(
    logits: Array, tokens: Array, axis: int = -1, *, temperature: float | Array = 1.0, top_k: int | Array = 0,
    top_p: float | Array = 1.0, min_p: float | Array = 0.0, order: str = "min_p_first", bias: Array | None = None,
    bitmask: Array | None = None, seed: int | Array = 0, offset: int | Array = 0, row_ids: Array | None = None,
    of: str = "raw", log_probability: Array | None = None, rank: Array | None = None,
    probabilities: Array | None = None, masked: Array | None = None, top_tokens: Array | None = None,
    top_log_probabilities: Array | None = None, scale: SupportsFloat = 1.0,
    scales: ArrayLike | None = None, lengths: ArrayLike | None = None, mask: ArrayLike | None = None,
    causal: bool = False, stream: int = 0,
) -> None: ...
def use_exchange(type: type) -> bool: ...
def run_into(
    op: str, inputs: tuple[Array, ...], out: Array, axis: Axis = None, *, scale: SupportsFloat = 1.0,
    scales: ArrayLike | None = None, lengths: ArrayLike | None = None, offsets: ArrayLike | None = None,
    mask: ArrayLike | None = None, causal: bool = False, empty: Empty = "zero", keepdims: bool | None = None,
    stream: int = 0,
) -> None: ...
def merge_into(
    op: str, inputs: tuple[Array, ...], outputs: tuple[Array, ...], *, base: Any = "natural",
    statistics: Literal["lse", "max_sum"] = "lse", stream: int = 0,
) -> None: ...
def join(parts: Sequence[Partial]) -> Partial: ...
def xla_handler(platform: str) -> Any: ...
def op_number(name: str) -> int: ...
@final
class Partial:
    @property
    def dtype(self) -> str: ...
    @property
    def scale(self) -> float: ...
    @property
    def offset(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def end(self) -> int: ...
    def state(self) -> np.ndarray: ...
    def logsumexp(self) -> float: ...
    def to_bytes(self) -> bytes: ...
    @staticmethod
    def from_bytes(bytes: bytes) -> Partial: ...
@final
class Stream:
    def __init__(self, dtype: Any = "float32", scale: float = 1.0, offset: int = 0) -> None: ...
    @property
    def dtype(self) -> str: ...
    @property
    def scale(self) -> float: ...
    @property
    def length(self) -> int: ...
    @property
    def end(self) -> int: ...
    def push(self, piece: ArrayLike | float | Partial | Stream) -> None: ...
    def partial(self) -> Partial: ...
    def state(self) -> np.ndarray: ...
    def logsumexp(self) -> float: ...
    def softmax(self, x: Array, out: Array | None = None, *, empty: Empty = "zero") -> Array: ...
    def log_softmax(self, x: Array, out: Array | None = None, *, empty: Empty = "zero") -> Array: ...
