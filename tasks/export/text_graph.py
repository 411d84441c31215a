"""BERT's WordPiece tokenizer in TensorFlow's own operations, so that a SavedModel takes texts.

Shapes, as suffixes: B texts, C characters of all texts, W words of all texts, P pieces of all texts, L lengths.
"""

import sys
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert.text.tokenizer import MAX_CHARACTERS_PER_WORD, Tokenizer
from tasks.export.characters import CONTINUATION, LETTER, SPACE, SURROGATES, table_of, vocabulary

ROW, AT_ONCE = 64, 4096  # characters of a text, and texts, that are compared at once
REPLACEMENT = 0xFFFD  # for bytes that are not UTF-8; the tokenizer removes it


class Pieces(NamedTuple):
    """The pieces of texts.

    Attributes:
      ids: int32, ragged [B, pieces].
      starts, ends: int32, ragged [B, pieces]: the characters of the text that the piece stands for.
    """

    ids: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor


class _Words(NamedTuple):
    """Words: their characters and the places of these in their text, ragged [W, characters]; and which text."""

    characters: tf.RaggedTensor
    places: tf.RaggedTensor
    text_W: tf.Tensor


class TextGraph(tf.Module):
    """The graph of a tokenizer for which `tasks.export.characters.why_not` says nothing."""

    def __init__(self, tokenizer: Tokenizer):
        super().__init__(name="tokenizer")
        table, pieces = table_of(tokenizer), vocabulary(tokenizer)
        self.values = tf.Variable(table.values, trainable=False, name="characters")
        self.offsets = tf.Variable(table.offsets, trainable=False, name="offsets")
        names, numbers = list(pieces), np.array(list(pieces.values()), np.int32)
        initializer = tf.lookup.KeyValueTensorInitializer(tf.constant(names), tf.constant(numbers))
        self.numbers = tf.lookup.StaticHashTable(initializer, default_value=-1)
        self.longest = max(len(name.removeprefix(CONTINUATION)) for name in names)
        self.unk_id = tokenizer.unk_id

    def difference(self, tokenizer: Tokenizer) -> str:
        """A difference between the graph and its tokenizer, in texts of all characters; "" if there is none."""
        texts = [
            "".join(chr(c) + LETTER for c in range(start, start + ROW) if c not in SURROGATES)
            for start in range(0, sys.maxunicode + 1, ROW)
        ]
        texts += list(vocabulary(tokenizer))
        pieces = tf.function(self.pieces, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
        for start in range(0, len(texts), AT_ONCE):
            some = texts[start : start + AT_ONCE]
            for text, here, there in zip(
                some, pieces(tf.constant(some)).ids.to_list(), tokenizer.encode_ids(some), strict=True
            ):
                if here != there.tolist():
                    return f"TensorFlow cuts {text[:40]!r} in another way"
        return ""

    def pieces(self, texts_B: tf.Tensor) -> Pieces:
        """The pieces that `Tokenizer.encode` gives for these texts (UTF-8), without special tokens."""
        words = self._words(texts_B)
        found = self._of_words(words.characters)
        word_P = found.value_rowids()
        text_P = tf.gather(words.text_W, word_P)
        number = tf.size(texts_B)
        first_P, last_P = tf.unstack(found.flat_values[:, 1:], axis=1)
        row_starts = tf.gather(words.places.row_starts(), word_P)
        starts_P = tf.gather(words.places.flat_values, row_starts + tf.cast(first_P, tf.int64))
        ends_P = tf.gather(words.places.flat_values, row_starts + tf.cast(last_P, tf.int64) - 1) + 1

        def by_text(values_P: tf.Tensor) -> tf.RaggedTensor:
            return tf.RaggedTensor.from_value_rowids(values_P, text_P, tf.cast(number, tf.int64), validate=False)

        return Pieces(by_text(found.flat_values[:, 0]), by_text(starts_P), by_text(ends_P))

    def _words(self, texts_B: tf.Tensor) -> _Words:
        """The words of normalized texts."""
        decoded = tf.strings.unicode_decode(texts_B, "UTF-8", errors="replace", replacement_char=REPLACEMENT)
        begin, end = tf.gather(self.offsets, decoded.flat_values), tf.gather(self.offsets, decoded.flat_values + 1)
        place = tf.ragged.range(decoded.row_lengths()).flat_values
        becomes = tf.ragged.range(begin, end)
        values_C = tf.gather(self.values, becomes.flat_values)
        source_C = becomes.value_rowids()
        text_C = tf.gather(decoded.value_rowids(), source_C)
        place_C = tf.cast(tf.gather(place, source_C), tf.int32)

        is_letter = values_C != SPACE
        before = tf.concat([[False], is_letter[:-1]], 0)
        same_text = tf.concat([[False], text_C[1:] == text_C[:-1]], 0)
        begins = is_letter & ~(before & same_text)
        word_C = tf.cumsum(tf.cast(begins, tf.int64)) - 1
        count = tf.reduce_sum(tf.cast(begins, tf.int64))
        word = tf.boolean_mask(word_C, is_letter)

        def by_word(numbers_C: tf.Tensor) -> tf.RaggedTensor:
            kept = tf.boolean_mask(numbers_C, is_letter)
            return tf.RaggedTensor.from_value_rowids(kept, word, count, validate=False)

        return _Words(by_word(values_C), by_word(place_C), tf.boolean_mask(text_C, begins))

    def _of_words(self, characters: tf.RaggedTensor) -> tf.RaggedTensor:
        """The pieces of each word, int32, ragged [W, pieces, 3]: id, first character, last character + 1.

        From its left, a word is cut into the longest pieces of the vocabulary. One that cannot be cut is [UNK].
        """
        words_W = tf.strings.unicode_encode(characters, "UTF-8")
        length_W = tf.cast(characters.row_lengths(), tf.int32)
        fits_W = length_W <= MAX_CHARACTERS_PER_WORD

        def is_left(turn, place_W, good_W, taken):
            return tf.reduce_any(good_W & (place_W < length_W))

        def take(turn, place_W, good_W, taken):
            active = tf.where(good_W & (place_W < length_W))[:, 0]
            place = tf.gather(place_W, active)
            ids, lengths = self._longest_pieces(tf.gather(words_W, active), place, tf.gather(length_W, active))
            where = active[:, None]
            entry = tf.stack([ids, place, place + lengths], 1)
            empty = tf.fill([tf.size(words_W), 3], -1)
            taken = taken.write(turn, tf.tensor_scatter_nd_update(empty, where, entry))
            place_W = tf.tensor_scatter_nd_update(place_W, where, place + lengths)
            good_W = tf.tensor_scatter_nd_update(good_W, where, ids >= 0)
            return turn + 1, place_W, good_W, taken

        taken = tf.TensorArray(tf.int32, 0, dynamic_size=True, element_shape=[None, 3], clear_after_read=True)
        start = (tf.constant(0), tf.zeros_like(length_W), fits_W, taken)
        turns, _, good_W, taken = tf.while_loop(is_left, take, start)
        # [UNK] for the whole word is one more turn, so that there is always one.
        unknown = tf.stack([tf.fill(tf.shape(length_W), self.unk_id), tf.zeros_like(length_W), length_W], 1)
        taken = taken.write(turns, tf.where(good_W[:, None], -1, unknown))
        pieces = taken.stack()  # [turns, W, 3]
        is_unknown = tf.range(turns + 1) == turns
        kept = tf.where((pieces[:, :, 0] >= 0) & (good_W[None] | is_unknown[:, None]))  # turn and word of each
        kept = tf.gather(kept, tf.argsort(kept[:, 1], stable=True))
        number = tf.size(words_W, tf.int64)
        return tf.RaggedTensor.from_value_rowids(tf.gather_nd(pieces, kept), kept[:, 1], number, validate=False)

    def _longest_pieces(
        self, words: tf.Tensor, place: tf.Tensor, length: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The longest piece of each word that begins at `place`: its id, -1 if there is none, and its length."""
        lengths_L = tf.range(1, self.longest + 1)
        shape = [tf.size(words), self.longest]
        parts = tf.strings.substr(
            tf.broadcast_to(words[:, None], shape),
            tf.broadcast_to(place[:, None], shape),
            tf.broadcast_to(lengths_L, shape),
            unit="UTF8_CHAR",
        )
        prefix = tf.where(place > 0, CONTINUATION, "")
        ids = self.numbers.lookup(tf.strings.join([tf.broadcast_to(prefix[:, None], shape), parts]))
        ids = tf.where(lengths_L[None] <= (length - place)[:, None], ids, -1)
        best = tf.reduce_max(tf.where(ids >= 0, lengths_L[None], 0), 1)
        found = tf.gather(ids, tf.maximum(best - 1, 0), batch_dims=1)
        return tf.where(best > 0, found, -1), best
