"""cross_entropy, entropy, kl_divergence, topk, sample and shards of rows on one GPU, beside their peers and a copy or a read of the same bytes, in one run.

As bench/gpu_softmax.py: graph replays, interleaved, medians; all but shards are compared with float64 before.
Records of DESIGN section 5 go to --out.

    python3 bench/gpu_consumers.py --library build/src/libsoftfold.so --out bench/results/h200/consumers.jsonl
"""
import argparse
import ctypes as C
import sys

import torch

sys.path.insert(0, __file__.rsplit("/", 1)[0])
from consumer_options import (CrossEntropyOptions, EntropyOptions, KlDivergenceOptions, SampleOptions,  # noqa: E402
                              ShardOptions, TopkOptions)
import gpu_consumer_peers as peers  # noqa: E402
from gpu_peers import checked, peer_names  # noqa: E402
from gpu_records import Records, add_options, run_points  # noqa: E402
from gpu_plan import Softfold  # noqa: E402
from gpu_softmax import Bench  # noqa: E402


class Consumers(Softfold):
    """Plans of operations with options of their own."""

    def plan_of(self, name, ins, outs, options, views, stream):
        """name: of the C function behind softfold_plan_; views: the tensors among the options."""
        keep = []
        for field, tensor in views.items():
            self.view(options, field, tensor, keep)
        op = {"cross_entropy": (16,), "entropy": (15,), "kl_divergence": (21,), "topk": (), "sample": ()}[name]
        return self.bound(getattr(self.lib, "softfold_plan_" + name), op, ins, outs, options, stream, keep)

    def call_of(self, name, arguments, stream, workspace):
        """A call that has no plan: of tensors, option structs and numbers."""
        context = self.context(stream)
        context.workspace, context.workspace_bytes = workspace.data_ptr(), workspace.numel()
        given = [self.tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments]
        passed = [C.byref(a) if isinstance(a, C.Structure) else a for a in given]

        def run(lib=self.lib, keep=(given, context, workspace)):
            if getattr(lib, "softfold_" + name)(*passed, C.byref(context)) != 0:
                raise RuntimeError(lib.softfold_last_error().decode())

        return run


