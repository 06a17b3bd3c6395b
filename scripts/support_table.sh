#!/usr/bin/env bash
# shellcheck disable=SC2016  # backquotes of Markdown
# Writes docs/support.md from what plans say: for every operation and dtype the kernel that `softfold explain` names.
#
#   scripts/support_table.sh [BUILD]           (default build/release)
#   scripts/support_table.sh --check [BUILD]   fails if the page is not what would be written
set -euo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/.."

check=false
if [[ ${1:-} == --check ]]; then check=true && shift; fi
softfold=${1:-build/release}/cli/softfold
[[ -x $softfold ]] || { echo "no $softfold: build it first (./run)" >&2 && exit 1; }

dtypes=(float64 float32 float16 bfloat16)
operations=(softmax log_softmax logsumexp state softmax_backward log_softmax_backward logsumexp_backward
  finish_softmax finish_log_softmax finish_logsumexp merge_states merge_attention merge_blocks
  cross_entropy cross_entropy_backward linear_cross_entropy entropy entropy_backward
  kl_divergence kl_divergence_backward topk sample)

# kernel OPERATION SHAPE DTYPE OPTION...
kernel() { "$softfold" explain "$@" 2>/dev/null | sed -n 's/^kernel *//p'; }

# cell OPERATION SHAPE: one kernel where all dtypes have the same.
cell() {
  local dtype name names=()
  for dtype in "${dtypes[@]}"; do
    name=$(kernel "$1" "$2" "$dtype")
    names+=("${name:-refused}")
  done
  if [[ $(printf '%s\n' "${names[@]}" | sort -u | wc -l) == 1 ]]; then
    printf '`%s`' "${names[0]}"
  else
    for i in "${!dtypes[@]}"; do printf '%s%s `%s`' "$([[ $i == 0 ]] || echo ', ')" "${dtypes[i]}" "${names[i]}"; done
  fi
}

page() {
  cat <<'HEAD'
# What runs what

Made by `scripts/support_table.sh` from the plans themselves; `softfold explain OP SHAPE DTYPE` says the same for any
other shape, with the reason against every kernel that was not taken.

On the CPU, every row operation takes float64, float32, float16 and bfloat16, any strides, any axis, zero sizes, and an
output dtype apart from the input's. The kernel is the same for all four dtypes unless a cell says otherwise.

| operation | 4096 rows of 1024 | one row of 64 M |
|---|---|---|
HEAD
  local operation
  for operation in "${operations[@]}"; do
    printf '| `%s` | %s | %s |\n' "$operation" "$(cell "$operation" 4096x1024)" "$(cell "$operation" 1x67108864)"
  done
  cat <<'TAIL'

softmax has three more kernels, `softmax_naive`, `softmax_safe` and `softmax_online`, that only run when asked for: they
are the rungs of [the ladder](ladder.md). The kernels of the GPU are listed in [cuda.md](cuda.md).

The shape of `linear_cross_entropy` is its x's; weight has 128256 classes there.

## Attention

On the CPU, of any D and Dv from 1 to 512, any numbers of heads, queries and keys, and every option of
[attention.md](attention.md) but pages and positions, which are refused by name.

| q, k, v | computed in | 8 heads of 4096 x 128 | one query, 64 K keys |
|---|---|---|---|
TAIL
  local dtype
  for dtype in "${dtypes[@]}"; do
    printf '| %s | %s | `%s` | `%s` |\n' "$dtype" "$([[ $dtype == float64 ]] && echo float64 || echo float32)" \
      "$(kernel attention 1x8x4096x128 "$dtype")" "$(kernel attention 1x8x1x128 "$dtype" --keys 65536)"
  done
  printf '\n'
  cat <<'TAIL'
`attention_naive`, `attention_safe`, `attention_merged`, `attention_online` and `attention_tiled` run when asked for: they
are the rungs of attention's ladder.

## From Python

See [python.md](python.md); `gradient`: differentiable there.

| operation | NumPy, array API | CuPy, CUDA tensors | `softfold.torch` | `softfold.jax` |
|---|---|---|---|---|
| `softmax`, `log_softmax`, `logsumexp` | yes | yes | yes, gradient | yes, gradient |
| `state` | yes | yes | yes | yes |
| `merge`, `finish` | yes | yes | yes | no |
| `merge_attention`, `merge_blocks` | yes | yes | yes, gradient | no |
| `attention` | yes | yes | yes | no |
| `cross_entropy`, `entropy` | yes | yes | yes, gradient | no |
| `kl_divergence` | yes | yes | yes, gradients | no |
| `linear_cross_entropy` | yes | tensors | yes, gradient | no |
| `topk` | yes | yes | yes, gradient of the values | no |
| `sample`, `renormalise`, `mask_logits` | yes | yes | yes | no |
TAIL
}

if $check; then
  diff docs/support.md <(page) || { echo "docs/support.md is not current: run scripts/support_table.sh" >&2 && exit 1; }
else
  page >docs/support.md
fi
