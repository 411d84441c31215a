"""What bert-embedder is, before anything costly happens. Without TensorFlow."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ringbase.settings import flat
from tasks.embedder.mixing import stream_of
from tasks.embedder.pooling import prompts_said_by, said_by, unheeded_in
from tasks.embedder.reader import PairReader
from tasks.embedder.reading import Source, files_and_columns
from tasks.embedder.settings import COMMAND, DEFAULTS, EmbedderConfig, VectorSettings
from tasks.runs.resolve.command import Program, Say, Stream
from tasks.runs.resolve.spec import Start
from tasks.runs.rows.reader import Readings
from tasks.runs.trained import saved_settings


class Embedder(Program[EmbedderConfig]):
    name = COMMAND.name

    def length(self, config: EmbedderConfig) -> int:
        length = config.vectors.max_seq_length
        assert length is not None  # `settled` has given it a value
        return length

    def settled(self, config: EmbedderConfig, start: Start, say: Say) -> EmbedderConfig:
        for line in unheeded_in(start.weights, start.words.lower_case):
            say(f"warning: {line}")
        vectors = vectors_of(config, start)
        vectors.check_width(start.bert_config.hidden_size)
        if vectors.has_prompts:
            query, document = vectors.query_prompt or "", vectors.document_prompt or ""
            say(f"prompts: {query!r} before queries, {document!r} before documents")
            has_texts = "predict" in config.wanted_sets and not config.mines
            if has_texts and not vectors.prompt_name:
                say(
                    "note: the texts of --predict_file have no prompt: --prompt_name query or"
                    " document puts one before them"
                )
        return replace(config, vectors=vectors)

    def sources(self, config: EmbedderConfig, start: Start) -> Mapping[str, Sequence[Source]]:
        pairs = files_and_columns(config.pairs)
        sources = {}
        for kind in config.wanted_sets:
            mines = kind == "predict" and config.mines
            distills = kind == "train" and config.loss.kd_loss_type is not None
            sources[kind] = [Source(pairs, kind, mines=mines, distills=distills)]
        return sources

    def reader(self, config: EmbedderConfig, start: Start) -> PairReader:
        return PairReader(config.vectors, saved_settings(config))

    def stream(self, config: EmbedderConfig, start: Start, readings: Readings) -> Stream:
        (source,) = self.sources(config, start)["train"]
        return stream_of(config, readings.of(self.reader(config, start), source).sets)

    def loss(self, config: EmbedderConfig, start: Start, readings: Readings) -> str:
        (source,) = self.sources(config, start)["train"]
        pairs = readings.of(self.reader(config, start), source)
        loss = config.loss.in_words(bool(pairs.scores), bool(pairs.labels))
        return "; ".join([loss, *pairs.unread])


PROGRAM = Embedder()


def vectors_of(config: EmbedderConfig, start: Start) -> VectorSettings:
    """The flags', else those of the model's folder, of which a new training takes over pooling and
    prompts alone."""
    flags = config.vectors
    said: Mapping = prompts_said_by(start.weights)
    if not (config.do_train and flags.pooling):
        of_folder = said_by(start.weights, start.bert_config.num_positions, flags.pooling)
        of_training = {"pooling", *said}
        if config.do_train:
            of_folder = {name: of_folder[name] for name in of_folder if name in of_training}
        said = of_folder
    given = {name: value for name, value in flat(flags).items() if value is not None}
    return VectorSettings(**{**DEFAULTS, **said, **given})
