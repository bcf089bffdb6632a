"""Worlds under mpirun.  ENTWINE_HOSTS makes several hosts of this one: all that crosses their
borders goes through MPI."""
import importlib.util
import re
import shutil
from pathlib import Path

import pytest

from entwine import _mpi
from launched import mpirun, on_all

HERE = Path(__file__).resolve().parent

pytestmark = [
    pytest.mark.skipif(shutil.which("mpirun") is None,
                       reason="mpirun is not installed: MPI WAS NOT TESTED"),
    pytest.mark.skipif(_mpi.module_path() is None,
                       reason=f"{_mpi.NAME} was not built: MPI WAS NOT TESTED"),
]
needs_mpi4py = pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None,
                                  reason="mpi4py is not installed: IT WAS NOT TESTED")

# ---- Results ----

def test_results_across_hosts_are_exact():
    status, lines, errors = mpirun("""
for _ in range(2):  # MPI itself can be started only once
    with entwine.init() as world:
        say(world.rank, world.size, world.num_hosts, is_exact(world))
""")
    assert (status, lines) == (0, sorted(on_all("{rank} 4 2 True") * 2)), errors


def test_a_plan_across_hosts_is_exact_for_every_m():
    status, lines, errors = mpirun("""
with entwine.World.from_mpi() as world:
    plan = entwine.Plan(world, 300, 128, 64, "float16")
    whole = entwine.Plan(world, 300, 128, 64, "float16", op="gemm-ar")
    gather = entwine.Plan(world, 300, 128, 64, "float16", op="ag-gemm")
    right = True
    for m in (300, 1, 17):
        A, B = operands(world.rank, m, 128, 64, "float16")
        plan.set_weight(B)
        first, count = world.owned_rows(m)
        right &= bits(plan.gemm_rs(A)) == bits(
            expected(4, m, 128, 64, "float16")[first:first + count])
        right &= bits(whole.gemm_ar(A, B)) == bits(expected(4, m, 128, 64, "float16"))
        rows = operands(0, m, 128, 64, "float16")[0]  # of which every rank has its share
        product = (rows.astype("f4") @ B.T.astype("f4")).astype("f2")
        right &= bits(gather.ag_gemm(rows[first:first + count], B, m)) == bits(product)
    say(world.rank, right, world.allgather(b"x" * world.rank))
""")
    assert (status, lines) == (0, on_all("{rank} True [b'', b'x', b'xx', b'xxx']")), errors


def test_a_world_that_nobody_closes_ends_in_order():
    status, lines, errors = mpirun("world = entwine.init()\nsay(world.rank, is_exact(world))\n")
    assert (status, lines) == (0, on_all("{rank} True")), errors


@needs_mpi4py
def test_any_communicator_of_mpi4py():
    status, lines, errors = mpirun("""
from mpi4py import MPI
half = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank % 2)
for comm in (half, None, MPI.COMM_SELF):
    with entwine.World.from_mpi(comm) as world:
        say(MPI.COMM_WORLD.rank, world.size, world.num_hosts, is_exact(world))
MPI.COMM_WORLD.Barrier()  # the communicators stay the program's
""")
    assert status == 0, errors
    assert lines == sorted(on_all("{rank} 2 2 True") + on_all("{rank} 4 2 True") +
                           on_all("{rank} 1 1 True"))


def test_the_documented_program():
    text = (HERE.parents[1] / "docs/PYTHON.md").read_text()
    program, = re.findall(r"```python\n((?:(?!```).)*?mpirun.*?)```", text, re.S)
    status, lines, errors = mpirun(program, head="")
    assert (status, lines) == (0, on_all("rank {rank} of 4 on 2 hosts: (50, 256) 256.0")), errors


# ---- Ranks that fail ----

def fails(program, lines):
    """The ranks say the lines, and then mpirun fails: it does not hang, nor is all well.  The first
    rank to end ends them all, so each waits until everything was said."""
    words = ", ".join(map(repr, lines))
    status, said, errors = mpirun(f"end_after({words})\n{program}")
    assert status != 0 and said == lines, (status, said, errors)
    return errors


CATCH = """
    except (entwine.EntwineError, KeyboardInterrupt) as error:
        say(world.rank, type(error).__name__, getattr(error, "rank", None))
        sys.exit(0)  # MPI_Finalize would wait; the end must come all the same
"""


def test_a_rank_that_raises_ends_all_and_is_named():
    errors = fails("""
with entwine.init() as world:
    try:
        world.barrier()
        if world.rank == 2:
            raise ValueError("out of ideas")
        world.barrier()
""" + CATCH, [f"{rank} AbortedError 2" for rank in (0, 1, 3)])
    assert "ValueError: out of ideas" in errors


