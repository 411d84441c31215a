"""The task of bert-tagger: the tag of a word at its first token; and sentences as rows of tokens.

Tensors have their shape as a suffix: R rows of the hidden state, L labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
from scipy.special import log_softmax

from bert.batch import Batch, Grouping, batch_of, is_fixed
from bert.heads import TAGGER
from bert.text.characters import character_starts
from distributed.rows import Rows, ragged
from ringbase.files import digest
from ringbase.settings import flat
from tasks.cache import Tables, with_facts
from tasks.tagger.reading import Sentence, illegal, text_of
from tasks.tagger.settings import SentenceSettings
from tasks.texts import Preparation, max_context_owner, window_starts

VERSION = 2  # increase when reading or `tables` makes something else: old rows are not used
NONE = -1  # of a token at which no word begins
# of the words of a sentence: their tags, and the probability of each
Tags = tuple[Sequence[str], Sequence[float]]


@dataclass(frozen=True)
class TagTask:
    """Rows of tokens with the number of a tag at each; see `tasks.task.Task`."""

    max_seq_length: int
    settings: Mapping[str, object] = field(default_factory=dict)
    head = TAGGER
    terms = ("loss",)

    def batch(self, fields: dict[str, Any], grouping: Grouping | None = None) -> Batch:
        fields, batch = batch_of(fields, grouping)
        tags, (values, _) = np.full(len(batch["input_ids"]), NONE, np.int32), fields["tags"]
        tags[np.flatnonzero(batch["attention_mask"]) if is_fixed(batch) else slice(len(values))] = (
            values
        )
        return batch | {"tags": tags}

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": float((batch["tags"] != NONE).sum())}

    def loss(self, scores_RL: tf.Tensor, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The sum of the cross-entropies of the words' first tokens."""
        losses_R = tf.nn.sparse_softmax_cross_entropy_with_logits(
            tf.maximum(batch["tags"], 0), scores_RL
        )
        return {"loss": tf.reduce_sum(losses_R * tf.cast(batch["tags"] != NONE, losses_R.dtype))}


def tables(
    sentences: Sequence[Sentence],
    labels: Sequence[str],
    settings: SentenceSettings,
    preparation: Preparation,
) -> Tables:
    """A row of `rows` has `input_ids` ([CLS] tokens [SEP]), `sentence_a_tokens`, `sentence` (its
    number), and for each token `words`, the number of the word that begins there, and `tags`, the
    number of its label; all int32. A long sentence becomes overlapping rows, of which the one with
    the most context has the word."""
    numbers_of_labels = {label: number for number, label in enumerate(labels)}
    room = settings.max_seq_length - 2
    texts, places = zip(
        *(text_of(each.words, settings.characters) for each in sentences), strict=True
    )
    tokenizer = preparation.tokenizer
    encoded = preparation.ids_and_spans(texts, "tokenizing", "sentence")
    rows, without_token = list[tuple](), list[str]()
    for number, (each, (ids, spans)) in enumerate(zip(sentences, encoded, strict=True)):
        words = words_of_tokens(each.words, places[number], spans)
        if not settings.characters:
            absent = sorted({*range(len(each.words))} - {*words.tolist()})
            without_token += [f"{each.words[word]!a} ({each.place})" for word in absent]
        tags = [numbers_of_labels[tag] for tag in each.tags or ()]
        tags_of_words = np.array(tags + [NONE] * (len(each.words) + 1), np.int32)
        starts = window_starts(len(ids), room, settings.doc_stride)
        owners = max_context_owner(
            starts, [min(room, len(ids) - start) for start in starts], len(ids)
        )
        for window, start in enumerate(starts):
            here = slice(start, start + room)
            own = np.pad(
                np.where(owners[here] == window, words[here], NONE), 1, constant_values=NONE
            )
            tokens = np.concatenate([[tokenizer.cls_id], ids[here], [tokenizer.sep_id]])
            rows.append((tokens, own, tags_of_words[own], len(tokens), number))
    *lists, lengths, numbers = zip(*rows, strict=True)
    names = "input_ids", "words", "tags"
    columns = {name: ragged(column, pa.int32()) for name, column in zip(names, lists, strict=True)}
    columns |= {
        "sentence_a_tokens": pa.array(lengths, pa.int32()),
        "sentence": pa.array(numbers, pa.int32()),
    }
    notes = [f"{len(sentences):,} sentences, {len(rows):,} rows"]
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
    content = digest("tagger", VERSION, tokenizer.digest, labels, flat(settings), sentences)
    facts = {
        "digest": content,
        "notes": notes,
        **preparation.fit([ids for ids, _ in encoded], texts),
    }
    return with_facts({"rows": columns}, facts)


