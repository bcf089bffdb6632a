"""Which job a launched process belongs to: a text that is equal on the ranks of one job and on no
others'.

Variables that a launcher sets for each job come first.  A parent process alone is believed only
where it is known to start one job: a script may start two.
"""
import os

from ._errors import ArgumentError

# By the variable that gives the rank: the sets of variables that name a job, best first.
_NAMED_BY = {
    "OMPI_COMM_WORLD_RANK": (("PMIX_NAMESPACE", "PMIX_SERVER_URI2"), ("PMIX_NAMESPACE",),
                             ("OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri")),
    "PMI_RANK": (("PMI_JOBID",), ("PALS_APID",), ("PMI_PORT",)),
    "RANK": (("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR",
              "MASTER_PORT"),),
    "SLURM_PROCID": (("SLURM_JOB_ID", "SLURM_STEP_ID"),),
}


def name(source):
    """The job's name; `source` is the variable that gave the rank."""
    chosen = os.environ.get("ENTWINE_JOB")
    if chosen:
        return f"ENTWINE_JOB={chosen}"
    found = _variables(source) or _parent_of_hydra(source)
    if not found:
        raise ArgumentError(
            f"{source} gives this process's rank, but nothing tells its job from another one that "
            f"runs at the same time\n  fix: set ENTWINE_JOB to a text of this job's own, the same "
            f"on all its ranks; torchrun, srun and mpirun need none")
    # Ports and names of launchers are their own only within a network namespace.
    return f"{found} network={_namespace('net')}"


def _variables(source):
    for names in _NAMED_BY.get(source, ()):
        if all(os.environ.get(name) for name in names):
            return " ".join(f"{name}={os.environ[name]}" for name in names)
    return None


def _parent_of_hydra(source):
    """MPICH's mpirun gives a job no name, but starts its ranks from one process per host, to
    which PMI_FD leads."""
    if source != "PMI_RANK" or "PMI_FD" not in os.environ:
        return None
    parent = os.getppid()
    try:
        with open(f"/proc/{parent}/stat", "rb") as file:
            started = file.read().rpartition(b")")[2].split()[19].decode()
        return f"parent={parent} started={started} processes={_namespace('pid')}"
    except (OSError, IndexError):  # in another pid namespace
        return None


def _namespace(kind):
    try:
        return os.stat(f"/proc/self/ns/{kind}").st_ino
    except OSError:
        return 0
