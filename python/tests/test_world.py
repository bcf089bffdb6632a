"""Ranks: how they meet, and how they end when something goes wrong."""
import gc
import multiprocessing.util
import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import entwine
from entwine import _interrupt, _spawn, _world

WAIT = 60  # seconds that a world waits for a silent rank: far longer than these tests take


def test_a_world_of_one(world):
    assert (world.rank, world.size) == (0, 1)
    world.barrier()
    assert world.allgather(b"abc") == [b"abc"]


def place(world):
    world.barrier()
    return world.rank, world.size, world.allgather(b"x" * world.rank)


METHODS = pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])


@METHODS
def test_spawn_returns_in_rank_order(method):
    assert entwine.spawn(3, place, method=method, timeout=60) == [
        (rank, 3, [b"", b"x", b"xx"]) for rank in range(3)]


def variables_of(world):
    return {name: value for name, value in os.environ.items() if name.startswith("ENTWINE_TEST_")}


@METHODS
def test_ranks_have_the_variables_of_the_call(method, monkeypatch):
    for given in {"ENTWINE_TEST_A": "1"}, {"ENTWINE_TEST_B": "2"}:
        with monkeypatch.context() as variables:
            for name, value in given.items():
                variables.setenv(name, value)
            assert entwine.spawn(1, variables_of, method=method, timeout=60) == [given]


def test_owned_rows_cover_everything_once():
    for size in (1, 2, 3, 7):
        for m in (0, 1, 6, 7, 100):
            rows = []
            for rank in range(size):
                first, count = entwine.owned_rows(m, size, rank)
                rows += range(first, first + count)
            assert rows == list(range(m))


# ---- Ranks that others started ----

def start_ranks(size, code, **variables):
    """Processes that know their place from variables alone; their outputs in rank order."""
    ranks = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "ENTWINE_RANK": str(rank),
                                   "ENTWINE_WORLD_SIZE": str(size), "ENTWINE_JOB": str(os.getpid()),
                                   **variables})
             for rank in range(size)]
    return [rank.communicate(timeout=60)[0] for rank in ranks]


def test_launched_ranks_meet_twice():
    code = ("import entwine\n"
            "for _ in range(2):\n"
            "    with entwine.init() as world:\n"
            "        world.barrier(); print(world.rank, world.size)\n")
    assert start_ranks(3, code) == [f"{rank} 3\n" * 2 for rank in range(3)]


def test_a_launched_rank_without_peers_gives_up():
    code = ("import entwine\n"
            "try: entwine.init(timeout=0.3)\n"
            "except entwine.RankTimeoutError as error: print(error.rank)\n")
    variables = {"ENTWINE_RANK": "1", "ENTWINE_WORLD_SIZE": "2", "ENTWINE_JOB": "nobody"}
    alone = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                           timeout=60, env={**os.environ, **variables})
    assert alone.stdout == "0\n"
    variables["ENTWINE_RANK"] = "0"
    alone = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                           timeout=60, env={**os.environ, **variables})
    assert alone.stdout == "1\n"


@pytest.mark.parametrize("given, missing", [("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")])
def test_half_of_a_place_is_refused(monkeypatch, given, missing):
    monkeypatch.setenv(f"ENTWINE_{given}", "1")
    monkeypatch.delenv(f"ENTWINE_{missing}", raising=False)
    with pytest.raises(entwine.UnsupportedError,
                       match=f"ENTWINE_{given} is set, but ENTWINE_{missing} is not\n  fix: "):
        entwine.init()


# ---- Creation that is cancelled ----

@pytest.mark.parametrize("rank", [0, 1])
def test_a_launched_rank_without_peers_is_cancelled(monkeypatch, rank):
    for name, value in (("RANK", rank), ("WORLD_SIZE", 2), ("JOB", f"cancelled-{os.getpid()}")):
        monkeypatch.setenv(f"ENTWINE_{name}", str(value))
    cancellation = entwine.Cancellation()
    threading.Timer(0.2, cancellation.cancel).start()
    with pytest.raises(entwine.AbortedError, match=f"rank {rank} gave up") as caught:
        entwine.init(timeout=WAIT, cancel=cancellation)
    assert caught.value.rank == rank and cancellation.cancelled
    with pytest.raises(entwine.AbortedError):
        entwine.init(timeout=WAIT, cancel=cancellation)


