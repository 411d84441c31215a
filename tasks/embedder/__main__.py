"""The command bert-embedder."""

from functools import partial

from tasks.embedder.settings import EmbedderConfig
from tasks.runs.environment import run_command

main = partial(run_command, "bert-embedder", EmbedderConfig)

if __name__ == "__main__":
    main()
