"""What the GPU benches share about their records: written a line each as they come, so that a run that is cut short keeps
what it had; a time limit; and a run that goes on where one before it stopped."""
import json
import math
import subprocess
import time

import torch


class OutOfTime(Exception):
    """The time that --limit gives is up."""


def add_options(parser):
    parser.add_argument("--library", default="build/src/libsoftfold.so")
    parser.add_argument("--out", help="the records' file, one JSON object a line; overwritten unless --resume is given")
    parser.add_argument("--commit", default="", help="what the records name as the library's commit")
    parser.add_argument("--limit", type=float, default=0, help="seconds after which no further point is begun (0: none)")
    parser.add_argument("--resume", action="store_true",
                        help="append to --out, without the points that it has of this device and commit")


def driver():
    return subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True,
                          text=True).stdout.strip()


class Records:
    def __init__(self, out, commit, limit=0, resume=False):
        self.common = {"device": torch.cuda.get_device_name(), "driver": driver(), "commit": commit,
                       "date": time.strftime("%Y-%m-%d")}
        self.stop = time.monotonic() + limit if limit else math.inf
        self.done = set(self.there(out)) if out and resume else set()
        self.out = open(out, "a" if resume else "w", buffering=1, encoding="utf-8") if out else None

    @staticmethod
    def key(record):
        return record["op"], record["dtype"], tuple(record["shape"]), record["case"]

    def there(self, out):
        """The points of this device and commit that the file has."""
        try:
            lines = open(out, encoding="utf-8").read().splitlines()
        except FileNotFoundError:
            return
        for record in map(json.loads, lines):
            if all(record[k] == self.common[k] for k in ("device", "commit")):
                yield self.key(record)

    def wants(self, op, dtype, shape, case):
        """Whether a point is still to be measured. After the time limit it raises OutOfTime."""
        if (op, dtype, tuple(shape), case) in self.done:
            return False
        if time.monotonic() > self.stop:
            raise OutOfTime(f"out of time before {op} {dtype} {'x'.join(map(str, shape))} {case}".rstrip())
        return True

    def write(self, op, dtype, shape, case, who, ms, **more):
        record = {"op": op, "dtype": dtype, "shape": list(shape), "case": case, "who": who, "ms": ms, **more,
                  **self.common}
        if self.out:
            self.out.write(json.dumps(record) + "\n")


def run_points(measure):
    """A bench's closing: its status is 3 where --limit has left points out."""
    try:
        measure()
    except OutOfTime as e:
        print(f"{e}: this point and those after it were not measured; --resume goes on with them", flush=True)
        raise SystemExit(3) from None