def join_and_say(rank, gather, say, **options):
    """What the creation of a world of two ranks raised."""
    try:
        entwine.World(rank, 2, gather, **options).close()
        say.send("a world")
    except entwine.EntwineError as error:
        say.send((type(error).__name__, error.rank))


def test_a_rank_that_waits_inside_the_library_is_cancelled():
    """Rank 1 knows rank 0, but does not come to it."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    heard, say = context.Pipe(duplex=False)

    def come_late(mine):
        theirs.send_bytes(mine)
        both = [theirs.recv_bytes(), mine]
        theirs.recv_bytes()  # until rank 0 is out
        return both

    other = context.Process(target=join_and_say, args=(1, come_late, say), daemon=True,
                            kwargs={"timeout": WAIT})
    other.start()
    cancellation = entwine.Cancellation()

    def meet(mine):
        ours.send_bytes(mine)
        threading.Timer(0.2, cancellation.cancel).start()
        return [mine, ours.recv_bytes()]

    with pytest.raises(entwine.AbortedError, match="rank 0 gave up") as caught:
        entwine.World(0, 2, meet, timeout=WAIT, cancel=cancellation)
    assert caught.value.rank == 0
    ours.send_bytes(b"go on")
    assert heard.poll(60) and heard.recv()[1] == 0
    other.join(60)


def test_cancel_is_a_cancellation(world):
    for wrong in (True, threading.Event()):
        with pytest.raises(entwine.ArgumentTypeError, match="entwine.Cancellation"):
            entwine.World(cancel=wrong)
    with pytest.raises(entwine.ArgumentError, match="takes no cancel"):
        entwine.spawn(2, die, None, cancel=entwine.Cancellation())
    cancellation = entwine.Cancellation()
    with entwine.World(cancel=cancellation) as other:
        cancellation.cancel()
        other.barrier()  # it exists
    assert "not cancelled" in repr(entwine.Cancellation())


class Communicator:
    """As mpi4py's, of one rank."""

    def Get_rank(self):
        return 0

    def Get_size(self):
        return 1

    def allgather(self, value):
        return [value]


def test_mpi_communicators():
    with entwine.World.from_mpi(Communicator()) as world:
        assert world.size == 1


def test_an_exception_in_allgather_comes_out():
    def allgather(mine):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        entwine.World(0, 2, allgather)
    with pytest.raises(entwine.ArgumentError, match="allgather returned parts"):
        entwine.World(0, 2, lambda mine: [mine])


# ---- Ranks that fail ----

def die(world, how):
    if world.rank == 1:
        how()
    world.barrier()
    world.barrier()


def go_on_without(world, seconds):
    """Rank 1 dies, then the last one that is left but one."""
    old_rank, origins, worlds = world.rank, [], []
    try:
        for victim in (1, 2):
            if old_rank == victim:
                kill_oneself()
            with pytest.raises(entwine.PeerDiedError):
                while True:
                    world.barrier()
            world = world.shrink()
            worlds.append(world)
            origins.append([int(part) for part in world.allgather(str(old_rank).encode())])
        time.sleep(seconds)
        plan = entwine.Plan(world, max_m=6, n=8, k=4, dtype="float32")
        C = plan.gemm_rs(np.ones((6, 4), np.float32), np.ones((8, 4), np.float32))
        return world.rank, origins, float(C.sum())
    finally:
        for made in worlds:
            made.close()


def test_ranks_go_on_after_deaths():
    """For longer than spawn gives to ranks that only unwind."""
    with pytest.raises(entwine.RankError) as caught:
        entwine.spawn(4, go_on_without, 6, method="fork")
    origins = [[0, 2, 3], [0, 3]]
    assert caught.value.results == [(0, origins, 3 * 8 * 8.0), None, None, (1, origins, 3 * 8 * 8.0)]


def test_a_world_without_a_fault_does_not_shrink():
    with entwine.World() as world:
        with pytest.raises(entwine.ArgumentError, match="no fault"):
            world.shrink()


def test_a_plan_has_its_own_timeout():
    with entwine.World() as world:
        plan = entwine.Plan(world, max_m=4, n=8, k=4, dtype="float32")
        plan.set_timeout(0.5)
        plan.set_timeout(None)
        for wrong in (0, -1, float("nan"), float("inf")):
            with pytest.raises(entwine.ArgumentError, match="timeout"):
                plan.set_timeout(wrong)
        assert plan.gemm_rs(np.ones((4, 4), np.float32), np.ones((8, 4), np.float32)).shape == (4, 8)


def kill_oneself():
    os.kill(os.getpid(), signal.SIGKILL)


