"""What bert-pretraining is, before anything costly happens. Without TensorFlow."""

from dataclasses import replace
from pathlib import Path

from bert.corpus.shards import TOKENIZER, find_shards, is_arrow
from tasks.pretraining.settings import COMMAND, GOOGLES_WARMUP, PretrainingConfig
from tasks.pretraining.stream import corpora_of, note_of_twice, stream_of
from tasks.runs.resolve.command import Count, Learned, Program, Say, Stream
from tasks.runs.resolve.spec import Start
from tasks.runs.resolve.start import Needs
from tasks.runs.rows.reader import Readings


class Pretraining(Program[PretrainingConfig]):
    name = COMMAND.name

    def length(self, config: PretrainingConfig) -> int:
        return config.shards.max_seq_length

    def needs(self, config: PretrainingConfig) -> Needs:
        # TFRecord shards are ids already: Google's program has no tokenizer
        folder = tokenizer_of_shards(config.corpora[0].patterns)
        return Needs(folder is not None, folder)

    def settled(self, config: PretrainingConfig, start: Start, say: Say) -> PretrainingConfig:
        for corpus in config.corpora:
            if note := note_of_twice(corpus.patterns):
                say(note)
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
        corpora = corpora_of(config)
        if corpora is None:  # TFRecord files are counted when they are converted
            return Count()
        return Count(sum(corpus.num_rows for corpus in corpora), is_exact=True)

    def stream(self, config: PretrainingConfig, start: Start, readings: Readings) -> Stream:
        corpora = corpora_of(config)
        return Stream() if corpora is None else stream_of(config, corpora)


PROGRAM = Pretraining()


def tokenizer_of_shards(patterns: str) -> Path | None:
    """The folder of the tokenizer that Arrow shards were made with; None for TFRecord files."""
    shards = find_shards(patterns)
    return next(iter(shards)).parent / TOKENIZER if is_arrow(shards) else None
