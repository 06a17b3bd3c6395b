#!/usr/bin/env bash
# Every kernel of src/cuda begins with begin_in_order() (src/cuda/in_order.cuh): one that does not, launched with
# Context::overlap, would read what the kernel before it has not written yet. Attention's, which are never launched so,
# are left out. begin_first() and begin_before_wait() are its other forms; the latter wants a wait_for_before(), and a
# begin_first() in its file, or that it waits at once unless it is told that it need not (`early`). Instances of a
# kernel that begin_first() later leave it out by `if constexpr`.
set -euo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/.."
mapfile -t sources < <(git ls-files 'src/cuda/*.cu' 'src/cuda/*.cuh' | grep -v /attention)
awk '
  function end_of_file() {
    if (waits) { print file ": kernels that begin before they wait, and waits, differ by " waits; wrong++ }
    if (early > told && !firsts) { print file ": a kernel begins before it waits, and none by begin_first()"; wrong++ }
    if (late && !firsts) { print file ": a kernel leaves out begin_in_order(), and none has begin_first()"; wrong++ }
    waits = early = told = late = firsts = 0
  }
  FNR == 1 { end_of_file(); open = 0; file = FILENAME }
  /^ *wait_for_before\(\);/ { waits++ }
  /^ *if \(!early\) wait_for_before\(\);/ { told++ }
  /^ *begin_first\(\);/ { firsts++ }
  /__global__/ { open = 1; where = FILENAME ":" FNR; kernels++ }
  open && /;$/ { open = 0; kernels-- }  # declared, not defined
  open && /\{/ {
    first = $0
    while ((first ~ /\{$/ || first ~ /^ *\/\// || first ~ /__shared__/) && (getline first) > 0) {}
    if (first ~ /^ *begin_before_wait\(\);/) { waits--; early++ }
    if (sub(/^ *if constexpr \(.*\) begin_in_order/, "begin_in_order", first)) late++
    if (first ~ /^ *begin_first\(\);/) firsts++
    if (first !~ /^ *begin_(in_order|first|before_wait)\(\);/) { print where ": begins with" first; wrong++ }
    open = 0
    checked++
  }
  END {
    if (!kernels || checked != kernels) { print checked " of " kernels " kernels were checked"; wrong++ }
    end_of_file()
    exit wrong > 0
  }' "${sources[@]}"
