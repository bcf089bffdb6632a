"""Problems, and what is computed from samples: nothing here needs torch or a GPU."""
import statistics
from dataclasses import dataclass

# What is measured of each operation: methods, and the operators of torch.ops.symm_mem in them.
OPERATORS = {"gemm-rs": {"torch-async-tp": ["fused_matmul_reduce_scatter"]},
             "gemm-ar": {"torch-one-shot": ["one_shot_all_reduce"],
                         "torch-two-shot": ["two_shot_all_reduce_"]},
             "ag-gemm": {"torch-async-tp": ["fused_all_gather_matmul"]},
             "training": {"torch-async-tp": ["fused_all_gather_matmul",
                                             "fused_matmul_reduce_scatter"]}}
SUMMED = "gemm-rs", "gemm-ar"  # whose results are sums over the ranks
PRODUCT = "torch-matmul"  # measured last: the product alone, for orientation
DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
SLICE_UNIT = 8  # SMs that a green context comes in
MOST_RANKS = 16  # groups of 8 SMs on a GPU of 132
ELEMENT_BYTES = 2


def operators_of(op):
    """All that an operation needs, of every method."""
    return sum(OPERATORS[op].values(), [])


class Usage(Exception):
    """What is wrong with the input, and how to mend it."""


class Lacking(Exception):
    """What this torch does not have, and which one has it."""


@dataclass(frozen=True)
class Problem:
    name: object  # None: not from a suite
    m: int
    n: int
    k: int
    dtype: str

    def workspace_bytes(self, op, ranks):
        """Async-TP's two buffers for one destination's part of the output each, or its copy of
        the rank's own rows; the whole output, which is summed where it lies."""
        elements = {"gemm-rs": 2 * (self.m // ranks) * self.n, "gemm-ar": self.m * self.n,
                    "ag-gemm": self.m // ranks * self.k}[op]
        return elements * ELEMENT_BYTES

    def gemms(self, op, ranks):
        """(operation, problem) of each GEMM in a call."""
        return [(op, self)]


@dataclass(frozen=True)
class Training:
    """Four projections, forward and backward, as in build_training() of bench/block/cases.c; sizes
    of the whole model, and rows of all ranks."""
    m: int
    hidden: int
    inner: int
    qkv: int
    attention: int
    dtype: str = "bf16"
    name: str = "training"

    def widths(self, ranks):
        """Of qkv, o, gate and up, and down on one rank, on the side that is not `hidden`."""
        return (self.qkv // ranks, self.attention // ranks, 2 * self.inner // ranks,
                self.inner // ranks)

    def gemms(self, op, ranks):
        """A gradient of a weight, the operation `gradient`, has M = N of its projection and
        sums over the rows."""
        m, hidden = self.m, self.hidden
        qkv, o, up, down = self.widths(ranks)
        return [(kind, Problem(*sizes, self.dtype)) for kind, *sizes in (
            ("ag-gemm", "qkv", m, qkv, hidden),
            ("gemm-rs", "o", m, hidden, o),
            ("ag-gemm", "gate-up", m, up, hidden),
            ("gemm-rs", "down", m, hidden, down),
            ("ag-gemm", "down dX", m, down, hidden),
            ("gradient", "down dW", hidden, down, m),
            ("gradient", "gate-up dW", up, hidden, m),
            ("gemm-rs", "gate-up dX", m, hidden, up),
            ("ag-gemm", "o dX", m, o, hidden),
            ("gradient", "o dW", hidden, o, m),
            ("gradient", "qkv dW", qkv, hidden, m),
            ("gemm-rs", "qkv dX", m, hidden, qkv))]

    def workspace_bytes(self, op, ranks):
        return max(problem.workspace_bytes(kind, ranks) for kind, problem in self.gemms(op, ranks)
                   if kind != "gradient")


def parse_line(line, where):
    fields = line.split("#")[0].split()
    if not fields:
        return None
    if len(fields) != 6:
        raise Usage(f"{where}: {len(fields)} fields\n  fix: write name M N K W dtype")
    name, *sizes, dtype = fields
    if not all(size.isdigit() and int(size) > 0 for size in sizes):
        raise Usage(f"{where}: M, N, K and W are '{' '.join(sizes)}'\n  fix: write counts above 0")
    if dtype not in DTYPES:
        raise Usage(f"{where}: type '{dtype}' cannot be measured\n  fix: use {' or '.join(DTYPES)}")
    m, n, k, _ = map(int, sizes)
    return Problem(name, m, n, k, dtype)


def read_suite(path):
    """The problems of a suite file; its W is the caller's to choose."""
    try:
        with open(path) as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Usage(f"suite {path}: {error}\n  fix: name a file like bench/suites/paper.suite")
    found = [parse_line(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]
    found = [problem for problem in found if problem]
    if not found:
        raise Usage(f"suite {path} has no problem\n  fix: write lines of name M N K W dtype")
    return found


def why_not(problem, op, ranks):
    """Why torch cannot run the problem, or None."""
    if op == "gemm-ar" and problem.dtype != "bf16":
        return f"torch's AllReduce in symmetric memory is for bf16, not for {problem.dtype}"
    if op == "gemm-ar" and problem.m * problem.n * ELEMENT_BYTES % (16 * ranks):
        return f"torch's two shots need W pieces of 16 bytes each, and W={ranks}"
    if op != "gemm-ar" and problem.m % ranks:
        return f"Async-TP needs M to be a multiple of W, and M={problem.m} is none of {ranks}"
    if op == "training" and any(size % (8 * ranks) for size in (problem.inner, problem.qkv,
                                                                problem.attention)):
        return f"inner, qkv and attention are to be multiples of 8 W = {8 * ranks}"
    return None


def slice_sms(sms, ranks):
    """SMs of a rank: what Entwine gives its ranks on a GPU that they share."""
    return sms // SLICE_UNIT // ranks * SLICE_UNIT if ranks > 1 else sms


def iterations(estimate_us, least, idle, budget_s):
    """As many samples as the time allows, and no fewer than `least`."""
    affordable = int(budget_s * 1e6 / (max(estimate_us, 1.0) * (1 + idle)))
    return max(least, min(affordable, 4 * least))


def tolerance(contributions, dtype):
    """How far a result may be from the sum.  Every contribution, and the sum of them, is
    rounded with an error of half a unit in the last place at most; twice that is allowed."""
    half_unit = {"fp16": 2.0 ** -11, "bf16": 2.0 ** -8}[dtype]
    return 2 * half_unit * (sum(map(abs, contributions)) + abs(sum(contributions)) + 1)


def slowest(samples_of_ranks):
    """The samples of the rank with the largest median."""
    return max(samples_of_ranks, key=statistics.median)


def coefficient_of_variation(samples):
    mean = statistics.fmean(samples)
    return statistics.stdev(samples) / mean if len(samples) > 1 and mean else 0.0
