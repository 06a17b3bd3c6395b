"""Attention on one GPU beside its peers in one run: cuDNN and FlashAttention-2 of torch, FlashAttention-3 (fa3-fwd),
FlashAttention-4 (flash-attn-4, kernels that flash4_kernels.py compiled).

Every point is checked before it is timed: against float64 on some rows, and its own repeats. Then all candidates are
captured in CUDA graphs, replayed in turn, timed with events; medians. Layout (B, T, H, D). FLOPs are 2 (D + Dv) a visible
pair of query and key. Records follow DESIGN section 5 (shape: B, H, Hkv, T, S, D, Dv).

    python3 bench/gpu_attention.py --library build/src/libsoftfold.so --out bench/results/h200/attention.jsonl
    python3 bench/gpu_attention.py --library build/src/libsoftfold.so --errors --out bench/results/h200/attention_errors.jsonl
"""
import argparse
import ctypes as C
import json
import math
import os
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, __file__.rsplit("/", 1)[0])
from flash4_kernels import Kernel  # noqa: E402
from gpu_records import driver  # noqa: E402
from gpu_plan import Softfold  # noqa: E402
from gpu_softmax import time_together  # noqa: E402

try:
    import fa3_fwd_interface as fa3
except ImportError:
    fa3 = None


class Options(C.Structure):
    TENSORS = ("sink", "bias", "mask", "slopes", "kv_lengths", "kv_starts", "kv_index", "q_offsets", "kv_offsets",
               "page_table", "q_positions", "kv_positions", "lse", "state")
    _fields_ = ([("struct_size", C.c_size_t), ("scale", C.c_double), ("window_left", C.c_int64),
                 ("window_right", C.c_int64), ("max_q", C.c_int64), ("max_kv", C.c_int64)]
                + [(name, C.c_void_p) for name in TENSORS]
                + [("softcap", C.c_float), ("causal", C.c_int32), ("layout", C.c_int32), ("rung", C.c_int32)])


class MergeOptions(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("base", C.c_int32), ("statistics", C.c_int32)]


MERGE_ATTENTION = 11


class Attention(Softfold):
    def attention(self, q, k, v, out, stream, **given):
        """A call on tensors of layout (B, T, H, D) or packed (total, H, D); options by their C names."""
        o = Options()
        self.lib.softfold_attention_options_init(C.byref(o))
        o.layout = 1
        keep = []
        for name, value in given.items():
            if name in Options.TENSORS:
                self.view(o, name, value, keep)
            else:
                setattr(o, name, value)
        return self.bound(self.lib.softfold_plan_attention, [], [q, k, v], [out], o, stream, keep)

    def merge(self, parts, merged, stream):
        """parts: out, lse, out, lse, ...; merged: out, lse."""
        o = MergeOptions()
        self.lib.softfold_merge_options_init(C.byref(o))
        return self.bound(self.lib.softfold_plan_merge, [MERGE_ATTENTION], parts, merged, o, stream, [])


def visible(T, S, causal, left, right):
    """How many (query, key) pairs of a sequence take part."""
    i = torch.arange(T, dtype=torch.int64) + S - T
    low = (i - left).clamp(0, S) if left >= 0 else torch.zeros_like(i)
    right = 0 if causal else right
    high = (i + right + 1).clamp(0, S) if right >= 0 else torch.full_like(i, S)
    return int((high - low).clamp(min=0).sum())


def reference_rows(q, k, v, rows, causal, left, softcap, sink):
    """Rows of the first sequence and head in float64."""
    T, S = q.shape[1], k.shape[1]
    s = q[0, rows, 0].double() @ k[0, :, 0].double().T / math.sqrt(q.shape[-1])
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    at, j = rows[:, None] + S - T, torch.arange(S, device=s.device)[None]
    if causal:
        s.masked_fill_(j > at, -torch.inf)
    if left >= 0:
        s.masked_fill_(j < at - left, -torch.inf)
    if sink is None:
        return torch.softmax(s, -1) @ v[0, :, 0].double()
    s = torch.cat([s, sink[0].double().expand(len(rows), 1)], 1)
    return torch.softmax(s, -1)[:, :-1] @ v[0, :, 0].double()


