"""Keeps a folder for the run, and a private MPS daemon in it, until the parent is gone: however
that ends, nothing is left.  A process of its own, out of reach of a Ctrl-C, that prints the
folder's name and waits for the end of its stdin.

    keeper.py [daemon]"""
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
ASK_S, QUIT_S, END_S, START_S = 3.0, 4.0, 2.0, 15.0


def tell(command):
    """Whether a daemon answers in the folder that the environment names."""
    try:
        return subprocess.run([CONTROL], input=command + "\n", text=True, timeout=ASK_S,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def answers(folder):
    """A daemon that is there has a socket, and asking without one takes long."""
    return os.path.exists(os.path.join(folder, "control")) and tell("get_server_list")


def children_gone():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return False
    except ChildProcessError:
        return True


def end_children(number, seconds):
    """Again and again: servers become our children only when their daemon ends."""
    end = time.monotonic() + seconds
    while not children_gone():
        if time.monotonic() > end:
            return False
        if number:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                for child in file.read().split():
                    os.kill(int(child), number)
        time.sleep(0.02)
    return True


def start_daemon():
    def in_child():
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    subprocess.Popen([CONTROL, "-f"], preexec_fn=in_child, stdin=subprocess.DEVNULL,
                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main():
    daemon = sys.argv[1:] == ["daemon"]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    folder = tempfile.mkdtemp(prefix="entwine-peers.", dir="/tmp")  # sockets need a short name
    if daemon:
        os.environ.update({PIPES: folder, LOGS: folder})
        start_daemon()
    print(folder, flush=True)
    while not select.select([sys.stdin], [], [], 0.1)[0]:
        if daemon and children_gone():
            break
    if daemon and not children_gone():
        tell("quit -t 1")  # a killed rank's kernels may keep a server busy
        if not end_children(0, QUIT_S) and not end_children(signal.SIGTERM, END_S):
            end_children(signal.SIGKILL, END_S)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
