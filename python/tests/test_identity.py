"""Jobs: their ranks meet among themselves, every rank is one process, and no other user is in the
way."""
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import entwine
from entwine import _meeting_place
from entwine._rendezvous import Rendezvous
from entwine._timer import Timer

LIMIT_S = 60
STRANGER = 54321  # a user that nobody is
LAUNCHER_VARIABLES = ("ENTWINE_", "OMPI_", "PMI_", "PMIX_", "PALS_", "SLURM_", "TORCHELASTIC_",
                      "MASTER_", "RANK", "WORLD_SIZE")

PROGRAM = """
import os, sys, time
import entwine
def say(*words):  # in one piece, also where print makes two and another rank has the same pipe
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
try:
    with entwine.init(timeout=float(os.environ.get("PATIENCE", 20))) as world:
        say(b" ".join(world.allgather(os.environ["TAG"].encode())).decode())
        if "LINGER" in os.environ:
            world.close()
            sys.stdin.read()
except entwine.EntwineError as error:
    say(type(error).__name__, error)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A meeting place of the test's own."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "entwine"


def environment(**variables):
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(LAUNCHER_VARIABLES) or name == "ENTWINE_LIBRARY"}
    return {**kept, **variables}


def start(*prefix, tag="", umask=-1, **variables):
    """A process that prints the tags of the ranks that it meets."""
    return subprocess.Popen([*prefix, sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True, umask=umask,
                            env=environment(TAG=tag, **variables))


def output(process):
    try:
        return process.communicate(timeout=LIMIT_S)[0]
    finally:
        process.kill()


def by_hand(rank, size=2, job="job", **variables):
    return start(tag=f"{job}{rank}", ENTWINE_RANK=str(rank), ENTWINE_WORLD_SIZE=str(size),
                 ENTWINE_JOB=job, **variables)


def files(folder):
    return {path.name for path in folder.iterdir()} - {"lock"}


def await_files(folder, claims=0, sockets=0):
    """Until so many processes are ranks, and so many listen."""
    give_up_at = time.monotonic() + LIMIT_S
    while True:
        names = files(folder) if folder.exists() else set()
        there = {name for name in names if "meeting" in name}
        if len(names - there) >= claims and len(there) >= sockets:
            return
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


# ---- Two jobs at once ----

LAUNCHERS = {
    "torchrun": dict(rank="RANK", size="WORLD_SIZE", TORCHELASTIC_RUN_ID="{job}",
                     TORCHELASTIC_RESTART_COUNT="0", MASTER_ADDR="localhost", MASTER_PORT="29500"),
    "torchrun again": dict(rank="RANK", size="WORLD_SIZE", TORCHELASTIC_RUN_ID="none",
                           TORCHELASTIC_RESTART_COUNT="{job}", MASTER_ADDR="localhost",
                           MASTER_PORT="29500"),
    "srun": dict(rank="SLURM_PROCID", size="SLURM_NTASKS", SLURM_JOB_ID="7", SLURM_STEP_ID="{job}"),
    "mpirun of Open MPI": dict(rank="OMPI_COMM_WORLD_RANK", size="OMPI_COMM_WORLD_SIZE",
                               PMIX_NAMESPACE="1", PMIX_SERVER_URI2="{job}"),
    "mpirun of MPICH": dict(rank="PMI_RANK", size="PMI_SIZE", PMI_PORT="localhost:{job}"),
    "ENTWINE_JOB": dict(rank="RANK", size="WORLD_SIZE", ENTWINE_JOB="{job} / {job}"),
}


def start_rank(launcher, job, rank):
    variables = {name: value.format(job=job) for name, value in LAUNCHERS[launcher].items()}
    variables[variables.pop("rank")] = str(rank)
    variables[variables.pop("size")] = "2"
    return start(tag=f"{job}{rank}", ENTWINE_MPI_MODULE="/no/such/module.so", **variables)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_jobs_at_once_stay_apart(launcher, folder):
    # Rank 0 of one and rank 1 of the other come first.
    first = [start_rank(launcher, "A", 0), start_rank(launcher, "B", 1)]
    time.sleep(0.5)
    ranks = [first[0], start_rank(launcher, "A", 1), start_rank(launcher, "B", 0), first[1]]
    assert [output(rank) for rank in ranks] == ["A0 A1\n"] * 2 + ["B0 B1\n"] * 2
    assert files(folder) == set()


@pytest.mark.parametrize("variables", [
    ("RANK", "WORLD_SIZE"), ("ENTWINE_RANK", "ENTWINE_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")])
def test_a_parent_does_not_identify_a_job(variables):
    rank, size = variables
    settings = {"ENTWINE_MPI_MODULE": "/no/such/module.so", "MASTER_ADDR": "localhost",
                "MASTER_PORT": "29500", rank: "1", size: "2"}
    refused = output(start(**settings))
    assert refused.startswith(f"ArgumentError {rank} gives this process's rank, but nothing tells")
    assert "fix: set ENTWINE_JOB" in refused
    settings.update({rank: "0", size: "1"})
    assert output(start(tag="alone", **settings)) == "alone\n"


HYDRA = {"PMI_SIZE": "2", "PMI_FD": "6", "ENTWINE_MPI_MODULE": "/no/such/module.so"}
TWO_RANKS = """
start() { TAG=$JOB$1 PMI_RANK=$1 "$PYTHON" -c "$PROGRAM" & }
start $1; sleep 0.5; start $2; wait
"""


def start_two_ranks(*prefix, job, first):
    return subprocess.Popen([*prefix, "sh", "-c", TWO_RANKS, "sh", str(first), str(1 - first)],
                            stdout=subprocess.PIPE, text=True,
                            env=environment(PYTHON=sys.executable, PROGRAM=PROGRAM, JOB=job,
                                            **HYDRA))


def test_children_of_two_hydras_stay_apart(folder):
    jobs = [start_two_ranks(job="A", first=0), start_two_ranks(job="B", first=1)]
    assert [output(job) for job in jobs] == ["A0 A1\n" * 2, "B0 B1\n" * 2]


def test_equal_pids_of_two_namespaces_stay_apart(folder):
    unshare = ("unshare", "--pid", "--fork")
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"]).returncode:
        pytest.skip("pid namespaces cannot be made here")
    jobs = [start_two_ranks(*unshare, job="A", first=0),
            start_two_ranks(*unshare, job="B", first=1)]
    assert [output(job) for job in jobs] == ["A0 A1\n" * 2, "B0 B1\n" * 2]


def test_a_pid_that_came_back_is_another_parent():
    code = "from entwine import _job; print(_job.name('PMI_RANK'))"
    names = [subprocess.run(["sh", "-c", f'"$PYTHON" -c "{code}"; true'], text=True,
                            stdout=subprocess.PIPE, timeout=LIMIT_S,
                            env=environment(PYTHON=sys.executable, **HYDRA)).stdout.split()
             for _ in range(2)]
    assert all(name[1].startswith("started=") for name in names)
    assert names[0][1] != names[1][1]


# ---- Every rank is one process ----

def test_a_second_claimant_is_refused_before_rank_0_comes(folder):
    first = by_hand(1)
    await_files(folder, claims=1)
    refused = output(by_hand(1))
    assert refused.startswith("ArgumentError two processes say that they are rank 1 of the job "
                              f"ENTWINE_JOB=job: pid {first.pid} came first\n  fix:")
    assert output(by_hand(0)) == "job0 job1\n"
    assert output(first) == "job0 job1\n"
    assert files(folder) == set()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_second_claimant_is_refused_as_long_as_the_first_lives(rank, folder):
    ranks = [by_hand(0, LINGER="1"), by_hand(1, LINGER="1")]
    assert [process.stdout.readline() for process in ranks] == ["job0 job1\n"] * 2
    assert f"rank {rank} of the job ENTWINE_JOB=job: pid {ranks[rank].pid} came" in output(
        by_hand(rank))
    for process in ranks:
        output(process)
    again = [by_hand(0), by_hand(1)]
    assert [output(process) for process in again] == ["job0 job1\n"] * 2


def test_killed_ranks_leave_nothing_that_harms(folder):
    for _ in range(2):
        killed = [by_hand(rank, size=3) for rank in (0, 1)]  # rank 0 listens
        await_files(folder, claims=2, sockets=1)
        for process in killed:
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=LIMIT_S)
    assert any("meeting" in name for name in files(folder))
    assert [output(process) for process in [by_hand(0), by_hand(1)]] == ["job0 job1\n"] * 2
    assert files(folder) == set()


def test_a_forked_child_is_not_the_rank(folder):
    _meeting_place.member("fork", 0, Timer(LIMIT_S))
    child = os.fork()
    if child == 0:
        try:
            _meeting_place.leave_all()
            _meeting_place.member("fork", 0, Timer(LIMIT_S))
        except entwine.ArgumentError as error:
            os._exit(0 if f"pid {os.getppid()} came first" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert len(files(folder)) == 1
    _meeting_place.leave_all()
    assert files(folder) == set()


def test_ranks_that_are_frozen_while_they_meet_go_on(folder):
    """Rank 0 waits in vain for longer than its timeout, but most of that time it is stopped; rank 2
    waits for rank 0's answer."""
    ranks = [by_hand(0, 3, PATIENCE="3")]
    await_files(folder, claims=1, sockets=1)
    ranks.append(by_hand(2, 3, PATIENCE="3"))
    await_files(folder, claims=2, sockets=1)
    place = _meeting_place.Folder()
    with place.locked(Timer(LIMIT_S)):  # or a stopped rank might hold the lock that rank 1 needs
        for process in ranks:
            process.send_signal(signal.SIGSTOP)
    os.close(place.fd)
    time.sleep(4)
    ranks.append(by_hand(1, 3, PATIENCE="3"))
    await_files(folder, claims=3, sockets=1)
    for process in ranks[:2]:
        process.send_signal(signal.SIGCONT)
    assert {output(process) for process in ranks} == {"job0 job1 job2\n"}


