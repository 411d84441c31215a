"""Checks of the hosts, the network between them, their disks and their GPUs."""

import contextlib
import os
import shutil
import socket
import time
from collections import Counter
from pathlib import Path

from distributed.collectives.tensorflow import NETWORK_VARIABLE, PORTS, host_address, listening
from distributed.world import World
from tasks.doctor.page import Finding, failed, not_tested, ok, warning

CONNECT_S = 5.0
WRITTEN_BYTES, PIECE_BYTES = 1 << 26, 1 << 22
# A checkpoint holds weights and two moments in float32: 1.3 GB for BERT-base, 4 GB for BERT-large.
FEWEST_BYTES, FEW_BYTES = 2e9, 25e9
SLOW_BYTES_PER_S = 30e6


def check_hosts(world: World) -> Finding:
    """The name, the address and the ranks of each host, and how many threads each rank computes with."""
    places = world.all_gather((socket.gethostname(), host_address(world)))
    ranks_of = Counter(places)
    shown = [f"{name} ({address}), ranks: {count}" for (name, address), count in list(ranks_of.items())[:4]]
    text = f"{'; '.join(shown)}{f'; and {len(ranks_of) - 4} more hosts' * (len(ranks_of) > 4)}"
    if len(set(ranks_of.values())) > 1:
        advice = "start equally many ranks on each host; a step waits for the slowest"
        return warning(f"{text}: different numbers of ranks", advice)
    if world.device.notes and "bound" in world.device.notes[0]:
        note, _, advice = world.device.notes[0].partition("; ")
        return warning(note, advice)
    return ok(f"{text}; threads per rank: {world.device.threads}, cores: {len(world.device.machine_cores)}")


def check_ports(world: World, is_needed: bool) -> Finding:
    """Whether each host can connect to a port of each other host, as the backends nccl and ring do.

    Args:
      is_needed: whether a backend that needs it is chosen or may be.
    """
    if world.size == 1:
        return not_tested("there is one rank")
    address, own, refused = host_address(world), socket.gethostname(), ""
    with listening() as listener:
        servers = world.all_gather((world.node, address, listener.getsockname()[1], socket.gethostname()))
        for node, host, port, name in servers if world.local_rank == 0 else ():
            if not refused and (node != world.node or world.num_nodes == 1):
                try:
                    socket.create_connection((host, port), CONNECT_S).close()
                except OSError as error:
                    refused = f"{own} cannot reach {name} at {host}:{port} ({error.strerror or error})"
        world.barrier()
    if not refused:
        return ok(f"each host reaches ports of the others, among {PORTS.start} to {PORTS.stop - 1}")
    advice = (
        f"open the TCP ports {PORTS.start} to {PORTS.stop - 1} between the hosts, set {NETWORK_VARIABLE} to a "
        "network that joins all hosts, such as 10.0.0.0/24, or give --backend mpi, which needs no such port"
    )
    return failed(refused, advice) if is_needed else warning(refused, advice)


def check_disk(writes: bool, folder: Path, advice: str) -> Finding:
    """Writes a file of 64 MiB to the folder, or to the nearest one above it that exists, and removes it, on the
    ranks for which `writes` is true."""
    if not writes:
        return not_tested("another rank writes")
    existing = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    free_bytes = shutil.disk_usage(existing).free
    place = f"{existing} on {socket.gethostname()}: {free_bytes / 1e9:.3g} GB free"
    path, piece = (
        existing / f".bert-doctor.{os.getpid()}.tmp",
        os.urandom(PIECE_BYTES),
    )  # not zeros, which may be free
    start_s = time.perf_counter()
    try:
        with path.open("wb") as file:
            for _ in range(WRITTEN_BYTES // PIECE_BYTES):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return failed(f"{place}; {error.strerror}", advice)
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
    speed = WRITTEN_BYTES / (time.perf_counter() - start_s)
    text = f"{place}, {speed / 1e6:.0f} MB/s written"
    if free_bytes < FEWEST_BYTES:
        return failed(f"{text}: too little for a checkpoint of BERT-base", advice)
    if free_bytes < FEW_BYTES:
        return warning(f"{text}: too little for five checkpoints of BERT-large", advice)
    if speed < SLOW_BYTES_PER_S:
        return warning(f"{text}: a checkpoint of BERT-large takes {4e9 / speed:.0f} s", advice)
    return ok(text, free_bytes=free_bytes, bytes_per_s=speed)


def check_gpus(world: World) -> Finding:
    """Which GPU each rank has: all of one kind, a different one for each rank."""
    if not world.device.is_gpu:
        return not_tested("the ranks compute on CPUs")
    ranks = world.all_gather((world.device.name, world.device.bus_id, socket.gethostname()))
    kinds = Counter(name for name, _, _ in ranks)
    text = "; ".join(f"{number} x {name}" for name, number in kinds.items())
    if len(kinds) > 1:
        return warning(text, "use GPUs of one kind: a step waits for the slowest", ranks=ranks)
    if len({(bus_id, host) for _, bus_id, host in ranks}) < world.size:
        return warning(f"{text}, shared by ranks", "start one rank per GPU to train", ranks=ranks)
    return ok(text, ranks=ranks)
