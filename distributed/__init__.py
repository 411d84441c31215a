"""Data-parallel training of any Keras model over MPI. Knows nothing of BERT."""


class InputError(ValueError):
    """What the user gave cannot be used: the message says what came, what was needed and which flag to change."""


class Preempted(SystemExit):
    """Training stopped and saved because SIGUSR1 asked for it; the process exits with `STATUS`."""

    STATUS = 75  # EX_TEMPFAIL of sysexits.h: run the same command again

    def __init__(self):
        super().__init__(self.STATUS)
