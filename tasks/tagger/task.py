"""The task of bert-tagger: the tag of a word at its first token.

Tensors have their shape as a suffix: R rows of the hidden state, B rows, T tokens, L labels.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from bert.batch import Batch, Grouping, batch_of, is_fixed
from bert.heads import TAGGER
from distributed.run import Run
from ringbase.settings import flat
from tasks.runs.cache import Tables
from tasks.runs.details import Details
from tasks.runs.labels import named_outputs
from tasks.runs.task import DataSet, Record, Scores, Task, Tensors
from tasks.runs.texts import Preparation
from tasks.tagger import rows
from tasks.tagger.reading import Sentence, Sentences, Source, is_plain, read, text_of
from tasks.tagger.rows import NONE, Results, TagDecoder, Tagged
from tasks.tagger.scoring import details, entities, measure, sureness_of_mistake
from tasks.tagger.settings import SentenceSettings

Data = DataSet[Sentences]


@dataclass(frozen=True)
class TagTask(Task[Sentences, Results]):
    """Rows of tokens with the number of a tag at each."""

    sentences: SentenceSettings = field(default_factory=SentenceSettings)
    labels: Sequence[str] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    name, version, head = "tagger", rows.VERSION, TAGGER

    @property
    def metric(self) -> str:
        return "eval_accuracy" if is_plain(self.labels) else "eval_f1"

    @property
    def max_seq_length(self) -> int:
        return self.sentences.max_seq_length

    def batch(self, fields: dict[str, Any], grouping: Grouping | None = None) -> Batch:
        fields, batch = batch_of(fields, grouping)
        values, _ = fields["tags"]
        tags = np.full(len(batch["input_ids"]), NONE, np.int32)
        if is_fixed(batch):
            tags[batch["attention_mask"] > 0] = values
        else:
            tags[: len(values)] = values
        return batch | {"tags": tags}

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": float((batch["tags"] != NONE).sum())}

    def loss(self, scores_RL: tf.Tensor, batch: Batch) -> Tensors:
        """The sum of the cross-entropies of the words' first tokens."""
        tags_R = batch["tags"]
        losses_R = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(tags_R, 0), scores_RL)
        return {"loss": tf.reduce_sum(losses_R * tf.cast(tags_R != NONE, losses_R.dtype))}

    def read(self, source: Source) -> Sentences:
        return read(source, self.sentences.characters, self.labels)

    def key(self, source: Source, sentences: Callable[[], Sentences]) -> object:
        return self.labels, flat(self.sentences), sentences()

    def tables(self, sentences: Sentences, preparation: Preparation) -> Tables:
        return rows.tables(sentences, self.labels, self.sentences, preparation)

    def decoder(self, data: Data) -> TagDecoder:
        return TagDecoder(data, self.labels, self.sentences.characters)

    def outputs(self, scores_BTL: tf.Tensor) -> Tensors:
        return named_outputs(scores_BTL, self.labels)

    def scores(self, kind: str, data: Data, results: Results) -> Scores:
        sentences = data.examples()
        if not all(each.tags for each in sentences):
            return {}
        return measure(kind, self.labels, self.sentences.characters, sentences, *results)

    def records(self, data: Data, results: Results) -> Iterator[Record]:
        """Texts and entities with their places; or words and plain tags, as they are read."""
        is_tagged = is_plain(self.labels)
        for sentence, tagged in zip(data.examples(), results[0], strict=True):
            fields: dict[str, object] = {"tokens": sentence.words, "tags": tagged.tags}
            if sentence.tags:
                fields["true_tags"] = sentence.tags
            if not is_tagged:
                fields = self._entities(sentence, tagged)
            mistake = sureness_of_mistake(sentence.tags, tagged) if sentence.tags else None
            yield Record(fields, mistake)

    def _entities(self, sentence: Sentence, tagged: Tagged) -> dict[str, object]:
        text, starts = text_of(sentence.words, self.sentences.characters)
        found = entities(text, sentence.words, starts, tagged)
        fields: dict[str, object] = {"text": text, "entities": [*map(asdict, found)]}
        if sentence.tags:
            certain = Tagged(sentence.tags, [1.0] * len(sentence.tags))
            true = [*map(asdict, entities(text, sentence.words, starts, certain))]
            for each in true:
                del each["probability"]  # nobody's guess
            fields["true_entities"] = true
        return fields

    def write(self, run: Run, data: Data, results: Results) -> None:
        """Writes predictions.conll, words and tags."""
        blocks = []
        for sentence, tagged in zip(data.examples(), results[0], strict=True):
            pairs = zip(sentence.words, tagged.tags, strict=True)
            blocks.append("".join(f"{word}\t{tag}\n" for word, tag in pairs))
        run.write("predictions.conll", "\n".join(blocks))

    def details(self, data: Data, results: Results) -> Details:
        return details(self.sentences.characters, self.labels, data.examples(), results[0])