def test_a_lock_that_is_held_ends_at_the_timeout(folder):
    place = _meeting_place.Folder()
    with place.locked(Timer(LIMIT_S)):
        assert output(by_hand(0, PATIENCE="0.3")).startswith("RankTimeoutError rank 0 waited 0.3 s")
    os.close(place.fd)


# ---- The job's id ----

def meet(job):
    """What two ranks, here threads, say when they meet."""
    said = [None, None]

    def join(rank):
        try:
            said[rank] = Rendezvous(rank, 2, job, 10)(b"r%d" % rank)
        except entwine.EntwineError as error:
            said[rank] = error

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    return said


@pytest.fixture
def members(folder):
    assert meet("threads") == [[b"r0", b"r1"]] * 2
    yield [_meeting_place.member("threads", rank, Timer(LIMIT_S)) for rank in range(2)]
    _meeting_place.leave_all()


def test_ranks_of_a_job_keep_its_id(members):
    first = members[0].id
    assert len(first) == 16 and first == members[1].id
    assert meet("threads") == [[b"r0", b"r1"]] * 2
    assert members[0].id == members[1].id == first


@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize("job_id, says", [
    (b"another job's id", "has the job id 616e6f74686572206a6f622773206964"),
    (None, "has met no rank before")])
def test_ranks_that_know_another_job_are_refused(odd, job_id, says, members):
    right = members[1 - odd].id.hex()
    members[odd].id = job_id
    for rank, error in enumerate(meet("threads")):
        assert isinstance(error, entwine.MismatchError) and error.rank == 1 - rank
        assert f"rank {odd} (pid {os.getpid()}) {says}" in str(error)
        assert f"rank {1 - odd} (pid {os.getpid()}) has the job id {right}" in str(error)


