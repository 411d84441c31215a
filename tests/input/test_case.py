"""Lower-casing: what decides it, and what is said where it does not suit the vocabulary."""

import pytest
from harness.real_tokenizers import albert, kobert, multilingual, nsmc, uncased
from harness.refusals import refused
from harness.texts import write_vocabulary

from bert.text import tokenizer
from ringbase.errors import InputError


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
    for name, expected in (("tokenizer_config.json", 5), ("tokenizer.json", 6)):  # then vocab.txt alone
        (saved / name).unlink()
        assert ids(folder=saved) == [expected]


PUBLISHED = [
    ("/data/uncased_L-24_H-1024_A-16/bert_model.ckpt", True),
    ("chinese_L-12_H-768_A-12/bert_model.ckpt", True),
    ("/data/uncased/cased_L-24_H-1024_A-16/bert_model.ckpt", False),
    ("google-bert/bert-base-multilingual-cased", False),
    *((name, None) for name in ("", "model.ckpt-100", "runs/uncased-and-cased/x", "uppercased/bert_model.ckpt")),
]


@pytest.mark.parametrize(("name", "lower_case"), PUBLISHED)
def test_the_published_names_tell_their_case(tmp_path, name, lower_case):
    """Google's `validate_case_matches_checkpoint`."""
    path = str(write_vocabulary(tmp_path, "a"))
    for chosen in (True, False):
        if lower_case in (None, chosen):
            assert tokenizer.load(path, None, chosen, name).lower_case == chosen
        else:
            expected = f"--do_lower_case={lower_case}"
            refused(lambda: tokenizer.load(path, None, not lower_case, name), name, expected)


def test_what_a_vocabulary_loses_by_its_case_is_said():
    """Both shares are also those of Google's own tokenizer (BertTokenizerLegacy) on these lines."""
    lost, kept = multilingual(do_lower_case=True), multilingual()
    shares = [tokenizer.unknown_share(words.encode_ids(nsmc()), words.unk_id) for words in (lost, kept)]
    assert shares == pytest.approx([0.7536, 0.0164], abs=1e-4)
    with pytest.raises(InputError, match=r"75\.4%.*--do_lower_case"):
        tokenizer.check_unknown(shares[0], "ratings.txt", lost, allow_unknown=False)
    assert "--do_lower_case" in albert().case_problem  # it has no capital letters
    assert {words.case_problem for words in (albert(True), kobert(), kept, uncased())} == {""}
