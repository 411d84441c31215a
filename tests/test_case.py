"""Lower-casing: what decides it, and what is said where it does not suit the vocabulary."""

import dataclasses
import json

import pytest
from real_tokenizers import albert, contexts, kobert, multilingual, nsmc, uncased
from texts import write_vocabulary

from bert.text import case, tokenizer
from distributed.world import World
from ringbert.errors import InputError
from tasks import corpus
from tasks.corpus import BuildConfig
from tasks.origin import ModelSettings, Needs, origin_of_model
from tasks.squad.reading import Source, read
from tasks.squad.settings import WindowSettings
from tasks.squad.windows import windows


def test_lower_case_is_the_default_and_a_folder_s_word_counts(tmp_path):
    path = str(write_vocabulary(tmp_path, "Ab", "ab"))
    assert tokenizer.load(path).encode(["Ab"])[0][0].tolist() == [6]
    keeping = tokenizer.load(path, do_lower_case=False)
    assert keeping.encode(["Ab"])[0][0].tolist() == [5]
    assert keeping.digest != tokenizer.load(path).digest

    keeping.save(tmp_path / "saved")
    assert not tokenizer.load(folder=tmp_path / "saved").lower_case
    assert not tokenizer.load(path, folder=tmp_path / "saved").lower_case
    with pytest.raises(
        InputError, match=r"--do_lower_case=True, but the tokenizer of .*saved says do_lower_case=False"
    ):
        tokenizer.load(folder=tmp_path / "saved", do_lower_case=True)
    assert tokenizer.load(path, folder=tmp_path / "saved", do_lower_case=True).lower_case

    (tmp_path / "saved" / "tokenizer_config.json").unlink()  # tokenizer.json says it too
    alone = tokenizer.load(folder=tmp_path / "saved")
    assert not alone.lower_case
    assert alone.encode(["Ab"])[0][0].tolist() == [5]
    (tmp_path / "saved" / "tokenizer.json").unlink()  # only vocab.txt
    assert tokenizer.load(folder=tmp_path / "saved").encode(["Ab"])[0][0].tolist() == [6]


LOWER = [
    "uncased_L-12_H-768_A-12/bert_model.ckpt",
    "/data/uncased_L-24_H-1024_A-16/bert_model.ckpt",
    "wwm_uncased_L-24_H-1024_A-16/bert_model.ckpt",
    "multilingual_L-12_H-768_A-12/bert_model.ckpt",
    "chinese_L-12_H-768_A-12/bert_model.ckpt",
    "/cased_models/uncased_L-12_H-768_A-12/bert_model.ckpt",
    "google-bert/bert-base-uncased",
]
CASED = [
    "cased_L-12_H-768_A-12/bert_model.ckpt",
    "cased_L-24_H-1024_A-16/bert_model.ckpt",
    "/data/uncased/cased_L-24_H-1024_A-16/bert_model.ckpt",
    "wwm_cased_L-24_H-1024_A-16/bert_model.ckpt",
    "multi_cased_L-12_H-768_A-12/bert_model.ckpt",
    "multi_cased_L-12_H-768_A-12",
    "google-bert/bert-base-cased",
    "google-bert/bert-base-multilingual-cased",
]
NEITHER = ["", "model.ckpt-100", "runs/uncased-and-cased/squad/model.ckpt-100", "uppercased/bert_model.ckpt"]


@pytest.mark.parametrize("name", LOWER + CASED + NEITHER)
def test_the_published_names_tell_their_case(name):
    for lower_case in (True, False):
        if (lower_case and name in CASED) or (not lower_case and name in LOWER):
            with pytest.raises(InputError, match=f"use --do_lower_case={not lower_case}$"):
                case.check_case(lower_case, name)
        else:
            case.check_case(lower_case, name)


def test_the_check_is_made_when_loading(tmp_path):
    path = str(write_vocabulary(tmp_path, "a"))
    with pytest.raises(InputError, match=r"does not match checkpoint multi_cased_L-12_H-768_A-12/bert_model.ckpt"):
        tokenizer.load(path, checkpoint_name="multi_cased_L-12_H-768_A-12/bert_model.ckpt")
    tokenizer.load(path, do_lower_case=False, checkpoint_name="multi_cased_L-12_H-768_A-12/bert_model.ckpt")