class Points(Bench):
    def __init__(self, args, records):
        super().__init__(args, records)
        self.softfold = Consumers(args.library)

    def logits(self, dtype, rows, n):
        return torch.randn(rows, n, device="cuda", dtype=torch.float32).mul_(3).to(dtype)

    def cross_entropy(self, dtype, rows, n, gradient, target_dtype=torch.int64):
        x = self.logits(dtype, rows, n)
        target = torch.randint(0, n, (rows,), device="cuda", dtype=target_dtype)
        loss, o = torch.empty((), device="cuda"), CrossEntropyOptions()
        self.softfold.lib.softfold_cross_entropy_options_init(C.byref(o))
        views = {"dx": torch.empty_like(x)} if gradient else {}
        run = self.softfold.plan_of("cross_entropy", [x, target], [loss], o, views, self.stream)
        ours = checked(lambda: run() or (loss, views.get("dx")), peers.near_loss(x, target))
        candidates = {f"softfold:{run.kernel}": ours, **peers.cross_entropy(x, target, gradient, self.args.peers)}
        self.point("cross_entropy", dtype, (rows, n), "loss and gradient" if gradient else "loss", candidates,
                   x.numel() * x.element_size() * (2 if gradient else 1), read_only=not gradient)

    def entropy(self, dtype, rows, n):
        x, h, o = self.logits(dtype, rows, n), torch.empty(rows, device="cuda"), EntropyOptions()
        self.softfold.lib.softfold_entropy_options_init(C.byref(o))
        run = self.softfold.plan_of("entropy", [x], [h], o, {}, self.stream)
        ours = checked(lambda: run() or h, peers.near_rows(peers.of_entropy, x))
        candidates = {f"softfold:{run.kernel}": ours, **peers.of_rows(peers.of_entropy, x, names=self.args.peers)}
        self.point("entropy", dtype, (rows, n), "", candidates, x.numel() * x.element_size(), read_only=True)

    def kl_divergence(self, dtype, rows, n, gradients):
        p, q, kl = self.logits(dtype, rows, n), self.logits(dtype, rows, n), torch.empty(rows, device="cuda")
        o = KlDivergenceOptions()
        self.softfold.lib.softfold_kl_divergence_options_init(C.byref(o))
        views = {"dp": torch.empty_like(p), "dq": torch.empty_like(q)} if gradients else {}
        run = self.softfold.plan_of("kl_divergence", [p, q], [kl], o, views, self.stream)
        ours = checked(lambda: run() or (kl, *views.values()),
                       peers.near_rows(peers.of_kl_divergence, p, q, gradients=gradients))
        candidates = {f"softfold:{run.kernel}": ours}
        if not gradients:
            candidates.update(peers.of_rows(peers.of_kl_divergence, p, q, names=self.args.peers))
        self.point("kl_divergence", dtype, (rows, n), "both gradients" if gradients else "",
                   candidates, 2 * p.numel() * p.element_size() * (2 if gradients else 1), read_only=not gradients)

    def topk(self, dtype, rows, n, k, probabilities=True):
        x, o = self.logits(dtype, rows, n), TopkOptions()
        values = torch.empty(rows, k, device="cuda", dtype=dtype)
        indices = torch.empty(rows, k, device="cuda", dtype=torch.int32)
        self.softfold.lib.softfold_topk_options_init(C.byref(o))
        views = {"probabilities": torch.empty(rows, k, device="cuda")} if probabilities else {}
        run = self.softfold.plan_of("topk", [x], [values, indices], o, views, self.stream)
        ours = checked(lambda: run() or (values, indices), peers.near_topk(x, k, "logits"))
        if probabilities:
            ours = checked(lambda call=ours: (views["probabilities"], call()[1]),
                           peers.near_topk(x, k, "probabilities"))
        candidates = {f"softfold:{run.kernel}": ours, **peers.topk(x, k, probabilities, self.args.peers)}
        self.point("topk", dtype, (rows, n), f"k={k}" + ("" if probabilities else " values"), candidates,
                   x.numel() * x.element_size(), read_only=True)

    def sample(self, dtype, rows, n, top_k=0, top_p=1., bitmask=False, probabilities=False):
        """bitmask: with one that leaves half of the elements; probabilities: what is drawn from is written, too."""
        x, tokens, o = self.logits(dtype, rows, n), torch.empty(rows, device="cuda", dtype=torch.int64), SampleOptions()
        self.softfold.lib.softfold_sample_options_init(C.byref(o))
        o.temperature, o.top_k, o.top_p = 0.8, top_k, top_p
        views, seen = {}, x
        if bitmask:
            words = torch.randint(-2**31, 2**31, (rows, (n + 31) // 32), device="cuda", dtype=torch.int32)
            views["bitmask"] = words
            bits = words.unsqueeze(-1).bitwise_right_shift(torch.arange(32, device="cuda", dtype=torch.int32))
            seen = x.masked_fill((bits & 1).reshape(rows, -1)[:, :n] == 0, -float("inf"))
        if probabilities:
            views["probabilities"] = torch.empty_like(x)
        run = self.softfold.plan_of("sample", [x], [tokens], o, views, self.stream)
        given = seen, o.temperature, top_k, top_p
        ours = checked(lambda: run() or tokens, peers.within(*given))
        names = () if bitmask or probabilities else self.args.peers
        candidates = {f"softfold:{run.kernel}": ours, **peers.sample(*given, names)}
        case = f"k={top_k}, p={top_p}" + (", bitmask" if bitmask else "") + (", probabilities" if probabilities else "")
        self.point("sample", dtype, (rows, n), case, candidates,
                   x.numel() * x.element_size() * (2 if probabilities else 1), read_only=not probabilities)

    def shards(self, dtype, rows, n, parts=8, k=0):
        """fold_shard of n elements a row, beside a read of them, and what follows from all parts' partials, beside a
        read of these."""
        x, size = self.logits(dtype, rows, n), n * parts
        workspace = torch.empty(1 << 26, dtype=torch.uint8, device="cuda")
        options, widths = [], []
        for i in range(parts):
            o, width = ShardOptions(), C.c_int64()
            self.softfold.lib.softfold_shard_options_init(C.byref(o))
            o.offset, o.size, o.k = i * n, size, k
            self.softfold.lib.softfold_partial_width(C.c_int64(n), C.byref(o), C.byref(width))
            options.append(o)
            widths.append(width.value)
        gathered = torch.empty(parts, rows, max(widths), dtype=torch.float64, device="cuda")
        folds = [self.softfold.call_of("fold_shard", [x, gathered[i], options[i]], self.stream, workspace)
                 for i in range(parts)]
        with torch.cuda.stream(self.stream):
            for fold in folds:
                fold()
        torch.cuda.synchronize()
        case = f"{parts} shards" + (f" k={k}" if k else "")
        self.point("fold_shard", dtype, (rows, n), case, {"softfold:fold_shard": folds[1]},
                   x.numel() * x.element_size(), read_only=True)
        if k:
            return
        states, tokens = torch.empty(rows, 4, dtype=torch.float64, device="cuda"), torch.empty(
            rows, dtype=torch.int64, device="cuda")
        o = SampleOptions()
        self.softfold.lib.softfold_sample_options_init(C.byref(o))
        calls = {"join_states": [gathered, states],
                 "sample_shard": [x, gathered, tokens, C.c_int64(n), C.c_int64(size), o]}
        for name, arguments in calls.items():
            run = self.softfold.call_of(name, arguments, self.stream, workspace)
            self.point(name, dtype, (rows, n), case, {"softfold:" + name: run}, gathered.numel() * 8, read_only=True)


def measure(b, only):
    if "cross_entropy" in only:
        for rows, n in ((8192, 128256), (4096, 262144), (8192, 32000), (65536, 1024)):
            b.cross_entropy(torch.bfloat16, rows, n, False)
            b.cross_entropy(torch.bfloat16, rows, n, True)
        b.cross_entropy(torch.bfloat16, 262144, 256, True)
        b.cross_entropy(torch.bfloat16, 65536, 1000, True)
        b.cross_entropy(torch.bfloat16, 671088, 100, True)
        b.cross_entropy(torch.float32, 4096, 128256, False)
        b.cross_entropy(torch.float32, 4096, 128256, True)
        b.cross_entropy(torch.float32, 8192, 32000, True)
    if "entropy" in only:
        b.entropy(torch.bfloat16, 8192, 128256)
        b.entropy(torch.float32, 4096, 128256)
        for dtype in (torch.float32, torch.bfloat16):
            for rows, n in ((1048576, 64), (262144, 256), (65536, 1024)):
                b.entropy(dtype, rows, n)
    if "kl_divergence" in only:
        for dtype in (torch.float32, torch.bfloat16):
            b.kl_divergence(dtype, 4096, 128256, False)
            b.kl_divergence(dtype, 4096, 128256, True)
            b.kl_divergence(dtype, 1048576, 64, False)
            b.kl_divergence(dtype, 1048576, 64, True)
        b.kl_divergence(torch.bfloat16, 8192, 32000, True)
        b.kl_divergence(torch.float32, 65536, 1024, False)
        for rows in (128, 1):
            b.kl_divergence(torch.float32, rows, 128256, False)
    if "topk" in only:
        for rows in (4096, 128, 1):
            b.topk(torch.float32, rows, 128256, 50)
        b.topk(torch.float32, 4096, 128256, 50, False)
        b.topk(torch.bfloat16, 4096, 128256, 50)
        for probabilities in (True, False):
            b.topk(torch.float32, 65536, 256, 8, probabilities)
            b.topk(torch.float32, 65536, 1024, 32, probabilities)
        for k in (512, 1000, 2048, 4096):
            b.topk(torch.float32, 4096, 128256, k)
        b.topk(torch.float32, 4096, 128256, 1000, False)
        b.topk(torch.bfloat16, 4096, 128256, 1000)
        for rows in (128, 1):
            b.topk(torch.float32, rows, 128256, 1000)
    if "short" in only:
        for rows, n in ((64, 10), (512, 100), (13107, 10), (1048576, 4), (32, 4000)):
            b.cross_entropy(torch.float32, rows, n, False)
        for dtype, rows, n in ((torch.float32, 256, 8), (torch.float32, 4194304, 8), (torch.bfloat16, 4194304, 8),
                               (torch.float32, 16777216, 2)):
            b.entropy(dtype, rows, n)
            b.kl_divergence(dtype, rows, n, False)
            b.kl_divergence(dtype, rows, n, True)
        for dtype, rows, n, k in ((torch.float32, 1, 1000, 50), (torch.float32, 65536, 1000, 100),
                                  (torch.bfloat16, 65536, 250, 32), (torch.float32, 16384, 2048, 256),
                                  (torch.float32, 1, 128256, 256), (torch.float32, 1024, 128256, 256)):
            b.topk(dtype, rows, n, k)
    if "sample" in only:
        for rows in (4096, 128, 1):
            b.sample(torch.float32, rows, 128256)
            b.sample(torch.float32, rows, 128256, 50, 0.9)
            b.sample(torch.float32, rows, 128256, 0, 0.9)
            b.sample(torch.float32, rows, 128256, 50, 0.9, bitmask=True)
        b.sample(torch.bfloat16, 4096, 128256, 0, 0.9)
        b.sample(torch.float32, 4096, 128256, 0, 0.9, bitmask=True)
        for top_k in (0, 50):
            b.sample(torch.float32, 4096, 128256, top_k, 0.9, probabilities=True)
    if "shards" in only:
        for rows, n in ((4096, 16384), (4096, 16032), (1024, 131072), (64, 16384), (64, 16032), (1, 131072)):
            b.shards(torch.bfloat16, rows, n)
        b.shards(torch.float32, 4096, 16384)
        b.shards(torch.float32, 4096, 16032)
        b.shards(torch.bfloat16, 4096, 16384, k=50)
        b.shards(torch.bfloat16, 4096, 16032, k=50)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--seconds", type=float, default=0.06, help="time for one point, beyond 7 rounds")
    parser.add_argument("--peers", type=peer_names(peers.PEERS), default="torch", help=",".join(peers.PEERS))
    parser.add_argument("--only", default="cross_entropy,entropy,kl_divergence,topk,short,sample,shards")
    args = parser.parse_args()
    points = Points(args, Records(args.out, args.commit, args.limit, args.resume))
    run_points(lambda: measure(points, args.only.split(",")))


if __name__ == "__main__":
    main()
