"""Lower-casing: what decides it, and what is said where it does not suit the vocabulary."""

import pytest
from harness.real_tokenizers import albert, contexts, kobert, multilingual, nsmc, uncased
from harness.refusals import refused
from harness.texts import write_vocabulary

from bert.text import tokenizer


def test_lower_case_is_the_default_and_a_folder_s_word_counts(tmp_path):
    path, saved = str(write_vocabulary(tmp_path, "Ab", "ab")), tmp_path / "saved"

    def ids(**given):
        return tokenizer.load(**given).encode(["Ab"])[0][0].tolist()

    assert ids(vocab_file=path) == [6]
    assert ids(vocab_file=path, do_lower_case=False) == [5]
    tokenizer.load(path, do_lower_case=False).save(saved)
    assert ids(folder=saved) == ids(vocab_file=path, folder=saved) == [5]
    assert ids(vocab_file=path, folder=saved, do_lower_case=True) == [6]
    refused(lambda: tokenizer.load(folder=saved, do_lower_case=True), "--do_lower_case", saved)
    (saved / "tokenizer_config.json").unlink()  # tokenizer.json says it too
    assert ids(folder=saved) == [5]
    (saved / "tokenizer.json").unlink()  # only vocab.txt
    assert ids(folder=saved) == [6]


PUBLISHED = [
    ("/data/uncased_L-24_H-1024_A-16/bert_model.ckpt", True),
    ("chinese_L-12_H-768_A-12/bert_model.ckpt", True),
    ("/data/uncased/cased_L-24_H-1024_A-16/bert_model.ckpt", False),
    ("google-bert/bert-base-multilingual-cased", False),
    *((name, None) for name in ("", "model.ckpt-100", "runs/uncased-and-cased/x", "uppercased/bert_model.ckpt")),
]


@pytest.mark.parametrize(("name", "lower_case"), PUBLISHED)
def test_the_published_names_tell_their_case(tmp_path, name, lower_case):
    path = str(write_vocabulary(tmp_path, "a"))
    for chosen in (True, False):
        if lower_case in (None, chosen):
            assert tokenizer.load(path, None, chosen, name).lower_case == chosen
        else:
            refused(
                lambda: tokenizer.load(path, None, not lower_case, name), name, f"--do_lower_case={lower_case}"
            )


def test_lower_case_turns_korean_into_unknown_tokens():
    """Both shares are also those of Google's own tokenizer (BertTokenizerLegacy) on these lines."""
    loaded = multilingual(do_lower_case=True), multilingual()
    shares = [tokenizer.unknown_share(words.encode_ids(nsmc()), words.unk_id) for words in loaded]
    assert shares == pytest.approx([0.7536, 0.0164], abs=1e-4)


def test_vocabularies_that_expect_another_case_are_told():
    """ALBERT's has no capital letters; multilingual BERT's has whole Hangul syllables, which it takes apart."""
    lowered = albert(do_lower_case=True)
    assert "--do_lower_case" in albert().case_problem
    assert "--do_lower_case=False" in multilingual(do_lower_case=True).case_problem
    assert {words.case_problem for words in (lowered, kobert(), multilingual(), uncased())} == {""}
    assert tokenizer.unknown_share(albert().encode_ids(contexts()[:300]), albert().unk_id) > 0.05
    assert tokenizer.unknown_share(lowered.encode_ids(contexts()[:300]), lowered.unk_id) < 0.005