# ---- The folder ----

def public_folder(monkeypatch, path):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(_meeting_place, "_PUBLIC", str(path))
    return path / f"entwine-{os.geteuid()}"


def place():
    found = _meeting_place.Folder()
    os.close(found.fd)
    return Path(found.path)


def test_paths_longer_than_a_sockets(tmp_path):
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(mode=0o700, parents=True)
    ranks = [by_hand(rank, XDG_RUNTIME_DIR=str(deep)) for rank in range(2)]
    assert [output(rank) for rank in ranks] == ["job0 job1\n"] * 2


def test_a_runtime_folder_that_others_can_enter_is_left_alone(tmp_path, monkeypatch):
    own = public_folder(monkeypatch, tmp_path)
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    runtime.chmod(0o755)
    (tmp_path / "link").symlink_to(runtime)
    for odd in (runtime, tmp_path / "link", tmp_path / "missing", "relative", ""):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(odd))
        assert place() == own
    assert own.stat().st_mode & 0o777 == 0o700 and not list(runtime.iterdir())


@pytest.mark.parametrize("take", [
    lambda path: path.touch(),
    lambda path: path.mkdir() or path.chmod(0o777),
    lambda path: path.symlink_to("elsewhere"),
    lambda path: path.symlink_to("mine")])
def test_a_taken_name_is_stepped_around_by_all_alike(take, tmp_path, monkeypatch):
    taken = public_folder(monkeypatch, tmp_path)
    (tmp_path / "mine").mkdir(mode=0o700)
    take(taken)
    (tmp_path / f"{taken.name}-00000000").mkdir(mode=0o755)
    first = place()
    assert first.name.startswith(f"{taken.name}-") and first.stat().st_mode & 0o777 == 0o700
    assert [place() for _ in range(3)] == [first] * 3
    assert not list((tmp_path / "mine").iterdir())