def test_lower_case_turns_korean_into_unknown_tokens(tmp_path, run):
    """What the default does to a cased vocabulary, and that training stops on it. Both shares are also those of
    Google's own tokenizer (BertTokenizerLegacy) on these lines."""
    texts = nsmc()
    cased, lowered = multilingual(), multilingual(do_lower_case=True)
    assert tokenizer.load(cased.source).digest == lowered.digest
    shares = [tokenizer.unknown_share(t.encode(texts)[0], t.unk_id) for t in (lowered, cased)]
    assert shares == pytest.approx([0.7536, 0.0164], abs=1e-4)

    long = [text for text in texts if len(text) > 60][:20]
    qas = [
        {"id": f"k{number}", "question": text[:20], "answers": [{"text": text.split()[0], "answer_start": 0}]}
        for number, text in enumerate(long)
    ]
    data = [{"paragraphs": [{"context": text, "qas": [qa]} for text, qa in zip(long, qas, strict=True)]}]
    (tmp_path / "korquad.json").write_text(json.dumps({"version": "KorQuAD_v1.0", "data": data}), encoding="utf-8")
    examples = read(Source(str(tmp_path / "korquad.json"), "--train_file", is_training=True))
    settings = WindowSettings(max_seq_length=128, doc_stride=64, max_query_length=32)
    cache = tmp_path / "cache"
    with pytest.raises(
        InputError, match=r"\d\d\.\d% of the tokens are \[UNK\] with .*lower case True.*--do_lower_case"
    ):
        windows(settings, examples, lowered, cache, run)
    assert windows(dataclasses.replace(settings, allow_unknown=True), examples, lowered, cache, run)
    assert windows(settings, examples, cased, cache, run)


def test_vocabularies_that_expect_another_case():
    """ALBERT's has no capital letters; multilingual BERT's has whole Hangul syllables, which it takes apart."""
    lowered = albert(do_lower_case=True)
    assert "no capital letters, so that they become [UNK]: give --do_lower_case" in albert().case_problem
    assert [words.case_problem for words in (lowered, kobert())] == ["", ""]
    assert tokenizer.unknown_share(albert().encode(contexts()[:300])[0], albert().unk_id) > 0.05
    assert tokenizer.unknown_share(lowered.encode(contexts()[:300])[0], lowered.unk_id) < 0.005
    assert "give --do_lower_case=False" in multilingual(do_lower_case=True).case_problem
    assert multilingual().case_problem == uncased().case_problem == ""


def test_korean_under_lower_casing_is_warned_of_where_tokenizers_are_loaded(tmp_path, capsys):
    """By the programs that start from a model, and by bert-corpus, which then refuses Korean text."""
    words, said = multilingual().source, []
    config = {"vocab_size": 119547, "hidden_size": 12, "max_position_embeddings": 128}
    (tmp_path / "bert_config.json").write_text(json.dumps(config))
    settings = ModelSettings(bert_config_file=str(tmp_path / "bert_config.json"), vocab_file=words)
    origin_of_model(settings, said.append, Needs(max_seq_length=128))
    warning = f"warning: {words} has whole Hangul syllables, which lower-casing takes apart"
    assert [line.startswith(warning) for line in said] == [True]

    (tmp_path / "a.txt").write_text("\n\n".join(nsmc()), encoding="utf-8")
    config = BuildConfig(
        input_file=str(tmp_path / "a.txt"), output_dir=str(tmp_path / "out"), vocab_file=words, num_workers=1
    )
    with pytest.raises(InputError, match=r"\d\d\.\d% of the tokens are \[UNK\]"):
        corpus.build(config, World())
    printed = capsys.readouterr().err
    assert printed.startswith(warning)
    assert printed.endswith("so that Korean text becomes [UNK]: give --do_lower_case=False\n")
    assert not list((tmp_path / "out").glob(".work/unit-*"))
