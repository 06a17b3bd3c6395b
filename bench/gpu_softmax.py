"""softfold's softmax family on one GPU, beside its peers and a device copy, in one run.

Every candidate is captured in a CUDA graph of several calls; the graphs are replayed in turn (interleaved), timed with
events, and the median is kept. Before any of it softmax, log_softmax and logsumexp of every candidate are compared with
float64; one that is wrong is recorded as a refusal. Records follow DESIGN section 5 and go to --out as JSON lines, one
object a line.

    python3 bench/gpu_softmax.py --library build/src/libsoftfold.so --out bench/results/h200/softmax.jsonl
"""
import argparse
import functools
import statistics
import sys
import time

import torch

sys.path.insert(0, __file__.rsplit("/", 1)[0])
import gpu_elsewhere  # noqa: E402
from gpu_peers import PEERS, checked, label, near, peer_names, peers_for, reason  # noqa: E402
from gpu_plan import Softfold  # noqa: E402
from gpu_records import Records, add_options, run_points  # noqa: E402


def time_together(candidates, stream, budget_s):
    """{name: call} -> {name: median ms}. Graph replays, interleaved. A call that refuses gets a reason instead."""
    graphs, result = {}, {}
    torch.cuda.synchronize()  # the operands were made on another stream
    with torch.cuda.stream(stream):
        for name, call in candidates.items():
            try:
                call()
                stream.synchronize()
                begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
                begin.record(stream)
                call()
                end.record(stream)
                stream.synchronize()
                calls = max(1, min(50, int(0.4 / max(begin.elapsed_time(end), 1e-3))))
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream):
                    for _ in range(calls):
                        call()
                graphs[name] = (graph, calls)
            except Exception as e:  # a peer's refusal is a result too
                torch.cuda.synchronize()
                result[name] = reason(e)
        times = {name: [] for name in graphs}
        stop = time.perf_counter() + budget_s
        while time.perf_counter() < stop or min((len(t) for t in times.values()), default=9) < 7:
            for name, (graph, calls) in graphs.items():
                begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
                begin.record(stream)
                graph.replay()
                end.record(stream)
                stream.synchronize()
                times[name].append(begin.elapsed_time(end) / calls)
    result.update({name: statistics.median(t) for name, t in times.items()})
    return result


def in_turn(calls):
    """The calls one after the other; what they return lives until all have run, so that none is given the memory of
    one before it."""
    return lambda: [call() for call in calls] and None


