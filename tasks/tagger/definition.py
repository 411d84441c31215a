"""What bert-tagger is, before anything costly happens. Without TensorFlow."""

from collections.abc import Mapping, Sequence

from ringbase.errors import InputError
from tasks.runs.resolve.command import Learned, Program, Say
from tasks.runs.resolve.labels import with_outputs
from tasks.runs.resolve.spec import Start
from tasks.runs.rows.reader import Readings
from tasks.runs.trained import saved_settings
from tasks.tagger.reader import TagReader
from tasks.tagger.reading import Sentences, Source, in_bioes, is_plain, tags_of
from tasks.tagger.settings import COMMAND, TaggerConfig


class Tagger(Program[TaggerConfig]):
    name = COMMAND.name

    def length(self, config: TaggerConfig) -> int:
        return config.sentences.max_seq_length

    def learned(self, config: TaggerConfig, readings: Readings, say: Say) -> tuple[str, ...]:
        source = Source(config.files, "train")
        return tags_of_file(source, readings.of(TagReader(config.sentences), source), say)

    def outputs(self, config: TaggerConfig, start: Start, learned: Learned, say: Say) -> Start:
        """See `with_outputs`. The tags are those of a training that goes on, else of the training
        file with O first."""
        labels: tuple[str, ...] = ()
        if config.do_train and not start.goes_on:
            labels = learned()
        return with_outputs(start, labels, config.do_train, say, as_read)

    def sources(self, config: TaggerConfig, start: Start) -> Mapping[str, Sequence[Source]]:
        return {kind: [Source(config.files, kind)] for kind in config.wanted_sets}

    def reader(self, config: TaggerConfig, start: Start) -> TagReader:
        return TagReader(config.sentences, start.bert_config.labels, saved_settings(config))


PROGRAM = Tagger()


def tags_of_file(source: Source, sentences: Sentences, say: Say) -> tuple[str, ...]:
    """The tags of the training file, O first. Raises InputError: there are no others."""
    found = tags_of(sentences)
    if found == {"O"}:
        raise InputError(f"{source}: every tag is O")
    if is_plain(found):
        say(f"no tag has a prefix such as B-: {len(found)} plain tags, one for each word")
    else:
        found.add("O")
    return tuple(sorted(found, key=lambda tag: (tag != "O", tag)))


def as_read(tags: tuple[str, ...]) -> tuple[str, ...]:
    """A model's tags as those of a file are read: in BIOES, unless they are plain."""
    return tags if is_plain(tags) else tuple(in_bioes(tags))