def exit_with_3():
    os._exit(3)


def raise_value_error():
    raise ValueError("out of ideas")


@pytest.mark.parametrize("how, exitcode, says", [
    (kill_oneself, -9, "rank 1 died: killed by signal 9"),
    (exit_with_3, 3, "rank 1 died: exit code 3"),
    (raise_value_error, None, "rank 1 failed: ValueError: out of ideas"),
])
def test_a_failing_rank_ends_all_and_is_named(how, exitcode, says):
    with pytest.raises(entwine.RankError) as caught:
        entwine.spawn(3, die, how, timeout=WAIT, world_timeout=WAIT)
    assert caught.value.rank == 1 and caught.value.exitcode == exitcode
    assert str(caught.value).startswith(says)


def die_or_leave_with_an_heir(world, folder, how):
    """A child that holds what its rank held, for longer than anybody waits."""
    heir = os.fork()
    if heir == 0:
        time.sleep(WAIT)
        os._exit(0)
    (folder / str(heir)).touch()
    if how is not None:
        how()


@METHODS
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_children_that_ranks_leave_behind_are_not_waited_for(method, num_ranks, tmp_path):
    try:
        with pytest.raises(entwine.RankError, match="died: killed by signal 9"):
            entwine.spawn(num_ranks, die_or_leave_with_an_heir, tmp_path, kill_oneself,
                          method=method)
        assert entwine.spawn(num_ranks, die_or_leave_with_an_heir, tmp_path, None,
                             method=method) == [None] * num_ranks
    finally:
        for heir in tmp_path.iterdir():
            os.kill(int(heir.name), signal.SIGKILL)


def see_death(world):
    if world.rank == 1:
        world.barrier()
        os._exit(0)
    world.barrier()
    try:
        world.barrier()
    except entwine.PeerDiedError as error:
        print(error.rank, error.status, error.code, flush=True)


def test_survivors_see_who_died(capfd):
    with pytest.raises(entwine.RankError, match="rank 1 died"):
        entwine.spawn(2, see_death, timeout=WAIT, world_timeout=WAIT)
    assert "1 EW_ERR_PEER_DIED -9" in capfd.readouterr().out


def write_at_exit(path, seconds):
    time.sleep(seconds)
    path.touch()


def leave_slowly(world, folder, seconds):
    multiprocessing.util.Finalize(None, write_at_exit, (
        folder / str(world.rank), seconds if world.rank == 1 else 0), exitpriority=1)
    return world.rank


