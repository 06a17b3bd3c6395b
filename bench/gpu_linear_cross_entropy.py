"""linear_cross_entropy with all its gradients on one GPU, beside its peers, in one run.

Every candidate is called in turn (in an order of its own each round: what ran before, and how hot it left the GPU, is
worth 10%), timed with events, and the median is kept. Before that each is compared with torch in float32; the errors go
into its record, and one that is wrong is recorded as a refusal.
extra_bytes is what a call takes beyond its inputs and the loss, gradients included: for softfold by its plan, for peers
the allocator's peak.

    python3 bench/gpu_linear_cross_entropy.py --library build/src/libsoftfold.so --out bench/results/h200/linear_cross_entropy.jsonl
"""
import argparse
import ctypes as C
import functools
import math
import random
import statistics
import sys

import torch

sys.path.insert(0, __file__.rsplit("/", 1)[0])
from consumer_options import LinearCrossEntropyOptions  # noqa: E402
from gpu_peers import compiled, label, peer_names, reason  # noqa: E402
from gpu_records import Records, add_options, run_points  # noqa: E402
from gpu_plan import Softfold  # noqa: E402


class Linear(Softfold):
    MODES = {"fast": 0, "lean": 1}

    def plan(self, x, weight, target, loss, mode, dx=None, dweight=None):
        """The call, and the bytes of its workspace."""
        o, keep = LinearCrossEntropyOptions(), []
        self.lib.softfold_linear_cross_entropy_options_init(C.byref(o))
        o.mode = self.MODES[mode]
        for field, tensor in (("dx", dx), ("dweight", dweight)):
            if tensor is not None:
                self.view(o, field, tensor, keep)
        run = self.bound(self.lib.softfold_plan_linear_cross_entropy, [], [x, weight, target], [loss], o,
                         torch.cuda.current_stream(), keep)
        return run, run.workspace_bytes


def torch_loss(x, weight, target):
    return torch.nn.functional.cross_entropy(torch.nn.functional.linear(x, weight), target)


def quack_loss(x, weight, target):
    from quack.linear_cross_entropy import chunked_linear_cross_entropy
    return chunked_linear_cross_entropy(x, weight, target)


def liger_loss(x, weight, target):
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy
    return liger_fused_linear_cross_entropy(x, weight, target)


def cce_loss(x, weight, target, impl):
    """impl: cce leaves out what it takes to be too small for the gradients, cce_exact does not."""
    from cut_cross_entropy import linear_cross_entropy
    return linear_cross_entropy(x, weight, target, impl=impl)


LOSSES = {"torch": torch_loss, "compile": compiled(torch_loss), "quack": quack_loss, "liger": liger_loss,
          "cce": functools.partial(cce_loss, impl="cce"), "cce-exact": functools.partial(cce_loss, impl="cce_exact")}


def with_gradients(loss_of, x, weight, target):
    loss = loss_of(x, weight, target)
    return loss, *torch.autograd.grad(loss, (x, weight))


def error_of(got, wanted):
    return ((got.double() - wanted.double()).abs().max() / wanted.double().abs().max()).item()


def errors_of(who, result, wanted, filtered):
    """Of the loss and the gradients, each against its largest element. filtered: small gradients are left out."""
    errors = [error_of(a, b) for a, b in zip(result, wanted)]
    text = ", ".join(f"{e:.1e}" for e in errors)
    print(f"{who}: errors against torch in float32: {text}", flush=True)
    of_gradients = math.inf if filtered else 3e-2
    bounds = 1e-3 + torch.finfo(result[0].dtype).eps / 2, of_gradients, of_gradients
    if not all(e <= bound for e, bound in zip(errors, bounds)):
        raise RuntimeError(f"wrong: errors {text}")
    return errors


def peak_of(call):
    """The bytes that a call takes beyond what there was before it."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


class Bench:
    def __init__(self, args, records):
        self.args, self.softfold, self.records = args, Linear(args.library), records

    def point(self, dtype, rows, depth, classes):
        if not self.records.wants("linear_cross_entropy", str(dtype).split(".")[-1], (rows, depth, classes),
                                  "loss and gradients"):
            return
        torch.manual_seed(rows + classes)
        x = torch.randn(rows, depth, device="cuda", dtype=dtype).requires_grad_()
        weight = (torch.randn(classes, depth, device="cuda", dtype=dtype) * depth ** -0.5).requires_grad_()
        target = torch.randint(0, classes, (rows,), device="cuda")
        loss, dx, dweight = torch.empty((), device="cuda"), torch.empty_like(x), torch.empty_like(weight)
        gradients = dx.nbytes + dweight.nbytes
        calls, about = {}, {}
        wanted = with_gradients(torch_loss, *(t.detach().float().requires_grad_() for t in (x, weight)), target)

        def take(key, call, extra_of, filtered=False):
            try:
                errors = errors_of(" ".join(key), call(), wanted, filtered)
                calls[key], about[key] = call, {"extra_bytes": extra_of(call), "errors": errors}
            except Exception as e:  # a peer's refusal is a result too
                torch.cuda.synchronize()
                self.record(dtype, (rows, depth, classes), key, why=reason(e))

        for mode in self.args.modes:
            for part in ("loss and gradients", "loss"):
                grads = {"dx": dx.detach(), "dweight": dweight.detach()} if part != "loss" else {}
                run, need = self.softfold.plan(x.detach(), weight.detach(), target, loss, mode, **grads)
                extra = need + (gradients if grads else 0)
                take((f"softfold:{run.kernel}", part), lambda run=run, out=(loss, *grads.values()): run() or out,
                     lambda call, extra=extra: extra)
        for peer in self.args.peers:
            call = functools.partial(with_gradients, LOSSES[peer], x, weight, target)
            take((label(peer), "loss and gradients"), call, peak_of, filtered=peer == "cce")
        for key, ms in self.time(calls).items():
            products = 1 if key[1] == "loss" else 3
            self.record(dtype, (rows, depth, classes), key, ms=ms, **about[key],
                        flops=2 * products * rows * depth * classes)

    def time(self, calls):
        times = {key: [] for key in calls}
        for turn in range(self.args.rounds + 1):
            for key, call in random.Random(turn).sample(list(calls.items()), len(calls)):
                begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
                begin.record()
                call()
                end.record()
                torch.cuda.synchronize()
                times[key].append(begin.elapsed_time(end))
        return {key: statistics.median(t[1:]) for key, t in times.items()}

    def record(self, dtype, shape, key, ms=None, **more):
        name = str(dtype).split(".")[-1]
        self.records.write("linear_cross_entropy", name, shape, key[1], key[0], ms, **more)
        tail = f"{ms:8.2f} ms {more['extra_bytes'] / 1e6:8.0f} MB" if ms else more["why"]
        print(f"{name} {'x'.join(map(str, shape))} {key[1]:18s} {key[0]:34s} {tail}", flush=True)


def measure(b):
    b.point(torch.bfloat16, 8192, 4096, 128256)
    b.point(torch.bfloat16, 8192, 2304, 256000)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peers", type=peer_names(LOSSES), default="torch", help=",".join(LOSSES))
    parser.add_argument("--modes", default="fast,lean")
    args = parser.parse_args()
    args.modes = [m for m in args.modes.split(",") if m]
    bench = Bench(args, Records(args.out, args.commit, args.limit, args.resume))
    run_points(lambda: measure(bench))


if __name__ == "__main__":
    main()
