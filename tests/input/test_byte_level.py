"""RoBERTa's byte-level tokenizer: the ids, pairs and offsets of transformers, and answers that are substrings."""

import numpy as np
import pytest
from harness.real_tokenizers import contexts, strings
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from bert.text import tokenizer
from tasks.texts import rows_of_texts

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Our tokenizer and transformers', of one tokenizer.json with the parts of roberta-base's."""
    folder = tmp_path_factory.mktemp("roberta")
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator(contexts()[:50], trainer)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    made.save(str(folder / "tokenizer.json"))
    return tokenizer.load(None, folder), AutoTokenizer.from_pretrained(folder)


def test_ids_and_spans(both):
    (ours, theirs), texts = both, ["a\0b", *strings(1000, "abe THE  \n\t,.'1é한国語▁😀\u200d\u0301")]
    for text, ids, spans in zip(texts, *ours.encode(texts), strict=True):
        expected = theirs(text, add_special_tokens=False, return_offsets_mapping=True)
        assert ids.tolist() == expected["input_ids"]
        for (start, stop), (first, last) in zip(spans.tolist(), expected["offset_mapping"], strict=True):
            assert 0 <= start <= stop <= len(text)
            if text[first:last].strip():  # a piece that is blank has no place of its own
                assert (start, stop) == (first, last), text


def test_special_tokens_and_pairs(both, tmp_path, run):
    ours, theirs = both
    assert (ours.cls_id, ours.pad_id, ours.sep_id, ours.unk_id, ours.mask_id) == (0, 1, 2, 3, 4)
    assert (ours.kind, ours.separators, ours.lower_case) == ("bytes", 2, False)
    ours.save(tmp_path, has_types=False)
    again = AutoTokenizer.from_pretrained(tmp_path)
    pair = ("A rusty fox", "the End, 한국")
    assert again(*pair)["input_ids"] == theirs(*pair)["input_ids"]
    assert "token_type_ids" not in again(*pair)
    columns, fit, _ = rows_of_texts([pair[0]] * 2, [pair[1], None], 64, tokenizer.load(None, tmp_path), run)
    assert columns["input_ids"].to_pylist() == [theirs(*pair)["input_ids"], theirs(pair[0])["input_ids"]]
    assert fit["unknown_share"] == 0
    (cut,) = rows_of_texts([pair[0]], [pair[1]], 9, ours, run)[0]["input_ids"].to_pylist()
    assert len(cut) == 9
    assert np.array(cut).tolist().count(2) == 3