def test_ranks_may_take_their_time_to_exit(tmp_path, monkeypatch, recwarn):
    assert entwine.spawn(2, leave_slowly, tmp_path, 2.0, method="fork") == [0, 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"] and not recwarn.list
    monkeypatch.setattr(_spawn, "_UNWIND_S", 0.5)
    with pytest.warns(RuntimeWarning, match="rank 1 was killed(.|\n)*fix: do in the function"):
        assert entwine.spawn(2, leave_slowly, tmp_path, 100.0, method="fork") == [0, 1]


def stay_silent(world):
    if world.rank == 1:
        time.sleep(2)
    try:
        world.barrier()
    except entwine.RankTimeoutError as error:
        return error.rank


def test_a_silent_rank_is_named():
    assert entwine.spawn(2, stay_silent, timeout=WAIT, world_timeout=0.5) == [1, 1]


def sleep_on_rank_1(world):
    time.sleep(WAIT * world.rank)


def test_the_whole_run_can_be_limited():
    with pytest.raises(entwine.RankTimeoutError, match="rank 1 was still running") as caught:
        entwine.spawn(2, sleep_on_rank_1, timeout=10)  # enough for rank 0 to start and end
    assert caught.value.rank == 1


def disagree(world):
    try:
        entwine.Plan(world, 64, 64 + world.rank, 64, "float32")
    except entwine.MismatchError as error:
        return error.rank


def test_ranks_that_disagree():
    assert entwine.spawn(2, disagree, timeout=60) == [1, 0]


def give_a_lock(world):
    return threading.Lock()


def test_a_result_that_cannot_be_sent():
    with pytest.raises(entwine.RankError, match="cannot be sent"):
        entwine.spawn(1, give_a_lock, timeout=60)


@METHODS
def test_ranks_die_with_their_parent(method, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text("import entwine, os, time\n"
                      "def rank_main(world):\n"
                      "    os.write(1, b'%d\\n' % os.getpid())\n"
                      "    time.sleep(600)\n"
                      "if __name__ == '__main__':\n"
                      f"    entwine.spawn(2, rank_main, method={method!r})\n")
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    children = [int(parent.stdout.readline()) for _ in range(2)]
    parent.kill()
    parent.wait(timeout=30)
    for _ in range(200):
        alive = [child for child in children if os.path.exists(f"/proc/{child}/exe")]
        if not alive:
            break
        time.sleep(0.1)
    assert not alive


# ---- Ctrl-C ----

def await_file(path):
    """Ranks that must not meet in the world tell each other by files."""
    give_up_at = time.monotonic() + WAIT
    while not path.exists():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def interrupt_soon(told):
    """Ctrl-C in half a second; later, when a call would have been aborted, the file."""
    def interrupt():
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1.0)
        told.touch()

    threading.Thread(target=interrupt).start()


def wait_in_barrier(world):
    world.barrier()


def wait_in_gemm_rs(world):
    entwine.gemm_rs(np.zeros((256, 64), "f4"), np.zeros((128, 64), "f4"), world)


def wait_and_interrupt(world, wait, told):
    try:
        if world.rank == 0:
            interrupt_soon(told.with_suffix(".unused"))
            wait(world)
        else:
            await_file(told)
            world.barrier()
    except KeyboardInterrupt:
        told.touch()
        return "interrupted"
    except entwine.AbortedError as error:
        return f"rank {error.rank} aborted"


@pytest.mark.parametrize("wait", [wait_in_barrier, wait_in_gemm_rs])
def test_control_c_ends_a_call_that_waits(wait, tmp_path):
    assert entwine.spawn(2, wait_and_interrupt, wait, tmp_path / "told", timeout=WAIT,
                         world_timeout=2 * WAIT) == ["interrupted", "rank 0 aborted"]


def wait_with_a_handler(world, told):
    heard = []
    signal.signal(signal.SIGINT, lambda *_: heard.append("handler"))
    if world.rank == 0:
        interrupt_soon(told)
    else:
        await_file(told)
    world.barrier()
    return heard


def test_a_handler_of_ones_own_is_left_to_decide(tmp_path):
    assert entwine.spawn(2, wait_with_a_handler, tmp_path / "told", timeout=WAIT) == [
        ["handler"], []]


def test_the_wakeup_descriptor_is_given_back(world):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    try:
        world.barrier()
    finally:
        assert signal.set_wakeup_fd(before) == writer
        os.close(reader)
        os.close(writer)


def catch_and_wait(world, told):
    """Ctrl-C between calls ends the program's own work, and not the call that comes next."""
    world.barrier()  # from now on the descriptor stays
    if world.rank == 1:
        await_file(told)
        world.barrier()
        return "went on"
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(WAIT)
    except KeyboardInterrupt:
        threading.Timer(2 * _interrupt.LOOK_S + 2 * _interrupt.GRACE_S, told.touch).start()
        world.barrier()
    return "went on"


def test_control_c_between_calls_leaves_the_next_one_alone(tmp_path):
    assert entwine.spawn(2, catch_and_wait, tmp_path / "told", timeout=WAIT) == ["went on"] * 2


def interrupt_the_child(world):
    """A child that was forked has its own signals."""
    world.barrier()
    if world.rank == 0:
        with multiprocessing.get_context("fork").Pool(1) as pool:
            heard = pool.apply(os_kill_self)
        time.sleep(0.1)
        assert heard == "interrupted" and _interrupt._watch.signals() == 0
    world.barrier()
    return True


def os_kill_self():
    assert signal.set_wakeup_fd(-1) == -1
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(WAIT)
    except KeyboardInterrupt:
        return "interrupted"


def test_a_child_does_not_interrupt_its_parent():
    assert entwine.spawn(2, interrupt_the_child, timeout=WAIT) == [True, True]


def hear_through_another(world):
    """Somebody else's descriptor hears of signals during a call too, and Ctrl-C ends it."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    time.sleep(_interrupt.KEEP_S)
    try:
        if world.rank == 0:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            world.barrier()
        time.sleep(1)
        world.barrier()
    except (KeyboardInterrupt, entwine.AbortedError) as error:
        assert signal.set_wakeup_fd(-1) == writer
        return type(error).__name__, os.read(reader, 10) if world.rank == 0 else None


def test_the_owner_of_the_wakeup_descriptor_is_told():
    assert entwine.spawn(2, hear_through_another, timeout=WAIT) == [
        ("KeyboardInterrupt", bytes([signal.SIGINT])), ("AbortedError", None)]


def test_many_signals():
    """More than there is room for."""
    script = f"""
import os, signal, sys
from entwine import _interrupt
signal.signal(signal.SIGUSR1, lambda *_: None)
watch = _interrupt._begin()
watch.take()
for _ in range(3 * watch.ROOM):
    os.kill(os.getpid(), signal.SIGUSR1)
    assert 0 <= watch.signals() <= watch.ROOM // 2
before = watch.signals()
for _ in range(5):
    os.kill(os.getpid(), signal.SIGUSR1)
assert (watch.signals() - before) % watch.ROOM <= 5
print("good")
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "good\n", ran.stderr


@METHODS
def test_control_c_in_the_parent_of_spawn(method, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text("import entwine, os, time\n"
                      "def rank_main(world):\n"
                      "    os.write(1, b'ready\\n')\n"
                      "    time.sleep(600)\n"
                      "if __name__ == '__main__':\n"
                      f"    try: entwine.spawn(2, rank_main, method={method!r})\n"
                      "    except KeyboardInterrupt: print('ended')\n")
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert [parent.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    parent.send_signal(signal.SIGINT)
    assert parent.communicate(timeout=30)[0] == "ended\n"


# ---- Threads and forks ----

def use_from_two_threads(world, told):
    if world.rank == 1:
        await_file(told)
        world.barrier()
        return None
    errors = []

    def second():
        while not world._in_call:
            time.sleep(0.01)
        for attempt in (world.barrier, world.close):
            try:
                attempt()
            except entwine.EntwineError as error:
                errors.append(str(error))
        told.touch()

    thread = threading.Thread(target=second)
    thread.start()
    world.barrier()
    thread.join()
    return errors


def test_one_thread_at_a_time(tmp_path):
    errors, _ = entwine.spawn(2, use_from_two_threads, tmp_path / "told", timeout=WAIT)
    assert len(errors) == 2 and all("one thread at a time" in error for error in errors)


class Interrupted(BaseException):
    pass


def test_an_interrupt_between_two_bytecodes_leaves_the_world_usable(world):
    """Python may raise KeyboardInterrupt behind every call that a function makes."""
    def interrupt(*_):
        if is_armed:
            raise Interrupted

    rng, is_armed, before = random.Random(1), False, signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(1500):
            try:
                is_armed = True
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 2e-4))
                while True:
                    world.barrier()
            except Interrupted:
                is_armed = False
            world.barrier()
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", ["world", "weight", "plan"])
def test_what_an_interrupt_keeps_from_its_owner_is_freed(world, monkeypatch, kind):
    create, made = getattr(_world.lib, f"ew_{kind}_create"), []

    def create_and_interrupt(*arguments):
        assert create(*arguments) == 0
        made.append(arguments[-1].value)
        raise Interrupted

    make = {"world": entwine.World,
            "weight": lambda: entwine.Weight(world, np.zeros((8, 8), "f4")),
            "plan": lambda: entwine.Plan(world, 8, 8, 8, "float32")}[kind]
    destroy, freed = getattr(_world.lib, f"ew_{kind}_destroy"), []
    monkeypatch.setattr(_world.lib, f"ew_{kind}_create", create_and_interrupt)
    monkeypatch.setattr(_world.lib, f"ew_{kind}_destroy",
                        lambda handle: (freed.append(handle), destroy(handle)))
    with pytest.raises(Interrupted):
        make()
    gc.collect()
    assert freed == made and not world._plan_handles and not world._weight_handles


def test_a_forked_child_cannot_use_its_parents_world(world):
    plan = entwine.Plan(world, 8, 8, 8, "float32")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for use in (world.barrier, plan.explain):
                try:
                    use()
                except entwine.ArgumentError as error:
                    os.write(writer, b"refused\n" if "forked" in str(error) else b"odd\n")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    assert os.read(reader, 100) == b"refused\nrefused\n"
    os.close(reader)
    world.barrier()


def workers_of_a_rank(world):
    """As a DataLoader has them."""
    import multiprocessing
    context = multiprocessing.get_context("spawn")
    worker = context.Process(target=abs, args=(world.rank,), daemon=True)
    worker.start()
    worker.join(60)
    return worker.exitcode


def test_a_rank_of_spawn_can_have_children():
    assert entwine.spawn(2, workers_of_a_rank, timeout=100) == [0, 0]
