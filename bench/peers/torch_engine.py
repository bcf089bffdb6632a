"""What a rank does with torch: its slice of the GPU, the operator and the stopwatch.

Written against torch 2.11; the private names used are `_symmetric_memory._backend_streams`,
`get_symm_mem_workspace` and `torch.cuda._sleep`."""
import ctypes
import datetime
import os
import sys
import time
import warnings

from problems import (DTYPES, MOST_RANKS, OPERATORS, PRODUCT, Lacking, operators_of,
                      slice_sms)
from slices import Slice

GATE_CHANNEL = 2  # the operator's barriers are on 0 and 1
POLL_S = 20e-6
LOOK_SIDE = 4096
LEAST_OF_SHARE = 0.5  # of the slowdown that a slice's share of the SMs lets one expect
USUAL_CLOCK_MHZ = 2000


class TorchEngine:
    device = "cuda"

    def __init__(self, meeting, problems, options):
        self._open_torch(meeting, options)
        torch = self.torch
        torch.cuda.set_device(0)
        torch.zeros(1, device=self.device)
        self.properties = torch.cuda.get_device_properties(0)
        self.clock_mhz = getattr(self.properties, "clock_rate", 0) // 1000 or USUAL_CLOCK_MHZ
        self._open_slice(options.slices)
        self.group = self._open_group(options)
        with self._on_slice():
            self._open_workspace(problems)
        self._cublas = ctypes.CDLL("libcublas.so.13" if torch.version.cuda.startswith("13")
                                   else "libcublas.so.12")

    def _open_torch(self, meeting, options):
        import torch
        try:
            import torch.distributed._symmetric_memory as symm_mem
        except ImportError as error:
            raise Lacking(f"torch {torch.__version__} has no symmetric memory ({error})\n"
                          "  fix: use torch 2.11")
        self.torch, self.symm_mem, self.meeting = torch, symm_mem, meeting
        self.seed, self.op, self.notes = options.seed, options.op, []
        for name in operators_of(self.op):
            if not hasattr(torch.ops.symm_mem, name):
                raise Lacking(f"torch {torch.__version__} has no torch.ops.symm_mem.{name}\n"
                              "  fix: use torch 2.11")

    # ---- The slice -------------------------------------------------------------------------

    def _open_slice(self, kind):
        torch, ranks = self.torch, self.meeting.ranks
        if kind == "mps":  # the limit is the process's, and any stream will do
            self.sms = self.properties.multi_processor_count
            self.main, second = torch.cuda.Stream(), torch.cuda.Stream()
        else:
            part = Slice(self.meeting.rank, slice_sms(self.properties.multi_processor_count, ranks))
            self.sms = part.sms
            self.main, second = (torch.cuda.ExternalStream(part.stream()) for _ in range(2))
            if self._events_work():
                if self.meeting.rank == 0 and ranks > 1:
                    self._look_at_slice()
            else:
                part.make_current()
                self.notes.append("green context made current")
                if not self._events_work():
                    raise RuntimeError("events do not work on the slice's streams")
        # Async-TP computes every other chunk on a stream of its own making: without this half
        # of its work would have all of the GPU.
        self.symm_mem._backend_streams[0] = second
        if self.symm_mem._get_backend_stream() is not second:
            raise RuntimeError("this torch keeps Async-TP's second stream elsewhere")
        self.notes.append("second stream in the slice")

    def _on_slice(self):
        return self.torch.cuda.stream(self.main)

    def _finish(self):
        """Waits for what was queued on the slice."""
        self._wait_for(self.main.record_event())

    def _events_work(self):
        """Whether events of the current context can be recorded on the slice's streams."""
        try:
            event = self.torch.cuda.Event(enable_timing=True)
            event.record(self.main)
            self.main.wait_event(event)
            self.main.synchronize()
            return True
        except RuntimeError as error:
            print(f"events on the slice's stream: {error}", file=sys.stderr)
            return False

    def _look_at_slice(self):
        """A slice that is none would make every figure wrong."""
        whole = self._product_us(self.torch.cuda.default_stream())
        factor = self._product_us(self.main) / whole
        share = self.sms / self.properties.multi_processor_count
        if factor * share < LEAST_OF_SHARE:
            raise RuntimeError(f"the slice of {self.sms} SMs is only {factor:.1f} times slower "
                               "than the whole GPU: it does not hold")
        self.notes.append(f"slice {factor:.1f}x slower than the GPU")

    def _product_us(self, stream):
        """The best of a few square products on a stream, in us."""
        torch, times = self.torch, []
        with torch.cuda.stream(stream):
            square = torch.zeros(LOOK_SIDE, LOOK_SIDE, dtype=torch.float16, device=self.device)
            for _ in range(5):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                torch.matmul(square, square)
                end.record()
                self._wait_for(end)
                times.append(start.elapsed_time(end) * 1000)
        return min(times)

    # ---- The group -------------------------------------------------------------------------

    def _open_group(self, options):
        """NCCL refuses two ranks on one GPU.  The group only has to know ranks and a store, in
        which symmetric memory's handles are announced: its own collectives are not used."""
        import torch.distributed as dist
        rank, ranks = self.meeting.rank, self.meeting.ranks
        patience = datetime.timedelta(seconds=options.timeout)
        store = dist.FileStore(os.path.join(options.folder, "store"), ranks)
        store.set_timeout(patience)
        how = {"store": store, "rank": rank, "world_size": ranks, "timeout": patience}
        try:
            dist.init_process_group("gloo", **how)
        except RuntimeError as error:  # no network, not even to itself
            import torch.testing._internal.distributed.fake_pg  # noqa: F401 (registers it)
            print(f"gloo does not start, a group without collectives does: {error}",
                  file=sys.stderr)
            dist.init_process_group("fake", **how)
        name = dist.group.WORLD.group_name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer torch does without it, and says so
            self.symm_mem.enable_symm_mem_for_group(name)
        return name

    def _open_workspace(self, problems):
        """Once, for the largest problem: growing it later would be timed.  An AllReduce sums
        what lies in symmetric memory of the caller's."""
        torch, ranks = self.torch, self.meeting.ranks
        most = max((problem.workspace_bytes(self.op, ranks) for problem in problems), default=4096)
        if self.op == "gemm-ar":
            self.summed = self.symm_mem.empty(most, dtype=torch.uint8, device=self.device)
            self.symm_mem.rendezvous(self.summed, self.group)
            most = 4096
        self.gate = self.symm_mem.get_symm_mem_workspace(self.group, most)

    # ---- A problem -------------------------------------------------------------------------

    def _drawn(self, rows, columns, dtype, index, is_everyones=False):
        """A matrix of numbers that the seed and its index decide, and the rank unless all ranks
        draw the same."""
        owner = MOST_RANKS if is_everyones else self.meeting.rank
        random = self.torch.Generator(device=self.device)
        random.manual_seed(self.seed * 4096 + index * (MOST_RANKS + 1) + owner)
        matrix = self.torch.empty(rows, columns, dtype=dtype, device=self.device)
        return matrix.uniform_(-0.25, 0.25, generator=random)

    def load(self, problem):
        """`whole` is what the product alone has as A, of which `a` is this rank's.  Of a gather
        all ranks draw it alike, and so each knows what it shall get of the others' rows."""
        torch, rank = self.torch, self.meeting.rank
        self.whole = self.a = self.b = self.product = self.operands = self.outs = None
        torch.cuda.empty_cache()
        dtype = getattr(torch, DTYPES[problem.dtype])
        gathers = self.op == "ag-gemm"
        rows = problem.m // self.meeting.ranks if gathers else problem.m
        first = rank * rows if gathers else 0
        with self._on_slice():
            self.whole = self._drawn(problem.m, problem.k, dtype, 0, is_everyones=gathers)
            self.a = self.whole[first:first + rows]
            self.b = self._drawn(problem.n, problem.k, dtype, 1)
            self.operands = [(self.whole, self.b)]
            if self.op == "gemm-ar":
                used = self.summed[:problem.workspace_bytes(self.op, self.meeting.ranks)]
                self.product = used.view(dtype).view(problem.m, problem.n)
            else:
                self.product = torch.empty(problem.m, problem.n, dtype=dtype, device=self.device)
            self._finish()

    def negate(self):
        """Other inputs: what an earlier call left in memory is no longer right."""
        with self._on_slice():
            self.whole.neg_()

    def contributions(self, at, positions):
        """This rank's part of GEMM `at` of a call at (row, column), in float64."""
        left, right = self.operands[at]
        with self._on_slice():
            rows, columns = self._axes(positions)
            return (left[rows].double() * right[columns].double()).sum(dim=1).tolist()

    def call(self, method):
        with self._on_slice():
            self.outs = self._call(method)
            self._finish()

    def results(self, at, positions):
        """What the last call has at (row of this rank's output, column)."""
        with self._on_slice():
            rows, columns = self._axes(positions)
            return self.outs[at][rows, columns].double().tolist()

    def _axes(self, positions):
        return (self.torch.tensor(axis, device=self.device) for axis in zip(*positions))

    # ---- Calls -----------------------------------------------------------------------------

    def plan_for(self, sms):
        """How many SMs cuBLAS plans for; 0 leaves it to cuBLAS, which sees the whole GPU."""
        with self._on_slice():
            handle = self.torch.cuda.current_blas_handle()
            status = self._cublas.cublasSetSmCountTarget(ctypes.c_void_p(handle),
                                                         ctypes.c_int(sms))
        if status:
            raise RuntimeError(f"cublasSetSmCountTarget({sms}) gave {status}")

    def _call(self, method):
        """The result of each GEMM."""
        weight = self.b.t()
        if method == PRODUCT:
            return [self.torch.matmul(self.whole, weight, out=self.product)]
        [name] = OPERATORS[self.op][method]
        operator = getattr(self.torch.ops.symm_mem, name)
        if self.op == "gemm-rs":
            return [operator(self.a, weight, "sum", 0, self.group)]
        if self.op == "gemm-ar":
            self.torch.mm(self.a, weight, out=self.product)
            return [operator(self.product, "sum", self.group)]
        return operator(self.a, [weight], 0, self.group, return_A=False)[1]

    def timed(self, method, hold_us, calls=1):
        """(time on the GPU, host time of the calls, whether the gate opened too early), in us.
        The gate holds the stream until every rank's work is queued, then a barrier on the GPU
        starts all ranks together."""
        torch = self.torch
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self._on_slice():
            torch.cuda._sleep(int(hold_us * self.clock_mhz))
            self.gate.barrier(channel=GATE_CHANNEL)
            start.record()
            began = time.perf_counter()
            for _ in range(calls):
                self.outs = self._call(method)
            end.record()
            host_us = (time.perf_counter() - began) * 1e6
            early = start.query()
        self._wait_for(end)
        return start.elapsed_time(end) * 1000, host_us, early

    def _wait_for(self, event):
        end = time.monotonic() + self.meeting.timeout_s
        while not event.query():
            self.meeting.check()
            if time.monotonic() > end:
                raise RuntimeError(f"the GPU did not finish within {self.meeting.timeout_s:g} s")
            time.sleep(POLL_S)

    # ---- Who and where ---------------------------------------------------------------------

    def describe(self):
        torch, about = self.torch, self.properties
        return {"torch": torch.__version__, "commit": torch.version.git_version,
                "blas": os.path.basename(self._cublas._name), "sms_per_rank": self.sms,
                "notes": self.notes,
                "gpu": {"name": about.name, "sms": about.multi_processor_count,
                        "uuid": f"GPU-{about.uuid}", "arch": about.major * 10 + about.minor,
                        "clock_mhz": self.clock_mhz,
                        "driver_version": driver_version(),
                        "runtime_version": cuda_number(torch.version.cuda),
                        "memory_bytes": about.total_memory, "mig": False, "exclusive": False}}


def cuda_number(text):
    """13000 of 13.0, as CUDA counts."""
    major, minor = map(int, text.split(".")[:2])
    return major * 1000 + minor * 10


def driver_version():
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return version.value
