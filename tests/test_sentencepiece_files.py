"""Files of SentencePiece tokenizers: saved, loaded by transformers, published by others, damaged."""

import json
import pickle

import numpy as np
import pytest
from real_data import real
from real_tokenizers import CHANGING, albert, contexts, kobert, nsmc, train
from sentencepiece import sentencepiece_model_pb2
from transformers import AutoTokenizer

from bert.text import sentencepiece_model, tokenizer
from ringbert.errors import InputError


@pytest.mark.parametrize("name", ["kobert", pytest.param("albert", marks=pytest.mark.slow), "lowered", "bpe"])
def test_a_saved_tokenizer_gives_the_same_ids(tmp_path, tmp_path_factory, name):
    if name == "bpe":
        model = train(tmp_path_factory.mktemp("bpe"), "bpe")
        ours = tokenizer.load(spm_model_file=str(model))
    else:
        ours = kobert() if name == "kobert" else albert(do_lower_case=name == "lowered")
    texts = [*nsmc(200), *contexts()[:50], CHANGING]
    ids = [x.tolist() for x in ours.encode(texts)[0]]
    ours.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "spiece.model",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    again = tokenizer.load(folder=tmp_path)
    assert (again.digest, again.lower_case, again.kind) == (ours.digest, ours.lower_case, "sentencepiece")
    assert (again.pad_id, again.unk_id, again.cls_id, again.sep_id, again.mask_id, again.special_ids) == (
        ours.pad_id, ours.unk_id, ours.cls_id, ours.sep_id, ours.mask_id, ours.special_ids,
    )  # fmt: skip
    assert [ids.tolist() for ids in ours.encode_ids(texts)] == [ids.tolist() for ids in ours.encode(texts)[0]]
    for a, b in zip(again.encode(texts), ours.encode(texts), strict=True):
        for here, there in zip(a, b, strict=True):
            np.testing.assert_array_equal(here, there)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(texts, add_special_tokens=False).input_ids == ids
    # Beside a model's configuration transformers chooses the class by the model's type.
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(texts, add_special_tokens=False).input_ids == ids
    pair = theirs("the", "cat")
    sides = [x.tolist() for x in ours.encode(["the", "cat"])[0]]
    assert pair.input_ids == [ours.cls_id, *sides[0], ours.sep_id, *sides[1], ours.sep_id]
    assert pair.token_type_ids == [0] * (len(sides[0]) + 2) + [1] * (len(sides[1]) + 1)
    assert theirs.pad_token_id == ours.pad_id
    assert theirs.mask_token_id == ours.mask_id
    again.save(tmp_path / "twice")
    assert (tmp_path / "twice" / "spiece.model").read_bytes() == (tmp_path / "spiece.model").read_bytes()
    assert (tmp_path / "twice" / "tokenizer.json").read_text() == (tmp_path / "tokenizer.json").read_text()


