"""What bert-pretraining is, before anything costly happens. Without TensorFlow."""

from dataclasses import replace
from pathlib import Path

from bert.corpus.shards import TOKENIZER, find_shards, is_arrow, open_shards
from tasks.pretraining.settings import COMMAND, GOOGLES_WARMUP, PretrainingConfig
from tasks.runs.resolve.command import Count, Learned, Program, Say
from tasks.runs.resolve.spec import Start
from tasks.runs.resolve.start import Needs
from tasks.runs.rows.reader import Readings


class Pretraining(Program[PretrainingConfig]):
    name = COMMAND.name

    def length(self, config: PretrainingConfig) -> int:
        return config.shards.max_seq_length

    def needs(self, config: PretrainingConfig) -> Needs:
        # TFRecord shards are ids already: Google's program has no tokenizer
        folder = tokenizer_of_shards(config.input_file)
        return Needs(folder is not None, folder)

    def settled(self, config: PretrainingConfig, start: Start, say: Say) -> PretrainingConfig:
        given = config.training.plan.num_warmup_steps
        warmup = config.training.plan.resolved().num_warmup_steps
        if config.do_train and given != warmup != GOOGLES_WARMUP:
            say(
                f"note: the warmup of one rank is {warmup:,} steps, a share of so short a training,"
                f" instead of Google's {GOOGLES_WARMUP:,}; --num_warmup_steps sets another"
            )
        return config

    def outputs(self, config: PretrainingConfig, start: Start, learned: Learned, say: Say) -> Start:
        if not config.training.init_moments:
            return start
        moments = Path(str(config.model.init_checkpoint)).expanduser()
        return replace(start, moments=moments)

    def train_rows(self, config: PretrainingConfig, start: Start, readings: Readings) -> Count:
        files = find_shards(config.input_file)
        if not is_arrow(files):  # TFRecord files are counted when they are converted
            return Count()
        _, manifest = open_shards(files)
        return Count(sum(shard["examples"] for shard in manifest["shards"]), is_exact=True)


PROGRAM = Pretraining()


def tokenizer_of_shards(patterns: str) -> Path | None:
    """The folder of the tokenizer that Arrow shards were made with; None for TFRecord files."""
    shards = find_shards(patterns)
    return next(iter(shards)).parent / TOKENIZER if is_arrow(shards) else None
