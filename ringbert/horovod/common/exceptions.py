"""Horovod's exceptions of elastic training. `ringbert.horovod` raises neither of them: when a rank
dies the job ends, and `bert-launch --restarts` starts it again."""


class HorovodInternalError(RuntimeError):
    """A collective has failed. `hvd.elastic.run` restores the last commit after it."""


class HostsUpdatedInterrupt(RuntimeError):
    """There are other hosts. `hvd.elastic.run` goes on after it, from the state as it is."""

    def __init__(self, skip_sync: bool = False):
        super().__init__()
        self.skip_sync = skip_sync
