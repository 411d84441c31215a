"""bert-corpus: text -> shards of pretraining examples (Google's create_pretraining_data.py), and
vocabularies.

    bert-corpus vocab  --input_file 'text/*.txt' --output_dir vocab --vocab_size 30522
    bert-corpus build  --input_file 'text/*.txt' --output_dir shards --vocab_file vocab/vocab.txt
    bert-corpus verify --input_dir shards

Under mpirun the ranks share the work; --output_dir must be on a file system that all of them see.
"""

import importlib
import sys

from ringbase.settings import unheeded
from tasks.corpus.settings import BuildConfig, VerifyConfig, VocabConfig
from tasks.runs import flags
from tasks.runs.environment import set_environment

COMMANDS = {"build": BuildConfig, "verify": VerifyConfig, "vocab": VocabConfig}


def main(argv: list[str] | None = None) -> None:
    name, config = flags.parse_command(COMMANDS, argv, prog="bert-corpus", description=str(__doc__))
    for note in unheeded(config, config.given):
        print(note, file=sys.stderr)
    set_environment()
    importlib.import_module("tasks.corpus.program").run(name, config)


if __name__ == "__main__":
    main()
