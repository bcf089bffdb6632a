"""Ranks and programs that start as copies of a process that has imported torch and transformers,
which takes longer than most of what they do."""
import multiprocessing
import os
import runpy
import socket
import sys
from types import SimpleNamespace

import entwine

multiprocessing.set_forkserver_preload(
    ["torch", "torch._dynamo", "transformers.models.llama.modeling_llama"])


def spawn(num_ranks, function, *arguments, **options):
    return entwine.spawn(num_ranks, function, *arguments, method="forkserver", **options)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_program(program, *arguments, folder, ranks=1, paths=(), limit=200):
    """A program in `folder`, whose imports look into `paths` first: stdout, stderr, and the exit
    status, that of the first rank whose is not 0.  Several ranks find themselves as under torchrun.
    """
    said = SimpleNamespace(stdout=os.path.join(folder, "stdout"),
                           stderr=os.path.join(folder, "stderr"))
    variables = {} if ranks == 1 else {
        "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
        "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}
    codes = spawn(ranks, _run, folder, said, [str(program), *arguments],
                  [str(path) for path in paths], variables, timeout=limit)
    return SimpleNamespace(stdout=_text(said.stdout), stderr=_text(said.stderr),
                           returncode=next((code for code in codes if code), 0))


def _text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def _run(world, folder, said, command, paths, variables):
    import torch
    for path, stream in (said.stdout, sys.stdout), (said.stderr, sys.stderr):
        with open(path, "a") as file:
            os.dup2(file.fileno(), stream.fileno())
    if variables:
        rank = str(world.rank)
        os.environ.update(variables, RANK=rank, LOCAL_RANK=rank)
        torch.set_num_threads(1)
    os.chdir(folder)
    sys.argv = command
    sys.path[:0] = [os.path.dirname(command[0]), *paths]
    try:
        runpy.run_path(command[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code
    finally:
        sys.stdout.flush()