def test_without_any_folder(tmp_path, monkeypatch):
    public_folder(monkeypatch, tmp_path / "missing")
    with pytest.raises(entwine.EntwineError, match="no folder to meet in.*\n  fix: set XDG_"):
        place()


def as_stranger():
    """What starts a command as another user; skips where that cannot be."""
    prefix = ("setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups")
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv, to be another user")
    if subprocess.run([*prefix, sys.executable, "-c", "import entwine"], env=environment(),
                      stderr=subprocess.DEVNULL, timeout=LIMIT_S).returncode:
        pytest.skip("another user cannot read the package here")
    return prefix


@pytest.fixture
def clean_public_folder(monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)

    def remove():
        for path in Path("/tmp").glob(f"entwine-{STRANGER}*"):
            shutil.rmtree(path)

    remove()
    yield Path(f"/tmp/entwine-{STRANGER}")
    remove()


def test_another_user_cannot_take_the_name(clean_public_folder):
    stranger = as_stranger()
    clean_public_folder.mkdir()
    clean_public_folder.chmod(0o777)  # root is another user here
    ranks = [start(*stranger, tag=f"r{rank}", RANK=str(rank), WORLD_SIZE="2", ENTWINE_JOB="job")
             for rank in range(2)]
    assert [output(rank) for rank in ranks] == ["r0 r1\n"] * 2
    assert not list(clean_public_folder.iterdir())


@pytest.mark.parametrize("umask", [0o177, 0o777])
def test_any_umask(umask, clean_public_folder):
    user = as_stranger()  # root needs no rights
    for _ in range(2):
        ranks = [start(*user, tag=f"r{rank}", umask=umask, RANK=str(rank), WORLD_SIZE="3",
                       ENTWINE_JOB="job") for rank in range(3)]
        assert [output(rank) for rank in ranks] == ["r0 r1 r2\n"] * 3
    assert len(list(Path("/tmp").glob(f"entwine-{STRANGER}*"))) == 1


def test_another_user_cannot_join(folder):
    stranger = as_stranger()
    rank = by_hand(0, PATIENCE="1")
    await_files(folder, claims=1)
    entered = subprocess.run([*stranger, "ls", str(folder)], stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, timeout=LIMIT_S)
    assert entered.returncode != 0
    assert output(rank).startswith("RankTimeoutError rank 0 waited 1 s for rank 1")