def words_of_tokens(words: Sequence[str], starts: Sequence[int], spans: np.ndarray) -> np.ndarray:
    """For each token the number of the word whose first token it is, else NONE; int32 [n].

    `starts` are the words' first characters in the text, `spans` the tokens' characters, int32 [n,
    2]. A token belongs to the first word that it overlaps: normalization may have dropped or moved
    the word's first character.
    """
    numbers = np.full(len(spans), NONE, np.int32)
    word_starts = np.asarray(starts)
    word_ends = word_starts + [len(word) for word in words]
    owners = np.searchsorted(word_ends, spans[:, 0], side="right")
    reached = np.append(word_starts, np.iinfo(np.int64).max)[owners] < spans[:, 1]
    owned, first_tokens = np.unique(np.where(reached, owners, NONE), return_index=True)
    numbers[first_tokens] = owned
    return numbers


def best_and_losses(tags: Any, row: int, scores_TL: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The number of the best label of each token and its probability, [T, 2], and the
    cross-entropies of those with a tag; `tags` are those of all rows."""
    logs_TL, (values, offsets) = log_softmax(scores_TL.astype(float), 1), tags
    own = values[offsets[row] : offsets[row + 1]]
    used = np.flatnonzero(own >= 0)
    return np.stack([logs_TL.argmax(1), np.exp(logs_TL.max(1))], 1), -logs_TL[used, own[used]]


def tags_of(
    sentences: Sequence[Sentence],
    labels: Sequence[str],
    characters: bool,
    rows: Rows,
    kept: Sequence[np.ndarray],
) -> list[Tags]:
    """The tags of each sentence, from `kept`, for each row the numbers of labels and their
    probabilities at its tokens, [n, 2]. A word without a token has O; see `filled` for
    characters."""
    found = [([""] * len(each.words), [1.0] * len(each.words)) for each in sentences]
    (words, offsets), tokens = rows.column("words"), np.concatenate(kept)
    owners = np.repeat(rows.column("sentence"), np.diff(offsets))
    for sentence, word, (label, share) in zip(
        owners.tolist(), words.tolist(), tokens.tolist(), strict=True
    ):
        if word != NONE:
            tags, shares = found[sentence]
            tags[word], shares[word] = labels[int(label)], share
    if characters:
        return [
            (filled(each.words, tags), shares)
            for each, (tags, shares) in zip(sentences, found, strict=True)
        ]
    return [([tag or "O" for tag in tags], shares) for tags, shares in found]


def filled(characters: Sequence[str], tags: Sequence[str]) -> list[str]:
    """The tags of characters, where "" is that of one at which no token begins.

    Inside a token, and at an accent or a vowel sign, it goes on with the entity before; a blank
    belongs to it only if the next token does.
    """
    result, before, starts = list[str](), "O", character_starts("".join(characters))
    for place, (character, tag) in enumerate(zip(characters, tags, strict=True)):
        if not tag or place not in starts:
            inner = "O" if before == "O" else f"I{before[1:]}"
            after = next(filter(None, tags[place:]), "O")
            tag = "O" if character.isspace() and after != inner else inner
        result.append(tag)
        before = tag
    return result
