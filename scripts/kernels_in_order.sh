#!/usr/bin/env bash
# Every kernel of src/cuda begins with begin_in_order() (src/cuda/in_order.cuh): one that does not, launched with
# Context::overlap, would read what the kernel before it has not written yet. Attention's, which are never launched so,
# are left out.
set -euo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/.."
mapfile -t sources < <(git ls-files 'src/cuda/*.cu' 'src/cuda/*.cuh' | grep -v /attention)
awk '
  FNR == 1 { open = 0 }
  /__global__/ { open = 1; where = FILENAME ":" FNR; kernels++ }
  open && /;$/ { open = 0; kernels-- }  # declared, not defined
  open && /\{/ {
    first = $0
    while ((first ~ /\{$/ || first ~ /^ *\/\// || first ~ /__shared__/) && (getline first) > 0) {}
    if (first !~ /^ *begin_in_order\(\);/) { print where ": begins with" first; wrong++ }
    open = 0
    checked++
  }
  END {
    if (!kernels || checked != kernels) { print checked " of " kernels " kernels were checked"; wrong++ }
    exit wrong > 0
  }' "${sources[@]}"
