"""How a search is run: the flags of `bert-search`, and the arguments of `ringbert.search`."""

from typing import Literal

from distributed.launch import hosts_in
from ringbase.settings import MOST_SEED, Settings, setting


class SearchSettings(Settings):
    """Train a command with many values of its flags, several trainings at the same time. SPACE is a
    TOML file with the values of each flag, as a list or a range. Flags of the command may also
    have several values: --learning_rate 2e-5,3e-5."""

    num_proc: int = setting(
        1, "slots: ranks of all trials at the same time", "slots", aliases=("np", "n"), at_least=1
    )
    hosts: str | None = setting(
        None, "hosts and their slots: HOST:SLOTS,…", "slots", aliases=("H",), shown_default="here"
    )
    ssh_port: int | None = setting(
        None, "port of the hosts' ssh servers", "slots", aliases=("p",), at_least=1
    )
    mpi_args: str | None = setting(None, "further arguments of mpirun, as --mpi_args='…'", "slots")
    ranks_per_trial: int = setting(
        1, "ranks of each trial", "slots", aliases=("ranks_per_run",), at_least=1
    )
    trials: int | None = setting(
        None, "number of trials", "values", shown_default="all of the grid", at_least=1
    )
    sampler: Literal["grid", "random", "tpe"] = setting(
        "grid", "where values come from; tpe (Optuna's) learns from the scores so far", "values"
    )
    seed: int = setting(
        0,
        "of the values of random and tpe, and of the grid's order",
        "values",
        at_least=0,
        at_most=MOST_SEED,
    )
    metric: str | None = setting(
        None, "score that chooses the best trial", "trials", shown_default="the program's"
    )
    prune: bool = setting(
        False,
        "stop trials whose scores while training (--eval_steps) are below the median (Optuna's)",
        "trials",
    )
    keep_models: int = setting(3, "keep the models of the best N trials only", "trials", at_least=1)
    restarts: int = setting(
        2, "start a trial that broke off again, at most N times", "trials", at_least=0
    )

    @property
    def each_host(self) -> dict[str, int]:
        return hosts_in(self.hosts) if self.hosts else {}

    def check(self) -> None:
        try:
            slots = sum(self.each_host.values())
        except Exception as error:  # of argparse
            raise ValueError(f"--hosts {self.hosts}: {error}") from None
        if slots and self.num_proc not in (1, slots):
            raise ValueError(
                f"--num_proc {self.num_proc}: -H has {slots} slots: leave -np out, or give the same"
            )
