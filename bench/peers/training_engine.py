"""A training step of four projections, as users of PyTorch's Async-TP run it, with GEMMs and their
order as in build_training() of bench/block/cases.c."""
from collections import namedtuple

from problems import DTYPES, PRODUCT
from torch_engine import TorchEngine

# rows [m x hidden]: input or gradient of which each rank has its part; columns [m x width]: the
# rank's own, at the other end of the weight.
Projection = namedtuple("Projection", "rows columns weight")


class TrainingEngine(TorchEngine):
    def __init__(self, meeting, problems, options):
        super().__init__(meeting, problems, options)
        gemms = problems[0].gemms(options.op, meeting.ranks)
        self.marks = [self.torch.cuda.Event(enable_timing=True) for _ in range(1 + len(gemms))]

    def load(self, problem):
        dtype = getattr(self.torch, DTYPES[problem.dtype])
        m, hidden, widths = problem.m, problem.hidden, problem.widths(self.meeting.ranks)
        qkv, o, up, down = widths
        weights = (qkv, hidden), (hidden, o), (up, hidden), (hidden, down)
        with self._on_slice():
            self.projections = [
                Projection(self._drawn(m, hidden, dtype, 3 * at, is_everyones=True),
                           self._drawn(m, width, dtype, 3 * at + 1),
                           self._drawn(*shape, dtype, 3 * at + 2))
                for at, (width, shape) in enumerate(zip(widths, weights))]
            self._finish()

        def pair(a, weight):
            return a, weight.t()

        def gather(rows, weight):
            return rows, pair(rows, weight)

        self.operands = list(self._step(gather, pair, pair))

    def negate(self):
        """Halves too: where two inputs are multiplied, their signs cancel."""
        with self._on_slice():
            for projection in self.projections:
                projection.rows.mul_(-0.5)
                projection.columns.mul_(-0.5)

    def _step(self, gather, scatter, multiply):
        """One result after the other.  Attention and activation are left out, so every product
        has inputs of its own; gradients of weights take the rows that were gathered."""
        qkv, o, up, down = self.projections
        qkv_rows, y = gather(qkv.rows, qkv.weight.t())
        yield y
        yield scatter(o.columns, o.weight.t())
        up_rows, y = gather(up.rows, up.weight.t())
        yield y
        yield scatter(down.columns, down.weight.t())
        down_rows, dx = gather(down.rows, down.weight)
        yield dx
        yield multiply(down_rows.t(), down.columns)
        yield multiply(up.columns.t(), up_rows)
        yield scatter(up.columns, up.weight)
        o_rows, dx = gather(o.rows, o.weight)
        yield dx
        yield multiply(o_rows.t(), o.columns)
        yield multiply(qkv.columns.t(), qkv_rows)
        yield scatter(qkv.columns, qkv.weight)

    def _call(self, method):
        mm, operators = self.torch.mm, self.torch.ops.symm_mem

        def gather(rows, weight):
            part = rows.chunk(self.meeting.ranks)[self.meeting.rank]
            gathered, (out,) = operators.fused_all_gather_matmul(part, [weight], 0, self.group)
            return gathered, out

        def scatter(a, weight):
            return operators.fused_matmul_reduce_scatter(a, weight, "sum", 0, self.group)

        if method == PRODUCT:
            results = self._step(lambda rows, weight: (rows, mm(rows, weight)), mm, mm)
        else:
            results = self._step(gather, scatter, mm)
        outs = []
        self._mark(0)
        for out in results:
            outs.append(out)
            self._mark(len(outs))
        return outs

    def _mark(self, at):
        self.marks[at].record()

    def ends_us(self):
        """When each GEMM of the last step ended, from the step's beginning."""
        return [self.marks[0].elapsed_time(mark) * 1000 for mark in self.marks[1:]]
