"""RoBERTa's byte-level tokenizer: the ids, pairs and offsets of transformers, and answers that are
substrings."""

import json
import shutil
from pathlib import Path

import pytest
from harness.real_tokenizers import byte_level, strings
from transformers import AutoTokenizer

from bert.text import tokenizer
from distributed.world import World
from tasks.runs.rows.texts import Tokenization, rows_of_texts


@pytest.fixture(scope="module")
def both():
    """Our tokenizer and transformers', of one tokenizer.json with the parts of roberta-base's."""
    return byte_level(), AutoTokenizer.from_pretrained(Path(byte_level().source).parent)


def test_ids_and_spans(both):
    (ours, theirs) = both
    texts = ["a\0b", *strings(1000, "abe THE  \n\t,.'1é한国語▁😀\u200d\u0301")]
    for text, ids, spans in zip(texts, *ours.encode(texts), strict=True):
        expected = theirs(text, add_special_tokens=False, return_offsets_mapping=True)
        assert ids.tolist() == expected["input_ids"]
        for (start, stop), (first, last) in zip(
            spans.tolist(), expected["offset_mapping"], strict=True
        ):
            assert 0 <= start <= stop <= len(text)
            if text[first:last].strip():  # a piece that is blank has no place of its own
                assert (start, stop) == (first, last), text


@pytest.mark.parametrize("stated", [{"model_max_length": 512}, {"do_lower_case": False}])
def test_a_tokenizer_config_without_a_class_changes_nothing(both, tmp_path, stated):
    """As roberta-base has it: it is no BERT tokenizer in lower case."""
    shutil.copy(both[0].source, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(stated))
    ours = tokenizer.load(folder=tmp_path, do_lower_case=False, checkpoint_name="some-cased")
    assert (ours.digest, ours.lower_case) == (both[0].digest, False)


def test_special_tokens_and_pairs(both, tmp_path, run):
    ours, theirs = both
    assert (ours.cls_id, ours.pad_id, ours.sep_id, ours.unk_id, ours.mask_id) == (0, 1, 2, 3, 4)
    assert (ours.kind, ours.separators, ours.lower_case) == ("bytes", 2, False)
    ours.save(tmp_path, has_types=False)
    again = AutoTokenizer.from_pretrained(tmp_path)
    pair = ("A rusty fox", "the End, 한국")
    assert again(*pair)["input_ids"] == theirs(*pair)["input_ids"]
    assert "token_type_ids" not in again(*pair)
    first, second = pair
    saved = Tokenization(World(), run, tokenizer.load(None, tmp_path))
    columns, fit = rows_of_texts(saved, [first, first], [second, None], 64)
    expected = [theirs(*texts)["input_ids"] for texts in (pair, [first])]
    assert columns["input_ids"].to_pylist() == expected
    assert fit["unknown_share"] == 0
    columns, _ = rows_of_texts(Tokenization(World(), run, ours), [first], [second], 9)
    (cut,) = columns["input_ids"].to_pylist()
    assert (len(cut), cut.count(2)) == (9, 3)
