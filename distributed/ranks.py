"""A process's place among the ranks of a job."""

from dataclasses import dataclass
from typing import Any

from distributed.joining import started


@dataclass(frozen=True, eq=False)
class Ranks:
    """This process among the ranks that there are; `Ranks()` is alone. A death replaces it as a
    whole (`distributed.elastic`)."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # its number among the ranks that share this machine's memory
    local_size: int = 1
    node: int = 0  # the number of this machine
    num_nodes: int = 1
    # mpi4py's communicator of the ranks; None for one rank
    comm: Any = None
    launched_size: int = 1  # how many ranks there were at the start
    # which of the first ones these are; only if the job goes on without those that die
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, comm: Any, launched_size: int = 0, names: tuple[str, ...] = ()) -> "Ranks":
        """Those of a communicator, which all call together."""
        MPI = started()
        local = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank)
        # no message: a death would block it
        (first,) = MPI.Group.Translate_ranks(local.group, [0], comm.group)
        nodes = sorted(set(comm.allgather(first)))
        return cls(
            rank=comm.rank,
            size=comm.size,
            local_rank=local.rank,
            local_size=local.size,
            node=nodes.index(first),
            num_nodes=len(nodes),
            comm=comm,
            launched_size=launched_size or comm.size,
            names=names,
        )

    @property
    def is_elastic(self) -> bool:
        return bool(self.names)

    def knows_of_death(self) -> bool:
        """Whether this rank has heard that one of them died."""
        if not self.is_elastic:
            return False
        failed = self.comm.Get_failed()
        num_failed = failed.size
        failed.Free()
        return num_failed > 0 or self.comm.Is_revoked()

    def refuse_after_death(self) -> None:
        """Raises MPI's exception if this rank knows of a death. An exchange that it cut short can
        return garbage as a success in Open MPI 5.0."""
        if self.knows_of_death():
            raise started().Exception(started().ERR_PROC_FAILED)