def test_an_exception_outside_of_with_ends_all_too():
    """It is told to the others while the program ends, so not all may have the time to speak."""
    status, lines, errors = mpirun("""
world = entwine.init()
if world.rank == 2:
    raise ValueError("out of ideas")
try:
    world.barrier()
except entwine.AbortedError as error:
    say(error.status, error.rank)
""")
    assert status != 0 and set(lines) <= {"EW_ERR_ABORTED 2"}, (status, lines, errors)
    assert "ValueError: out of ideas" in errors


def test_a_silent_rank_is_named_and_ended():
    fails("""
with entwine.init(timeout=2) as world:
    world.barrier()
    if world.rank == 3:
        time.sleep(600)
    try:
        is_exact(world)
""" + CATCH, [f"{rank} RankTimeoutError 3" for rank in range(3)])


def test_control_c_on_one_rank_ends_all():
    fails("""
with entwine.init() as world:
    world.barrier()
    if world.rank == 1:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    if world.rank == 3:
        time.sleep(600)  # so that the others wait
    try:
        world.barrier()
""" + CATCH, ["0 AbortedError 1", "1 KeyboardInterrupt None", "2 AbortedError 1"])


def test_ranks_that_disagree_when_they_join():
    status, lines, errors = mpirun("""
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
try:
    entwine.init(timeout=5 + rank // 3)
except entwine.MismatchError:
    say(rank, "refused")
with entwine.init() as world:  # what all refuse alike does no harm
    say(rank, is_exact(world))
""")
    assert (status, lines) == (0, sorted(on_all("{rank} refused") + on_all("{rank} True"))), errors


# ---- Threads and forks ----

def test_another_thread_is_refused():
    status, lines, errors = mpirun("""
with entwine.init() as world:
    plan = entwine.Plan(world, 64, 64, 64, "float32")
    def use():
        for attempt in (world.barrier, plan.wait, plan.close, world.close):
            try:
                attempt()
            except entwine.EntwineError as error:
                say(world.rank, "main thread only" in str(error))
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    say(world.rank, is_exact(world))
""")
    assert (status, lines) == (0, sorted(on_all("{rank} True") * 5)), errors


def test_a_world_of_another_thread_is_made_without_mpi():
    status, lines, errors = mpirun("""
def use():
    with entwine.init() as world:
        say(world.rank, is_exact(world), world._fabric)
thread = threading.Thread(target=use)
thread.start()
thread.join()
""")
    assert (status, lines) == (0, on_all("{rank} True None")), errors


def test_a_forked_child_leaves_mpi_alone():
    status, lines, errors = mpirun("""
with entwine.init() as world:
    child = os.fork()
    if child == 0:
        sys.exit(0 if world._handle is None else 1)
    say(world.rank, os.waitpid(child, 0)[1], is_exact(world))
""", ranks=2)
    assert (status, lines) == (0, on_all("{rank} 0 True", 2)), errors


# ---- Without the module ----

NOWHERE = "/no/such/module.so"


def test_without_the_module_ranks_of_one_host_meet():
    status, lines, errors = mpirun("""
with entwine.init() as world:
    say(world.rank, is_exact(world), world._fabric)
""", ENTWINE_MPI_MODULE=NOWHERE)
    assert (status, lines) == (0, on_all("{rank} True None")), errors


def test_without_the_module_ranks_that_do_not_meet_say_why():
    status, lines, errors = mpirun("""
os.environ["ENTWINE_JOB"] = str(os.getpid())  # as on several hosts
try:
    entwine.init(timeout=0.5)
except entwine.RankTimeoutError as error:
    say(f"MPI is not used: {os.environ['ENTWINE_MPI_MODULE']}" in str(error))
""", ENTWINE_MPI_MODULE=NOWHERE)
    assert (status, lines) == (0, ["True"] * 4), errors


@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is not None, reason="mpi4py is installed")
def test_neither_module_nor_mpi4py():
    status, lines, errors = mpirun("""
try:
    entwine.World.from_mpi()
except ImportError as error:
    say("pip install mpi4py" in str(error))
""", ENTWINE_MPI_MODULE=NOWHERE)
    assert (status, lines) == (0, ["True"] * 4), errors


@needs_mpi4py
def test_ranks_decide_together_whether_the_module_serves():
    status, lines, errors = mpirun("""
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 3:
    os.environ["ENTWINE_MPI_MODULE"] = "/no/such/module.so"
with entwine.init() as world:
    say(world.rank, is_exact(world), world._fabric)
""")
    assert (status, lines) == (0, on_all("{rank} True None")), errors
