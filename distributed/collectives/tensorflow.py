"""Sums with TensorFlow's own collective operations: NCCL between GPUs, or a ring over gRPC between
CPUs.

With NCCL, gradients never pass through host memory. The ring runs the same code on CPUs, where MPI
is faster. Every process runs a TensorFlow server. Whoever reaches it can read files as the user who
trains, and TensorFlow binds it to all networks (a constant of its grpc_server_lib.cc): so a socket
filter lets only the job's machines connect.
"""

import contextlib
import ipaddress
import os
import socket
from collections.abc import Sequence

import tensorflow as tf
from tensorflow import Tensor
from tensorflow.core.protobuf import tensorflow_server_pb2

# There is no public name for this; the public MultiWorkerMirroredStrategy calls the same functions.
from tensorflow.python.eager import context

from distributed import network, socket_filter
from distributed.collectives import Collectives, own_gpus
from distributed.world import World
from ringbase.errors import InputError

OPEN_VARIABLE = "RINGBERT_OPEN_PORTS"  # 1: whoever reaches a job's servers may connect
# unlike an address, the same for all machines; bert-launch forwards it
ADVICE = (
    f"set {network.VARIABLE} to a network that joins all machines, such as 10.0.0.0/24, or use"
    " --backend mpi"
)
JOB = "worker"
# The key of the group of ranks, and how many parts of a sum are sent at once: a ring is slow with
# -1, the default.
GROUPS = {"nccl": (1, -1), "ring": (2, 16)}
CONNECT_S = 20  # time limit for a rank to accept a connection
PORTS = range(15000, 32000)  # below those that Linux assigns to connections
# NCCL refuses two ranks on one card of one host. Under these variables each rank is a host, and
# sockets join them.
NCCL_SHARING = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}

_started = False  # whether this process has its server, which lives as long as the process
_instance_keys: dict = {}  # one table per process, like TensorFlow's own


