"""The task of bert-tagger: the tag of a word at its first token.

Tensors have their shape as a suffix: R rows of the hidden state, B rows, T tokens, L labels.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
import tensorflow as tf

from bert.batch import Batch, Grouping, batch_of, is_fixed
from bert.heads import TAGGER, Head
from distributed.run import Run
from tasks.runs.details import Details, Record
from tasks.runs.resolve.spec import Start
from tasks.runs.rows.sets import DataSet
from tasks.runs.task import Scores, Task, Tensors, named_outputs
from tasks.tagger.decoder import Results, TagDecoder
from tasks.tagger.reader import NONE, TagReader
from tasks.tagger.reading import Sentences, is_plain, text_of
from tasks.tagger.scoring import details, entities, measure, shown

Data = DataSet[Sentences]


@dataclass(frozen=True)
class TagTask(TagReader, Task[Sentences, Results]):
    """Rows of tokens with the number of a tag at each."""

    smoothing: float = 0.0  # the flag --label_smoothing_factor
    head = TAGGER

    @property
    def metric(self) -> str:
        return "eval_accuracy" if is_plain(self.labels) else "eval_f1"

    def batch(self, fields: dict, grouping: Grouping | None = None) -> Batch:
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
        if share := self.smoothing:
            of_all_R = -tf.reduce_mean(tf.nn.log_softmax(scores_RL), 1)
            losses_R = (1 - share) * losses_R + share * of_all_R
        return {"loss": tf.reduce_sum(losses_R * tf.cast(tags_R != NONE, losses_R.dtype))}

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
        has_plain = is_plain(self.labels)
        for sentence, tagged in zip(data.examples(), results[0], strict=True):
            mistake = cells = None
            text, starts = text_of(sentence.words, self.sentences.characters)
            found = entities(text, sentence.words, starts, tagged)
            words: dict = {"tokens": sentence.words, "tags": tagged.tags}
            fields: dict = {"text": text, "entities": [*map(asdict, found)]}
            if sentence.tags:
                true = entities(text, sentence.words, starts, tagged._replace(tags=sentence.tags))
                wrong = {*true} ^ {*found}
                mistake = max((entity.probability for entity in wrong), default=None)
                cells = shown(text, true, found)
                words["true_tags"] = sentence.tags
                fields["true_entities"] = [*map(asdict, true)]
                for entity in fields["true_entities"]:
                    del entity["probability"]  # nobody's guess
            yield Record(words if has_plain else fields, mistake, cells)

    def write(self, run: Run, data: Data, results: Results) -> None:
        """Writes predictions.conll, words and tags."""
        blocks = []
        for sentence, tagged in zip(data.examples(), results[0], strict=True):
            pairs = zip(sentence.words, tagged.tags, strict=True)
            lines = [f"{word}\t{tag}\n" for word, tag in pairs]
            blocks.append("".join(lines))
        run.write("predictions.conll", "\n".join(blocks))

    def details(self, data: Data, results: Results) -> Details:
        return details(self.labels, data.examples(), results[0])


def of_model(head: Head, start: Start) -> TagTask | None:
    """The task of a trained model with this head, for export."""
    return TagTask(labels=start.bert_config.labels) if head is TAGGER else None
