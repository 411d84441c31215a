"""What a simulation is of. `simulate(Options(seed=7, …))` repeats a failure, which prints them."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is simulated, and what goes wrong in it, at most so many times."""

    seed: int
    ranks: int = 8
    per_machine: int = 8
    num_steps: int = 12
    global_batch_size: int = 64
    save_every: int = 4
    save_minutes: float = 0.0
    evaluate_every: int = 5
    keeps_best: bool = True
    check_steps: int = 0
    elastic: bool = True
    deaths: int = 0
    stops: int = 0  # requests to save and stop
    slow: float = 0.0  # share of turns in which a rank sleeps
    failing_files: int = 0  # calls that fail
    full_disk: bool = False  # from some call on, until the next start
    power_cuts: int = 0
    damages: bool = False  # the newest checkpoint, between two starts
    garbage: bool = False  # Open MPI's, after a death
    other_ranks: bool = False  # at each start
    # "write": the n-th call that changes a file fails; "cut": there the power fails; "death": a
    # rank dies in the second step, and later the one that makes the n-th call of MPI from then on;
    # "error": that call fails; "start": rank 0 dies at its n-th call of MPI after a resume
    nth: tuple[str, int] = ("", 0)

    @classmethod
    def drawn(cls, seed: int) -> "Options":
        """Those of a seed: about half of the kinds of faults, and a size."""
        chance = random.Random(seed)
        ranks = chance.choice([8, 8, 12, 16, 24, 40, 64])

        def some(value):
            return chance.choice([type(value)(0), value])

        elastic = chance.random() < 0.8
        deaths = chance.choice([1, 2, ranks // 2, ranks - 1]) if elastic else 2
        return cls(
            seed=seed,
            ranks=ranks,
            num_steps=chance.randint(3, 12),
            save_every=chance.randint(1, 5),
            save_minutes=some(0.002),
            evaluate_every=chance.randint(1, 6),
            keeps_best=some(True),
            check_steps=some(3),
            elastic=elastic,
            deaths=some(deaths),
            stops=some(2),
            slow=some(0.002),
            failing_files=some(2),
            full_disk=some(True),
            power_cuts=some(2),
            damages=some(True),
            garbage=some(True),
            other_ranks=some(True),
        )