class TensorflowCollectives(Collectives):
    """Sums with CollectiveReduceV2 on the device of this rank. TensorFlow's nccl_manager.cc refuses
    bfloat16."""

    def __init__(self, world: World, name: str):
        # XLA compiles NCCL's sums, not those of the ring
        self.in_xla = name == "nccl"
        self.name = name
        self._compiled = tf.function(self._sums, autograph=False)
        self._size = world.size
        kind = "GPU" if self.in_xla else "CPU"
        self._device = tf.device(f"/job:{JOB}/task:{world.rank}/device:{kind}:0")

    def all_reduce_sum(self, tensors: Sequence[Tensor], compresses: bool = False) -> list[Tensor]:
        return self._compiled(list(tensors))

    def _sums(self, tensors: list[Tensor]) -> list[Tensor]:
        flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
        total = self.vector_sum(tf.concat(flat, 0), 0)
        sizes = [tensor.shape.num_elements() for tensor in tensors]
        parts = tf.split(total, sizes)
        return [tf.reshape(part, tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def vector_sum(self, vector: Tensor, place: int) -> Tensor:
        if not vector.shape[0]:
            return vector
        # The ranks' calls find each other by a key. All sums of one dtype, size and place share
        # one, as every rank makes them in the same order: TensorFlow never forgets a key, so new
        # ones would fill the memory.
        kind = (self.name, vector.dtype, vector.shape[0], place)
        key = _instance_keys.setdefault(kind, len(_instance_keys) + 1)
        group_key, subdivisions = GROUPS[self.name]
        with self._device:
            return tf.raw_ops.CollectiveReduceV2(
                input=vector,
                merge_op="Add",
                final_op="Id",
                ordering_token=[],
                communication_hint=self.name,
                max_subdivs_per_device=subdivisions,
                group_size=self._size,
                group_key=group_key,
                instance_key=key,
            )


def open(world: World, name: str) -> TensorflowCollectives:
    """Starts this process's server unless it runs already. `name` is "nccl" or "ring"."""
    if name == "nccl" and not own_gpus(world):
        if not world.device.may_be_shared:
            raise InputError(
                f"--backend nccl needs a GPU of its own for each of these {world.size} ranks: use"
                " --backend auto; --share_gpus allows to test NCCL on one GPU, slowly, over"
                " sockets"
            )
        os.environ.update(NCCL_SHARING, NCCL_HOSTID=f"rank-{world.rank}")
    if not _started:
        try:
            _start_server(world, closes_port=os.environ.get(OPEN_VARIABLE) != "1")
        except OSError as error:
            raise InputError(
                f"--backend {name}: its port on {socket.gethostname()} cannot be closed to"
                f" strangers ({error.strerror or error}), who could read files as you: use"
                f" --backend mpi, or set {OPEN_VARIABLE}=1 if you trust all who can reach these"
                " machines"
            ) from None
    return TensorflowCollectives(world, name)


def _start_server(world: World, closes_port: bool) -> None:
    global _started
    host = host_address(world)
    with socket_filter.listening(PORTS) as keeper:
        servers = world.all_gather(f"{host}:{keeper.getsockname()[1]}")
        sources = _check_reachable(world, servers)
        if closes_port:
            os.environ["TF_GRPC_REUSE_PORT"] = "1"  # with the keeper
            socket_filter.refuse_all(keeper)
        else:
            keeper.close()
        # gRPC would connect to the other ranks through a proxy that the environment names.
        os.environ["no_grpc_proxy"] = ",".join(server.rpartition(":")[0] for server in servers)  # noqa: SIM112
        context.context().configure_collective_ops(
            collective_leader=f"/job:{JOB}/replica:0/task:0",
            use_nccl_communication=world.device.is_gpu,
        )
        server = tensorflow_server_pb2.ServerDef(
            cluster=tf.train.ClusterSpec({JOB: servers}).as_cluster_def(),
            job_name=JOB,
            task_index=world.rank,
            protocol="grpc",
            default_session_config=context.context().config,
        )
        context.context().enable_collective_ops(server)
        context.context().ensure_initialized()
        _started = True
        if closes_port:
            socket_filter.accept_only(sources, keeper)
    world.barrier()  # no rank may call a server before it runs
    _check_reachable(world, servers)  # not if an address is translated on the way


def host_address(world: World) -> str:
    """The IPv4 address at which the other ranks reach this one: that in the network that
    RINGBERT_NETWORK names, else the loopback address on a single machine, else that of the
    interface that routes to another machine (by its name) or to the Internet. Raises InputError
    when there is none."""
    names = world.all_gather((world.node, socket.gethostname()))
    wanted = network.network()
    if not wanted and world.ranks.num_nodes == 1:
        return "127.0.0.1"
    allowed = wanted or ipaddress.IPv4Network("0.0.0.0/0")
    others = [*(name for node, name in names if node != world.node), "192.0.2.1"]
    for target in [str(next(iter(wanted.hosts())))] if wanted else others:
        # Suppressed: the name is not known, or there is no route.
        with contextlib.suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))  # sends nothing, only chooses the interface
            address = ipaddress.IPv4Address(probe.getsockname()[0])
            if address in allowed and (wanted or not address.is_loopback):
                return str(address)
    where = wanted or "a network with the other machines"
    raise InputError(f"{socket.gethostname()} has no address in {where}: {ADVICE}")


def _check_reachable(world: World, servers: Sequence[str]) -> set[str]:
    """The addresses from which the machines connect to the ranks' servers. Raises InputError on
    every rank unless each machine can connect to every rank; gRPC would wait forever."""
    refused, sources = None, set()
    try:
        for server in servers if world.local_rank == 0 else ():
            host, _, port = server.rpartition(":")
            with socket.create_connection((host, int(port)), CONNECT_S) as connection:
                sources.add(connection.getsockname()[0])
    except OSError as error:
        refused = f"{socket.gethostname()} cannot reach {server} ({error})"
    everywhere = set[str]()
    for reason, of_rank in world.all_gather((refused, sources)):
        if reason:
            raise InputError(f"{reason}: {ADVICE}")
        everywhere |= of_rank
    return everywhere
