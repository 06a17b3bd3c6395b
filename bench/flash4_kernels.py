#!/usr/bin/env python3
"""Compiles FlashAttention-4's forward kernels for Hopper ahead of time, on a machine that needs no GPU.

usage: flash4_kernels.py OUT

Needs flash-attn-4 with nvidia-cutlass-dsl and its cu13 libraries. flash-attn-4 compiles under torch's fake tensors and
keeps what it compiled; this links each of KERNELS into a library of its own in OUT, beside the runtime that they call,
and writes the package's name and version to OUT/version. `gpu_attention.py --flash4 OUT` calls them through tvm_ffi,
which must be whole there: both of its libraries, libtvm_ffi.so and libtvm_ffi_testing.so, and typing_extensions 4.13.
"""
import argparse
import importlib.metadata
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple


class Kernel(NamedTuple):
    """What is fixed when a kernel is compiled."""
    size: int
    value_size: int
    group: int = 1  # query heads that share a head of keys
    dtype: str = "bfloat16"
    causal: bool = False
    window: bool = False
    sink: bool = False
    packed: bool = False
    softcap: float = 0.

    def file(self):
        given = [name for name in ("causal", "window", "sink", "packed") if getattr(self, name)]
        if self.softcap:
            given.append(f"softcap{self.softcap:g}")
        return "_".join([self.dtype, f"{self.size}x{self.value_size}", f"group{self.group}", *given]) + ".so"


KERNELS = [  # those that gpu_attention.py asks for
    *(Kernel(size, size, causal=causal) for size in (64, 128, 256) for causal in (False, True)),
    *(Kernel(128, 128, dtype="float16", causal=causal) for causal in (False, True)),
    *(Kernel(128, 128, packed=True, causal=causal) for causal in (False, True)),
    Kernel(128, 128, group=4, causal=True),
    Kernel(192, 128, causal=True),
    Kernel(128, 128, causal=True, window=True),
    Kernel(128, 128, causal=True, softcap=30.),
    Kernel(128, 128, causal=True, sink=True),
]


def pretend_a_gpu(torch):
    """What flash-attn-4 asks of the device when nothing is run."""
    import torch._subclasses.fake_tensor as fake
    fake.init_gpu_context = lambda *_: None
    torch.cuda.current_device = lambda: 0
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    return fake.FakeTensorMode()


def ask_for(flash4, torch, kernel):
    """A call of flash-attn-4 that makes it compile the kernel; lengths and the number of heads are free later."""
    shape = (1024,) if kernel.packed else (2, 512)

    def empty(*rest, dtype=getattr(torch, kernel.dtype)):
        return torch.empty(*rest, dtype=dtype, device="cuda")

    operands = [empty(*shape, heads, size) for heads, size in
                ((8 * kernel.group, kernel.size), (8, kernel.size), (8, kernel.value_size))]
    given = {"causal": kernel.causal, "softcap": kernel.softcap}
    if kernel.window:
        given["window_size"] = (256, 0)
    if kernel.sink:
        given["learnable_sink"] = empty(8 * kernel.group, dtype=torch.float32)
    if kernel.packed:
        offsets = empty(3, dtype=torch.int32)
        flash4.flash_attn_varlen_func(*operands, cu_seqlens_q=offsets, cu_seqlens_k=offsets, max_seqlen_q=512,
                                      max_seqlen_k=512, **given)
    else:
        flash4.flash_attn_func(*operands, **given)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    cache = Path(tempfile.mkdtemp())
    os.environ.update(FLASH_ATTENTION_ARCH="sm_90a", CUTE_DSL_ARCH="sm_90a", FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED="1",
                      FLASH_ATTENTION_CUTE_DSL_CACHE_DIR=str(cache))
    import torch
    mode = pretend_a_gpu(torch)
    import cutlass.cute as cute
    import flash_attn.cute.interface as flash4
    import tvm_ffi
    flash4.get_num_sms_for_selection = lambda *_, **__: 132
    runtime = [Path(p) for p in cute.runtime.find_runtime_libraries(enable_tvm_ffi=False)]
    for path in runtime:
        shutil.copy(path, args.out)
    ffi = Path(tvm_ffi.libinfo.find_libtvm_ffi())
    for kernel in KERNELS:
        before = set(cache.rglob("*.o"))
        with mode:
            ask_for(flash4, torch, kernel)
        (compiled,) = set(cache.rglob("*.o")) - before
        subprocess.run(["g++", "-shared", "-o", args.out / kernel.file(), compiled, *runtime, ffi, "-Wl,-rpath,$ORIGIN"],
                       check=True)
        print(kernel.file(), flush=True)
    shutil.rmtree(cache)
    (args.out / "version").write_text(f"flash-attn-4 {importlib.metadata.version('flash-attn-4')}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