class Bench:
    def __init__(self, args, records):
        self.softfold, self.args, self.records = Softfold(args.library), args, records
        self.stream = torch.cuda.Stream()

    def point(self, op, dtype, shape, case, candidates, bytes_moved, read_only=False, sets=1):
        """One row of the table: the candidates, and a copy of the same bytes, timed together. sets: how many sets of
        operands each of them takes in a call, one after the other."""
        name = str(dtype).split(".")[-1]
        if not self.records.wants(op, name, shape, case):
            return
        count = max(bytes_moved // (1 if read_only else 2) // 4, 16)
        sources = [torch.randn(count, device="cuda") for _ in range(sets)]
        if read_only:  # the ceiling of a read: the largest element, by torch
            sink = torch.empty((), device="cuda")
            ceilings = {"copy": lambda s: torch.amax(s, dim=0, out=sink)}
        else:  # the ceiling of a copy: the better of the driver's and an elementwise kernel
            targets = {id(s): torch.empty_like(s) for s in sources}
            ceilings = {"copy": lambda s: targets[id(s)].copy_(s),
                        "scale": lambda s: torch.mul(s, 1.5, out=targets[id(s)])}
        candidates = dict(candidates, **{name: in_turn([functools.partial(call, s) for s in sources])
                                         for name, call in ceilings.items()})
        times = time_together(candidates, self.stream, self.args.seconds)
        times = {who: ms if isinstance(ms, str) else ms / sets for who, ms in times.items()}
        copy_ms = min(times.pop("copy"), times.pop("scale", 1e9))
        line = f"{op:12s} {name:9s} {'x'.join(map(str, shape)):>18s} {case:10s} copy {copy_ms * 1e3:9.1f} us"
        for who, ms in times.items():
            refused = isinstance(ms, str)
            self.records.write(op, name, shape, case, who, None if refused else ms, bytes=bytes_moved, copy_ms=copy_ms,
                               **({"why": ms} if refused else {}))
            line += f"  {who} {'refuses' if refused else f'{copy_ms / ms:.3f}'}"
        print(line, flush=True)

    def of_rows(self, op, x, y):
        """softfold's call and the peers', each of which is compared with float64 when it is called first."""
        run = self.softfold.plan(op, [x], y, self.stream)
        ours = checked(lambda: run() or y, near(op, x))
        return {f"softfold:{run.kernel}": ours, **peers_for(op, x, y, self.args.peers)}

    def softmax(self, dtype, rows, n, case="", op="softmax"):
        x = torch.randn(rows, n, device="cuda", dtype=torch.float32).mul_(3).to(dtype)
        y = torch.empty_like(x)
        candidates = self.of_rows(op, x, y)
        self.point(op, dtype, (rows, n), case, candidates, 2 * x.numel() * x.element_size())

    def cold(self, dtype, rows, n):
        """Few rows that are not in the L2 cache: as many sets of operands in turn as fill it several times."""
        size = 2 * rows * n * torch.empty((), dtype=dtype).element_size()
        sets = 4 * torch.cuda.get_device_properties().L2_cache_size // size + 1
        x = torch.randn(rows, n, device="cuda", dtype=torch.float32).mul_(3).to(dtype)
        all_calls = {}
        for _ in range(sets):
            own, y = x.clone(), torch.empty_like(x)
            for who, call in self.of_rows("softmax", own, y).items():
                all_calls.setdefault(who, []).append(call)
        candidates = {who: in_turn(calls) for who, calls in all_calls.items()}
        self.point("softmax", dtype, (rows, n), "few rows, cold", candidates, size, sets=sets)

    def reduce(self, dtype, rows, n):
        x = torch.randn(rows, n, device="cuda", dtype=torch.float32).mul_(3).to(dtype)
        lse = torch.empty(rows, device="cuda", dtype=torch.float64 if dtype == torch.float64 else torch.float32)
        candidates = self.of_rows("logsumexp", x, lse)
        self.point("logsumexp", dtype, (rows, n), "", candidates, x.numel() * x.element_size(), read_only=True)

    def backward(self, dtype, rows, n, op="softmax_backward"):
        y = torch.softmax(torch.randn(rows, n, device="cuda") * 3, -1)
        y = (y.log() if op.startswith("log") else y).to(dtype)
        dy, dx = torch.randn(rows, n, device="cuda", dtype=dtype), torch.empty(rows, n, device="cuda", dtype=dtype)
        run = self.softfold.plan(op, [y, dy], dx, self.stream)
        candidates = {f"softfold:{run.kernel}": run}
        if "torch" in self.args.peers:
            call = getattr(torch.ops.aten, f"_{op}_data")
            candidates[label("torch")] = lambda: call.out(dy, y, -1, dtype, **{
                "out" if op.startswith("log") else "grad_input": torch.empty_like(dx)})
        self.point(op, dtype, (rows, n), "three streams", candidates, 3 * y.numel() * y.element_size())

    def add_masked_fill(self, candidates, x, keep, axis=-1):
        if "torch" in self.args.peers:
            candidates[label("torch") + " masked_fill"] = lambda: torch.softmax(x.masked_fill(~keep, -torch.inf), axis)

    def options(self, dtype, rows, n, case, op="softmax"):
        """Rows of which something is missing. The bytes are those that they need, the mask's and lengths' too."""
        x, given = torch.randn(rows, n, device="cuda", dtype=torch.float32).mul_(3), {}
        if op.endswith("backward"):
            x = torch.log_softmax(x, -1) if op.startswith("log") else torch.softmax(x, -1)
        x = x.to(dtype)
        inputs = [x, torch.randn_like(x)] if op.endswith("backward") else [x]
        y, read_only = torch.empty_like(x), op == "logsumexp"
        if read_only:
            y = torch.empty(rows, device="cuda")
        need = len(inputs) * x.numel() * x.element_size() + y.numel() * y.element_size()
        if case == "mask":
            given["mask"] = torch.rand(rows, n, device="cuda") < 0.75
            need += x.numel()
        elif case == "scales":
            given["scales"] = torch.rand(rows, device="cuda") + 0.5
        elif case == "length":
            given["length"] = torch.randint(0, n + 1, (rows,), device="cuda", dtype=torch.int32)
            need = len(inputs) * int(given["length"].sum()) * x.element_size() + y.numel() * y.element_size() + 4 * rows
        run = self.softfold.plan(op, inputs, y, self.stream, **given)
        candidates = {f"softfold:{run.kernel}": run}
        if case == "mask" and op == "softmax":
            self.add_masked_fill(candidates, x, given["mask"])
        self.point(op, dtype, (rows, n), case, candidates, need, read_only=read_only)

    def scores(self, dtype, n, case, op="softmax"):
        """Scores of 16 heads, n steps by n keys. The bytes are those that they need; a mask's once."""
        shape = (max(1, (1 << 27) // (16 * n * n)), 16, n, n)
        x = torch.randn(shape, device="cuda").mul_(3).to(dtype)
        inputs = [torch.rand_like(x), x] if op.endswith("backward") else [x]
        y, need = torch.empty_like(x), (len(inputs) + 1) * x.numel() * x.element_size()
        if case == "mask of keys":
            ends = torch.randint(n // 2, n + 1, (shape[0], 1), device="cuda")
            keep = (torch.arange(n, device="cuda") < ends)[:, None, None, :]
        else:
            keep = torch.ones(n, n, device="cuda", dtype=torch.bool).tril_()[None, None]
        run = self.softfold.plan(op, inputs, y, self.stream, mask=keep.expand(shape))
        candidates = {f"softfold:{run.kernel}": run}
        if op == "softmax":
            self.add_masked_fill(candidates, x, keep)
        self.point(op, dtype, (shape[0] * 16 * n, n), case, candidates, need + keep.numel())

    def ragged(self, dtype, n, case, op="softmax"):
        """Rows of a mean length n. The bytes are those that they need, the offsets' too."""
        rows = (1 << 27) // n
        if case == "ragged" or case.startswith("ragged, "):  # these of operands that are not plain
            sizes = torch.randint(0, 2 * n + 1, (rows,), device="cuda")
        elif case == "ragged zipf":  # most rows short, a few a thousand times longer
            sizes = torch.rand(rows, device="cuda", dtype=torch.float64).pow_(-1 / 1.2).clamp_(max=4096)
            sizes = (sizes * (n / sizes.mean())).long()
        else:
            sizes = torch.empty(rows, device="cuda").exponential_().mul_(n).long()
            sizes = sizes.sort().values if case == "ragged in order" else sizes
        offsets = torch.zeros(rows + 1, device="cuda", dtype=torch.int64)
        offsets[1:] = sizes.cumsum(0)
        x = torch.randn(int(offsets[-1]), device="cuda").mul_(3).to(dtype)
        read_only = op == "logsumexp"
        other = {torch.float32: torch.bfloat16}.get(dtype, torch.float32) if "dtype" in case else dtype
        y = torch.empty(rows, device="cuda") if read_only else torch.empty_like(x, dtype=other)
        inputs = [x, torch.randn_like(x)] if op.endswith("backward") else [x]
        given, need = {"offsets": offsets}, len(inputs) * x.numel() * x.element_size() + 8 * rows
        need += 0 if read_only else y.numel() * y.element_size()
        if "mask" in case:
            given["mask"] = torch.rand(x.numel(), device="cuda") < 0.75
            need += x.numel()
        if "scales" in case:
            given["scales"] = torch.rand(rows, device="cuda") + 0.5
        run = self.softfold.plan(op, inputs, y, self.stream, **given)
        self.point(op, dtype, (rows, n), case, {f"softfold:{run.kernel}": run}, need, read_only=read_only)

    def outer_options(self, dtype, batch, n, inner, case, op="softmax"):
        """The same along the middle axis: a mask of all elements or a length for each of the batch; the bytes that they
        need."""
        x, given = torch.randn(batch, n, inner, device="cuda").to(dtype), {}
        inputs = [x, torch.randn_like(x)] if op.endswith("backward") else [x]
        y = torch.empty(batch, inner, device="cuda") if op == "logsumexp" else torch.empty_like(x)
        need = len(inputs) * x.numel() * x.element_size()
        if case == "axis 1, mask":
            given["mask"] = torch.rand(batch, n, inner, device="cuda") < 0.75
            need += x.numel()
        elif case == "axis 1, length":
            given["length"] = torch.linspace(0, n, batch, device="cuda").long()[:, None, None]
            need = need * int(given["length"].sum()) // (batch * n)
        elif case == "axis 1, other dtype":
            y = torch.empty_like(x, dtype=torch.bfloat16 if dtype == torch.float32 else torch.float32)
        run = self.softfold.plan(op, inputs, y, self.stream, axis=1, **given)
        candidates = {f"softfold:{run.kernel}": run}
        if op == "softmax" and case == "axis 1, mask":
            self.add_masked_fill(candidates, x, given["mask"], 1)
        read_only = op == "logsumexp"
        need += 0 if read_only else y.numel() * y.element_size()
        self.point(op, dtype, (batch, n, inner), case, candidates, need, read_only=read_only)

    def outer_axis(self, dtype, batch, n, inner):
        x = torch.randn(batch, n, inner, device="cuda", dtype=torch.float32).mul_(3).to(dtype)
        y = torch.empty_like(x)
        run = self.softfold.plan("softmax", [x], y, self.stream, axis=1)
        candidates = {f"softfold:{run.kernel}": run}
        if "torch" in self.args.peers:
            candidates[label("torch")] = lambda: torch.softmax(x, 1, out=torch.empty_like(y))
        self.point("softmax", dtype, (batch, n, inner), "axis 1", candidates, 2 * x.numel() * x.element_size())


def measure(b, only):
    if "softmax" in only:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for n in (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 50257, 50264, 128256,
                      151936):
                if dtype == torch.float16 and n not in (128, 1024, 4096, 50257, 131072):
                    continue
                size = torch.empty((), dtype=dtype).element_size()
                b.softmax(dtype, max(1, (1 << 29) // size // n), n)
    if "short" in only:
        for dtype in (torch.float32, torch.bfloat16):
            for n in (2, 3, 5, 8, 10, 16, 20, 32, 50, 64, 100, 127, 250, 300, 700, 1000, 1001):
                b.softmax(dtype, (1 << 28) // torch.empty((), dtype=dtype).element_size() // n, n, "short")
            for n in (2, 3, 5, 8, 10, 16, 20, 64, 100):
                b.softmax(dtype, (1 << 28) // torch.empty((), dtype=dtype).element_size() // n, n, "short",
                          op="log_softmax")
    if "between" in only:
        for dtype in (torch.float32, torch.bfloat16):
            for n in (1032, 1280, 1500, 1536, 2560, 3000, 3584, 5000, 8000, 10000, 12001, 15000, 20000, 30001):
                size = torch.empty((), dtype=dtype).element_size()
                b.softmax(dtype, (1 << 29) // size // n, n, "between")
            for n in (1280, 3072, 5120, 7000, 10000):
                b.softmax(dtype, (1 << 29) // size // n, n, "between", op="log_softmax")
    if "log_softmax" in only:
        for dtype in (torch.float32, torch.bfloat16):
            for n in (128, 1024, 4096, 8192, 32768, 50257, 128256, 262144):
                size = torch.empty((), dtype=dtype).element_size()
                b.softmax(dtype, max(1, (1 << 29) // size // n), n, op="log_softmax")
    if "long" in only:
        for dtype in (torch.float32, torch.bfloat16):
            for n in (393216, 524288, 800000, 1000000, 2000000, 3500000, 7000000):
                b.softmax(dtype, max(4, (1 << 27) // n), n)
        b.softmax(torch.float32, 1, 134217728)
    if "few" in only:
        for rows, n in ((32, 128256), (1, 128256), (8, 128256), (1, 4096), (4, 1000000)):
            for dtype in (torch.float32, torch.bfloat16):
                b.softmax(dtype, rows, n, "few rows")
                if n > 4096:  # of less, the sets would be too many
                    b.cold(dtype, rows, n)
    if "logsumexp" in only:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for n in (128, 1024, 4096, 16384, 50257, 128256, 256000, 1000000):
                size = torch.empty((), dtype=dtype).element_size()
                b.reduce(dtype, max(1, (1 << 29) // size // n), n)
            for n in (2, 5, 8, 10, 12, 16, 20, 32, 50, 64, 100, 127, 250, 500, 1001):
                if dtype != torch.float16:
                    b.reduce(dtype, (1 << 28) // size // n, n)
    if "backward" in only:
        for dtype in (torch.float32, torch.bfloat16):
            for n in (2, 5, 8, 10, 12, 16, 20, 50, 64, 100, 127, 250, 1001, 2051, 4099, 12001):
                b.backward(dtype, (1 << 26) // n, n)
            for n in (2, 5, 10, 20, 64, 250, 4099, 12001, 37001, 151936):
                b.backward(dtype, (1 << 26) // n, n, op="log_softmax_backward")
            for n in (128, 1024, 4096, 16384, 37001, 50257, 131072, 151936, 262144):
                b.backward(dtype, max(1, (1 << 28) // n), n)
        b.backward(torch.bfloat16, 8192, 32768, op="log_softmax_backward")
    if "options" in only:
        lengths = {"mask": (16, 20, 50, 77, 100, 128, 250, 600, 1024, 4096, 32768, 131072, 50257, 128256, 1001, 1280, 1500, 2001, 3001),
                   "length": (20, 50, 77, 128, 250, 333, 1024, 4096, 32768, 131072, 1001, 1500, 2051, 4099, 16383, 50257)}
        for case, ns in lengths.items():
            for dtype in (torch.float32, torch.bfloat16):
                for n in ns:
                    b.options(dtype, max(1, (1 << 27) // n), n, case)
        for dtype in (torch.float32, torch.bfloat16):
            for n in (50, 128, 250, 512, 1001):
                b.options(dtype, (1 << 27) // n, n, "mask", "log_softmax")
            for n in (20, 50, 77, 100, 250, 333, 1001):
                b.options(dtype, (1 << 27) // n, n, "mask", "logsumexp")
            for n in (33, 77, 250):
                b.options(dtype, (1 << 27) // n, n, "length", "logsumexp")
    if "scores" in only:
        for dtype in (torch.float32, torch.bfloat16):
            for case in ("mask of keys", "mask of steps"):
                for n in (77, 128, 197, 512, 1000, 1024, 2048):
                    b.scores(dtype, n, case)
                for n in (77, 197, 1024):
                    b.scores(dtype, n, case, "softmax_backward")
            for n in (20, 77, 1000):
                b.options(dtype, (1 << 27) // n, n, "scales")
    if "hidden_gradients" in only:
        for dtype in (torch.float32, torch.bfloat16):
            for case in ("mask", "length"):
                for n in (16, 64, 100, 128, 250, 512, 1001, 1024, 2048, 2051, 4096, 8192, 16384, 32768, 50257, 65536, 128256,
                          262144):
                    b.options(dtype, (1 << 27) // n, n, case, "softmax_backward")
                for n in (64, 1001, 4096, 16384, 50257):
                    b.options(dtype, (1 << 27) // n, n, case, "log_softmax_backward")
    if "ragged" in only:
        means = {"ragged": (64, 128, 256, 512, 1024, 2048, 4096, 8192, 32768, 131072),
                 "ragged exponential": (64, 256, 1024, 2048, 4096, 8192), "ragged in order": (128, 1024, 4096),
                 "ragged zipf": (64, 256, 1024, 4096)}
        for dtype in (torch.float32, torch.bfloat16):
            for case, ns in means.items():
                for n in ns:
                    b.ragged(dtype, n, case)
            for n in (64, 512, 1024, 2048, 4096, 8192, 32768):
                b.ragged(dtype, n, "ragged", "logsumexp")
    if "ragged_gradients" in only:
        for dtype in (torch.float32, torch.bfloat16):
            for n in (8, 64, 256, 1024, 4096, 16384, 32768, 131072):
                b.ragged(dtype, n, "ragged", "softmax_backward")
            for n in (64, 1024, 4096, 32768):
                b.ragged(dtype, n, "ragged", "log_softmax_backward")
    if "outer_options" in only:
        for dtype in (torch.float32, torch.bfloat16):
            for n in (64, 1000, 4096, 20000):
                shape = (max((1 << 17) // n, 1), n, 1024)
                for op in ("softmax", "log_softmax", "logsumexp", "softmax_backward"):
                    b.outer_options(dtype, *shape, "axis 1, mask", op)
                for op in ("softmax", "softmax_backward"):
                    b.outer_options(dtype, *shape, "axis 1, length", op)
                    b.outer_options(dtype, *shape, "axis 1, other dtype", op)
        for n in (8, 64, 128, 256, 1000):
            b.outer_options(torch.float64, (1 << 16) // n, n, 1024, "axis 1")
            b.outer_options(torch.float64, (1 << 16) // n, n, 1024, "axis 1", "logsumexp")
        for n in (8, 64, 256):
            b.outer_options(torch.float64, (1 << 16) // n, n, 1024, "axis 1", "softmax_backward")
    if "ragged_mixed" in only:
        for dtype in (torch.float32, torch.bfloat16):
            for n in (8, 64, 300, 2000, 32768):
                for op in ("softmax", "logsumexp", "softmax_backward"):
                    b.ragged(dtype, n, "ragged, mask", op)
            for n in (64, 2000):
                for op in ("softmax", "softmax_backward"):
                    b.ragged(dtype, n, "ragged, scales", op)
                    b.ragged(dtype, n, "ragged, other dtype", op)
    if "beyond_clusters" in only:
        for dtype in (torch.float32, torch.bfloat16):
            for n in (300000, 1 << 21):
                b.backward(dtype, (1 << 27) // n, n)
                b.backward(dtype, (1 << 27) // n, n, "log_softmax_backward")
                for op in ("softmax", "softmax_backward"):
                    b.options(dtype, (1 << 27) // n, n, "mask", op)
                    b.options(dtype, (1 << 27) // n, n, "length", op)
    if "float64" in only:
        for n in (64, 1024, 32768):
            b.ragged(torch.float64, n, "ragged")
        for op in ("softmax", "log_softmax"):
            for n in (8, 16, 32, 64, 100, 128, 512, 1024, 4096, 8192, 12288, 32768, 50257, 65536, 131072, 1000000):
                b.softmax(torch.float64, max(1, (1 << 26) // n), n, op=op)
        for n in (8, 32, 128, 1024, 16384, 131072):
            b.reduce(torch.float64, (1 << 26) // n, n)
        for op in ("softmax_backward", "log_softmax_backward"):
            for n in (8, 32, 128, 1024, 4096, 16384, 50257, 131072, 262144):
                b.backward(torch.float64, (1 << 25) // n, n, op=op)
    if "outer" in only:
        for dtype in (torch.float32, torch.bfloat16):
            for batch, n, inner in ((16, 21, 1 << 18), (16, 64, 1 << 17), (64, 512, 4096), (1, 1024, 1 << 17),
                                    (32, 4096, 1024)):
                b.outer_axis(dtype, batch, n, inner)
    if "elsewhere" in only:
        gpu_elsewhere.measure(b)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--seconds", type=float, default=0.06, help="time for one point, beyond 7 rounds")
    parser.add_argument("--peers", type=peer_names(PEERS), default="torch", help=",".join(PEERS))
    parser.add_argument("--only", default="softmax,short,between,log_softmax,long,few,logsumexp,backward,options,"
                        "hidden_gradients,ragged,ragged_gradients,ragged_mixed,beyond_clusters,float64,outer,"
                        "outer_options,scores,elsewhere")
    args = parser.parse_args()
    bench = Bench(args, Records(args.out, args.commit, args.limit, args.resume))
    run_points(lambda: measure(bench, args.only.split(",")))


if __name__ == "__main__":
    main()