def test_folders_with_a_model(tmp_path):
    """A folder as KoBERT's users publish it: some.model and a vocab.txt; and one with a model alone."""
    lines = json.loads(real("vocab/kobert_vocab.json").read_text(encoding="utf-8"))["idx_to_token"]
    (tmp_path / "vocab.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (tmp_path / "tokenizer_78b3253a26.model").write_bytes(real("vocab/kobert.model").read_bytes())
    assert tokenizer.load(folder=tmp_path).digest == kobert().digest
    (tmp_path / "other.model").write_bytes(b"")
    with pytest.raises(
        InputError, match=r"has 2 SentencePiece models \(other\.model, .*\): give --spm_model_file"
    ):
        tokenizer.load(folder=tmp_path)
    alone = tmp_path / "alone"
    alone.mkdir()
    model = train(tmp_path)
    (alone / "spiece.model").write_bytes(model.read_bytes())
    assert tokenizer.load(folder=alone).digest == tokenizer.load(spm_model_file=str(model)).digest
    (alone / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert tokenizer.load(folder=alone).lower_case
    with pytest.raises(
        InputError, match=r"--do_lower_case=False, but the tokenizer of .* says do_lower_case=True"
    ):
        tokenizer.load(folder=alone, do_lower_case=False)


def test_somebody_else_s_file_is_guarded_too(tmp_path):
    """A tokenizer.json without our cuts, as transformers writes it: literal special tokens are still text."""
    albert().save(tmp_path)
    values = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    values["pre_tokenizer"] = values["pre_tokenizer"]["pretokenizers"][0]
    (tmp_path / "tokenizer.json").write_text(json.dumps(values), encoding="utf-8")
    ours = tokenizer.load(folder=tmp_path)
    text = "a [MASK] and <pad>[SEP]"
    assert ours.encode([text])[0][0].tolist() == albert().encode([text])[0][0].tolist()


def test_a_tokenizer_sent_to_another_rank_gives_the_same_ids():
    assert kobert().continues_word.any()
    sent = pickle.loads(pickle.dumps(kobert()))
    for here, there in zip(
        kobert().encode([*nsmc(50), "[MASK]"])[0], sent.encode([*nsmc(50), "[MASK]"])[0], strict=True
    ):
        assert here.tolist() == there.tolist()
    assert sent.digest == kobert().digest
    assert (sent.continues_word == kobert().continues_word).all()


# -- faults -------------------------------------------------------------------------------------------------------


def test_models_that_cannot_be_used(tmp_path):
    kobert, albert = str(real("vocab/kobert.model")), real("vocab/albert_base_v1.model")
    with pytest.raises(
        InputError, match=r"kobert\.model has no \[PAD\], \[CLS\], \[SEP\], \[MASK\]: give a --vocab_file"
    ) as caught:
        tokenizer.load(spm_model_file=kobert)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"some\.model has no \[MASK\]: give a --vocab_file that lists it"):
        tokenizer.load(spm_model_file=str(train(tmp_path, control_symbols=["[CLS]", "[SEP]"])))
    (tmp_path / "short.model").write_bytes(albert.read_bytes()[:5000])
    with pytest.raises(InputError, match=r"^--spm_model_file .*short\.model: damaged"):
        tokenizer.load(spm_model_file=str(tmp_path / "short.model"))
    (tmp_path / "text.model").write_text("no model\n")
    with pytest.raises(InputError, match=r"^--spm_model_file .*text\.model: "):
        tokenizer.load(spm_model_file=str(tmp_path / "text.model"))
    (tmp_path / "empty.model").write_bytes(b"")
    with pytest.raises(InputError, match=r"empty\.model: a SentencePiece model without pieces"):
        tokenizer.load(spm_model_file=str(tmp_path / "empty.model"))
    with pytest.raises(InputError, match=r"^--spm_model_file .*nowhere\.model: No such file or directory$"):
        tokenizer.load(spm_model_file=str(tmp_path / "nowhere.model"))
    with pytest.raises(InputError, match=r"model type 4 is neither"):
        tokenizer.load(spm_model_file=str(train(tmp_path, "char", 1000)))
    parsed = sentencepiece_model_pb2.ModelProto()
    parsed.ParseFromString(albert.read_bytes())
    parsed.pieces[100].type = sentencepiece_model.UNUSED
    (tmp_path / "unused.model").write_bytes(parsed.SerializeToString())
    with pytest.raises(InputError, match=r"1 of 30000 pieces are marked unused"):
        tokenizer.load(spm_model_file=str(tmp_path / "unused.model"))


def test_vocabularies_that_do_not_fit(tmp_path):
    lines = json.loads(real("vocab/kobert_vocab.json").read_text(encoding="utf-8"))["idx_to_token"]
    path = tmp_path / "vocab.json"

    def load(values):
        path.write_text(json.dumps(values), encoding="utf-8")
        return tokenizer.load(str(path), spm_model_file=str(real("vocab/kobert.model")))

    with pytest.raises(
        InputError, match=r"lacks 2 of the 7997 pieces of .*kobert\.model, .*do not belong together"
    ):
        load(lines[:-2])
    with pytest.raises(
        InputError, match=r"vocab\.json \(ids for .*kobert\.model\) has no \[MASK\]: --vocab_file must"
    ):
        load([line for line in lines if line != "[MASK]"])
    with pytest.raises(InputError, match=r"8003 lines, but 8002 pieces: '\[PAD\]' is repeated"):
        load([*lines, "[PAD]"])
    with pytest.raises(InputError, match=r"ids of its 8002 pieces must be 0 to 8001, each once; got 1 to 8002"):
        load({line: number + 1 for number, line in enumerate(lines)})
    with pytest.raises(InputError, match="neither a list of pieces nor an object"):
        load({"version": "1"})
    path.write_text('["a", ')
    with pytest.raises(InputError, match=r"^--vocab_file .*vocab\.json: not valid JSON"):
        tokenizer.load(str(path), spm_model_file=str(real("vocab/kobert.model")))
    with pytest.raises(InputError, match=r"vocab\.json: not a WordPiece vocabulary; .*--spm_model_file"):
        tokenizer.load(str(path))
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "BPE"}, "pre_tokenizer": {"type": "ByteLevel"}}')
    with pytest.raises(InputError, match="a BPE tokenizer is neither WordPiece nor SentencePiece"):
        tokenizer.load(folder=tmp_path)