class Flash4:
    """flash-attn-4's forward kernels for sm_90a as flash4_kernels.py left them."""

    def __init__(self, folder):
        self.folder, self.kernels, self.version = folder, {}, None
        if folder:
            import tvm_ffi
            self.load = tvm_ffi.load_module
            self.version = open(f"{folder}/version", encoding="utf-8").read().strip()

    def call(self, q, k, v, causal, left=-1, softcap=0., sink=None, offsets=None):
        """A call that gives its result, or None where no kernel is there for it."""
        dtype = str(q.dtype).split(".")[-1]
        file = Kernel(q.shape[-1], v.shape[-1], q.shape[-2] // k.shape[-2], dtype, bool(causal), left >= 0, sink is not None,
                      offsets is not None, softcap).file()
        if not self.folder or not os.path.exists(f"{self.folder}/{file}"):
            return None
        if file not in self.kernels:
            self.kernels[file] = self.load(f"{self.folder}/{file}")["func"]
        kernel, out = self.kernels[file], torch.empty(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
        window = (left, 0) if left >= 0 else (None, None)

        def run():
            kernel(q, k, v, out, None, 1 / math.sqrt(q.shape[-1]), offsets, offsets, None, None, None, *window, sink, None,
                   (None, None), None, None)
            return out
        return run


class Bench:
    def __init__(self, args):
        self.softfold, self.args, self.stream = Attention(args.library), args, torch.cuda.Stream()
        self.out = open(args.out, "a" if args.append else "w") if args.out else None
        self.common = {"device": torch.cuda.get_device_name(), "driver": driver(), "commit": args.commit,
                       "date": time.strftime("%Y-%m-%d")}
        self.shares, self.flash4 = {}, Flash4(args.flash4)

    def peers(self, q, k, v, causal, left, softcap, sink):
        heads_first = [t.transpose(1, 2) for t in (q, k, v)]
        grouped = q.shape[2] != k.shape[2]

        def sdpa(backend):
            def call():
                with sdpa_kernel(backend):
                    return F.scaled_dot_product_attention(*heads_first, is_causal=causal, enable_gqa=grouped)
            return call
        result = {}
        if left < 0 and not softcap and sink is None:
            result[f"cuDNN of torch {torch.__version__}"] = sdpa(SDPBackend.CUDNN_ATTENTION)
            if self.args.flash2:
                result[f"FlashAttention-2 of torch {torch.__version__}"] = sdpa(SDPBackend.FLASH_ATTENTION)
        if fa3 is not None and sink is None:
            window = (left, 0 if causal else -1) if left >= 0 else (-1, -1)
            result["fa3-fwd 0.0.3"] = lambda: fa3.flash_attn_func(q, k, v, causal=causal, window_size=window,
                                                                   softcap=softcap)
        if (call := self.flash4.call(q, k, v, causal, left, softcap, sink)) is not None:
            result[self.flash4.version] = call
        return result

    def record(self, case, dtype, shape, flops, bytes_moved, times, group):
        name = str(dtype).split(".")[-1]
        line = f"{name:9s} {'x'.join(map(str, shape)):>28s} {case:14s}"
        best = max((flops / ms for who, ms in times.items() if not who.startswith("softfold") and not isinstance(ms, str)),
                   default=None)
        for who, ms in times.items():
            entry = {"op": "attention", "dtype": name, "shape": shape, "case": case, "who": who, "ms": None,
                     "bytes": bytes_moved, "flops": flops, "copy_ms": None, **self.common}
            if isinstance(ms, str):
                entry["why"] = ms
            else:
                entry["ms"] = ms
                line += f"  {who.split(' ')[0]} {flops / ms * 1e-9:.0f}"
                if who.startswith("softfold") and best:
                    line += f" ({flops / ms / best:.2f})"
                    self.shares.setdefault(group, []).append(flops / ms / best)
            if self.out:
                self.out.write(json.dumps(entry) + "\n")
        print(line, flush=True)

    def point(self, B, H, Hkv, T, S, D, Dv=None, causal=False, left=-1, softcap=0., sink=False, dtype=torch.bfloat16,
              case=None, group=None):
        Dv = Dv or D
        q = torch.randn(B, T, H, D, device="cuda", dtype=dtype)
        k, v = (torch.randn(B, S, Hkv, d, device="cuda", dtype=dtype) for d in (D, Dv))
        out = torch.full((B, T, H, Dv), 7., device="cuda", dtype=dtype)
        sinks = torch.randn(H, device="cuda") if sink else None
        given = {"causal": int(causal), "window_left": left, "softcap": softcap}
        if sink:
            given["sink"] = sinks
        run = self.softfold.attention(q, k, v, out, self.stream, **given)
        torch.cuda.synchronize()
        run()
        torch.cuda.synchronize()
        first = out.clone()
        rows = torch.randperm(T, device="cuda")[:64]
        right = reference_rows(q, k, v, rows, causal, left, softcap, sinks)
        error = (out[0, rows, 0].double() - right).norm() / right.norm()
        assert error < (4e-3 if dtype == torch.bfloat16 else 5e-4), (case, float(error))
        peers = self.peers(q, k, v, causal, left, softcap, sinks)
        for who, call in peers.items():
            if who == self.flash4.version:  # its kernels are called directly: are they called rightly?
                error = (call()[0, rows, 0].double() - right).norm() / right.norm()
                assert error < (4e-3 if dtype == torch.bfloat16 else 5e-4), (who, case, float(error))
        candidates = {f"softfold:{run.kernel}": run, **peers}
        times = time_together(candidates, self.stream, self.args.seconds)
        assert torch.equal(out, first), "a repeat differs"
        flops = 2 * (D + Dv) * B * H * visible(T, S, causal, left, -1)
        bytes_moved = (q.numel() + k.numel() + v.numel() + out.numel()) * q.element_size()
        self.record(case or ("causal" if causal else "full"), dtype, [B, H, Hkv, T, S, D, Dv], flops, bytes_moved, times,
                    group or f"D={D} {'causal' if causal else 'full'}")

    def error(self, T, S, D, causal, dtype):
        """Errors against float64 beside those of torch's backends in the same precision. Ends the run where softfold's
        root mean square error is more than twice the least of theirs; theirs, where they are exact as for a single key,
        counts as what rounding a result makes."""
        q, k, v = (torch.randn(2, n, 4, D, device="cuda", dtype=dtype) for n in (T, S, S))
        heads_first = [t.transpose(1, 2) for t in (q, k, v)]
        seen = torch.ones(T, S, dtype=torch.bool, device="cuda")
        if causal:
            seen.tril_(S - T)
        rows = seen.any(1)  # of one that sees nothing torch makes NaN
        scores = heads_first[0].double() @ heads_first[1].double().transpose(2, 3) / math.sqrt(D)
        right = (torch.softmax(scores.masked_fill(~seen, -torch.inf), -1) @ heads_first[2].double())[:, :, rows]
        kernels, results = set(), {}
        for state in (False, True):  # only the portable kernel gives a state
            out = torch.empty_like(q)
            given = {"state": torch.empty(2, 4, T, D + 2, device="cuda")} if state else {}
            run = self.softfold.attention(q, k, v, out, self.stream, causal=int(causal), **given)
            torch.cuda.synchronize()
            run()
            torch.cuda.synchronize()
            results[f"softfold:{run.kernel}"] = out.transpose(1, 2)
            kernels.add(run.kernel)
        for name in ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"):
            try:
                with sdpa_kernel(getattr(SDPBackend, name)):
                    results[f"torch {torch.__version__} {name}"] = F.scaled_dot_product_attention(
                        *heads_first, attn_mask=seen if causal else None)
            except RuntimeError:
                continue  # it does not take this shape or mask
        errors = {who: (x[:, :, rows].double() - right) for who, x in results.items()}
        rms = {who: e.square().mean().sqrt().item() for who, e in errors.items()}
        name = str(dtype).split(".")[-1]
        for who, e in errors.items():
            if self.out:
                self.out.write(json.dumps({
                    "op": "attention", "dtype": name, "shape": [2, 4, 4, T, S, D, D],
                    "case": f"error {'causal' if causal else 'full'}", "who": who, "ms": None,
                    "rms_error": float(f"{rms[who]:.3g}"), "max_error": float(f"{e.abs().max().item():.3g}"),
                    **self.common}) + "\n")
        ours = max(x for who, x in rms.items() if who.startswith("softfold"))
        least = min(x for who, x in rms.items() if not who.startswith("softfold"))
        rounding = torch.finfo(dtype).eps / 5 * right.square().mean().sqrt().item()
        print(f"{name} {T}x{S} D={D} {'causal' if causal else 'full'}: rms error {ours:.2e} of {', '.join(kernels)}, "
              f"{ours / max(least, rounding):.2f} times torch's least of {least:.2e}", flush=True)
        assert ours <= 2 * max(least, rounding), rms

    def packed(self, lengths, H, D, causal):
        total, longest = sum(lengths), max(lengths)
        q, k, v = (torch.randn(total, H, D, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        out = torch.empty_like(q)
        offsets = torch.tensor([0] + lengths, device="cuda").cumsum(0).to(torch.int32)
        run = self.softfold.attention(q, k, v, out, self.stream, q_offsets=offsets, kv_offsets=offsets, max_q=longest,
                                 max_kv=longest, causal=int(causal))
        candidates = {f"softfold:{run.kernel}": run}
        if fa3 is not None:
            candidates["fa3-fwd 0.0.3"] = lambda: fa3.flash_attn_varlen_func(q, k, v, offsets, offsets, longest, longest,
                                                                            causal=causal)
        if (call := self.flash4.call(q, k, v, causal, offsets=offsets)) is not None:
            torch.cuda.synchronize()
            run()
            torch.cuda.synchronize()
            error = (call().double() - out.double()).norm() / out.double().norm()
            assert error < 6e-3, float(error)
            candidates[self.flash4.version] = call
        times = time_together(candidates, self.stream, self.args.seconds)
        self.record(f"packed Zipf {'causal' if causal else 'full'}", torch.bfloat16,
                    [len(lengths), H, H, longest, longest, D, D],
                    4 * D * H * sum(visible(n, n, causal, -1, -1) for n in lengths), 8 * q.numel(), times, "packed")

    def merge(self, parts, rows, heads, D, dtype=torch.bfloat16):
        """merge_attention beside a copy of as many bytes, half of them read and half written."""
        outs = [torch.randn(rows, heads, D, device="cuda", dtype=dtype) for _ in range(parts)]
        lses = [torch.randn(rows, heads, device="cuda") for _ in range(parts)]
        out, lse = torch.empty_like(outs[0]), torch.empty_like(lses[0])
        run = self.softfold.merge([t for pair in zip(outs, lses) for t in pair], [out, lse], self.stream)
        torch.cuda.synchronize()
        run()
        torch.cuda.synchronize()
        weights = torch.softmax(torch.stack(lses)[:, :64].double(), 0)
        right = sum(w[..., None] * o[:64].double() for w, o in zip(weights, outs))
        error = (out[:64].double() - right).norm() / right.norm()
        assert error < 4e-3, float(error)
        bytes_moved = (parts + 1) * (out.numel() * out.element_size() + 4 * lse.numel())
        source = torch.randint(0, 255, (bytes_moved // 2,), device="cuda", dtype=torch.uint8)
        to = torch.empty_like(source)
        times = time_together({f"softfold:{run.kernel}": run, "copy": lambda: to.copy_(source)}, self.stream,
                              self.args.seconds)
        for who, ms in times.items():
            if self.out:
                self.out.write(json.dumps({"op": "merge_attention", "dtype": str(dtype).split(".")[-1],
                                           "shape": [parts, rows, heads, D], "case": "merge", "who": who, "ms": ms,
                                           "bytes": bytes_moved, "copy_ms": times["copy"], **self.common}) + "\n")
        print(f"merge of {parts} parts {rows}x{heads}x{D}: "
              f"{bytes_moved / times[f'softfold:{run.kernel}'] * 1e-9:.2f} TB/s, "
              f"{times['copy'] / times[f'softfold:{run.kernel}']:.2f} of a copy ({run.kernel})", flush=True)


def others(bench):
    """float16, grouped heads, unequal head sizes, windows, soft caps, sinks and packed sequences."""
    for causal in (False, True):
        bench.point(4, 16, 16, 4096, 4096, 128, causal=causal, dtype=torch.float16, group="float16")
    for T in (2048, 8192):
        bench.point(16384 // T, 32, 8, T, T, 128, causal=True, case="grouped causal", group="grouped")
    bench.point(2, 16, 16, 8192, 8192, 192, 128, causal=True, group="192/128")
    bench.point(1, 16, 16, 32768, 32768, 128, causal=True, left=4096, case="window 4096", group="window")
    bench.point(4, 16, 16, 4096, 4096, 128, causal=True, softcap=30., case="softcap causal", group="softcap")
    bench.point(4, 16, 16, 4096, 4096, 128, causal=True, sink=True, case="sink causal", group="sink")
    zipf = [max(16, 16384 // (i + 1)) for i in range(16)]
    for causal in (False, True):
        bench.packed(zipf, 16, 128, causal)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", default="build/src/libsoftfold.so")
    parser.add_argument("--out")
    parser.add_argument("--append", action="store_true")
    parser.add_argument("--commit", default="")
    parser.add_argument("--seconds", type=float, default=0.15)
    parser.add_argument("--flash4", help="the folder that flash4_kernels.py wrote")
    parser.add_argument("--sizes-alone", action="store_true", help="the head sizes and merges, nothing else")
    parser.add_argument("--flash2", action="store_true", help="FlashAttention-2 too")
    parser.add_argument("--sizes", default="128,64,256")
    parser.add_argument("--errors", action="store_true", help="errors beside torch's, nothing timed")
    args = parser.parse_args()
    torch.manual_seed(5)
    bench = Bench(args)
    if args.errors:
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            for T, S in ((113, 203), (799, 3), (239, 1), (3, 1023), (1024, 1024)):
                for D in (64, 128):
                    for causal in (False, True):
                        bench.error(T, S, D, causal, dtype)
        return
    for D in map(int, filter(None, args.sizes.split(","))):
        for causal in (False, True):
            for T in (512, 1024, 2048, 4096, 8192, 16384):
                bench.point(16384 // T, 2048 // D, 2048 // D, T, T, D, causal=causal)
    if not args.sizes_alone:
        others(bench)
    for parts in (2, 4, 8):
        for D in (64, 128):
            bench.merge(parts, 65536, 32 * 128 // D, D)
    for group, shares in bench.shares.items():
        mean = math.exp(sum(map(math.log, shares)) / len(shares))
        print(f"{group:14s} share of the best peer: geometric mean {mean:.3f}, worst {min(shares):.3f}")


if __name__ == "__main__":
    main()
