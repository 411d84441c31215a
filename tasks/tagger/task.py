"""The task of bert-tagger: the tag of a word at its first token.

Tensors have their shape as a suffix: R rows of the hidden state, B rows, T tokens, L labels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa
import tensorflow as tf

from bert.batch import Batch, Grouping, batch_of, is_fixed
from bert.heads import TAGGER
from distributed.rows import ragged
from distributed.run import Run
from tasks.runs.cache import Tables, with_facts
from tasks.runs.details import Details
from tasks.runs.task import DataSet, Record, Scores, Task, Tensors, named_outputs
from tasks.runs.texts import Preparation, max_context_owner, window_starts
from tasks.tagger.decoder import NONE, Results, TagDecoder
from tasks.tagger.reader import TagReader
from tasks.tagger.reading import Sentences, illegal, is_plain, text_of
from tasks.tagger.scoring import details, entities, measure, shown
from tasks.tagger.settings import SentenceSettings

Data = DataSet[Sentences]


@dataclass(frozen=True)
class TagTask(TagReader, Task[Sentences, Results]):
    """Rows of tokens with the number of a tag at each."""

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
        return {"loss": tf.reduce_sum(losses_R * tf.cast(tags_R != NONE, losses_R.dtype))}

    def tables(self, sentences: Sentences, preparation: Preparation) -> Tables:
        """A row of `rows` has `input_ids` ([CLS] tokens [SEP]), `sentence_a_tokens`, `sentence`
        (its number), and for each token `words`, the number of the word that begins there, and
        `tags`, the number of its label; all int32. A long sentence becomes overlapping rows, of
        which the one with the most context has the word."""
        settings, tokenizer = self.sentences, preparation.tokenizer
        number_of = {label: number for number, label in enumerate(self.labels)}
        joined = [text_of(sentence.words, settings.characters) for sentence in sentences]
        texts, starts = zip(*joined, strict=True)
        encoded = preparation.ids_and_spans(texts, "tokenizing", "sentence")
        rows, without_token = [], []
        for number, sentence in enumerate(sentences):
            ids, spans = encoded[number]
            words = words_of_tokens(sentence.words, starts[number], spans)
            if not settings.characters:
                absent = set(range(len(sentence.words))).difference(words.tolist())
                for word in sorted(absent):
                    without_token.append(f"{sentence.words[word]!a} ({sentence.place})")
            tags = np.full(len(sentence.words) + 1, NONE, np.int32)  # the last is that of NONE
            if sentence.tags:
                tags[:-1] = [number_of[tag] for tag in sentence.tags]
            for here, words_here in _windows(words, settings):
                input_ids = np.concatenate([[tokenizer.cls_id], ids[here], [tokenizer.sep_id]])
                rows.append((input_ids, words_here, tags[words_here], len(input_ids), number))
        *lists, lengths, numbers = zip(*rows, strict=True)
        columns = {}
        for name, column in zip(("input_ids", "words", "tags"), lists, strict=True):
            columns[name] = ragged(column, pa.int32())
        columns["sentence_a_tokens"] = pa.array(lengths, pa.int32())
        columns["sentence"] = pa.array(numbers, pa.int32())
        notes = _notes(sentences, len(rows), without_token)
        fit = preparation.fit([ids for ids, _ in encoded], texts)
        return with_facts({"rows": columns}, {"notes": notes, **fit})

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


def _windows(words: np.ndarray, settings: SentenceSettings) -> Iterator[tuple[slice, np.ndarray]]:
    """The tokens of each row of a sentence, and the words that begin at them in this row, [CLS] and
    [SEP] included."""
    num_tokens = len(words)
    room = settings.max_seq_length - 2
    starts = window_starts(num_tokens, room, settings.doc_stride)
    lengths = [min(room, num_tokens - start) for start in starts]
    owners = max_context_owner(starts, lengths, num_tokens)
    for window, start in enumerate(starts):
        here = slice(start, start + room)
        words_here = np.where(owners[here] == window, words[here], NONE)
        yield here, np.pad(words_here, 1, constant_values=NONE)


def _notes(sentences: Sentences, num_rows: int, without_token: Sequence[str]) -> list[str]:
    notes = [f"{len(sentences):,} sentences, {num_rows:,} rows"]
    if broken := illegal(sentences):
        notes.append(
            f"{len(broken):,} of them with tags that their scheme forbids, such as an I- after O"
            f" (the first: {broken[0].place}), read as conlleval does"
        )
    if without_token:
        notes.append(
            f"{len(without_token):,} words of invisible characters, which leave no token, are not"
            f" trained on and get O (the first: {without_token[0]})"
        )
    return notes


def words_of_tokens(words: Sequence[str], starts: Sequence[int], spans: np.ndarray) -> np.ndarray:
    """For each token the number of the word whose first token it is, else NONE; int32 [n].

    `starts` are the words' first characters in the text, `spans` the tokens' characters, int32 [n,
    2]. A token belongs to the first word that it overlaps: normalization may have dropped or moved
    the word's first character.
    """
    numbers = np.full(len(spans), NONE, np.int32)
    word_ends = np.add(starts, [len(word) for word in words])
    owners = np.searchsorted(word_ends, spans[:, 0], side="right")
    # a token behind the last word reaches none
    word_starts = np.append(starts, np.iinfo(np.int64).max)
    is_reached = word_starts[owners] < spans[:, 1]
    owners = np.where(is_reached, owners, NONE)
    owned, first_tokens = np.unique(owners, return_index=True)
    numbers[first_tokens] = owned
    return numbers
