"""bert-search: trains a command with many values of its flags, several trainings at the same time.

bert-search -np 8 -- bert-classifier --learning_rate 2e-5,3e-5 --train_batch_size 16,32 …
bert-search -np 8 --ranks_per_trial 2 --sampler tpe --trials 24 space.toml -- bert-squad …
"""

import sys
from collections.abc import Sequence

from distributed.launcher import launched_size
from ringbase.errors import InputError
from ringbase.settings import setting
from ringbert.searching.settings import SearchSettings
from tasks.runs import flags


class Config(SearchSettings):
    """See SearchSettings."""

    space: str | None = setting(
        None, "TOML file of the flags' values", "values", is_positional=True
    )


def main(argv: Sequence[str] | None = None) -> None:
    words = list(sys.argv[1:] if argv is None else argv)
    at = words.index("--") if "--" in words else len(words)
    config = flags.parse(
        Config,
        words[:at],
        prog="bert-search",
        description=f"{SearchSettings.__doc__} The command stands after --.",
    )
    with flags.reporting("bert-search"):
        if not words[at + 1 :]:
            raise InputError("no -- with a command after it: bert-search -np 2 -- bert-squad …")
        setting, size = launched_size()
        if size > 1:
            raise InputError(f"{setting}: bert-search starts the ranks itself: leave mpirun out")
        from ringbert.searching.command import of_words
        from ringbert.searching.plan import Plan
        from ringbert.searching.results import Found
        from ringbert.searching.search import run_search
        from ringbert.searching.space import Space

        command, space = of_words(words[at + 1 :])
        if config.space:
            space = Space({**space, **Space.of_file(config.space)})
        trials = run_search(Plan.of(command, space, config))
    flags.print_whole(Found(command.folder, trials).text(), sys.stdout)
    if not any(trial.score is not None for trial in trials):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
