"""The tokenizers of ModernBERT (byte-level BPE) and mmBERT (Gemma's): transformers' ids, also from
the files that we write, and places that cover the text, in many scripts."""

import json
import unicodedata

import pytest
from harness.texts import ALL_WORDS
from tokenizers import (
    AddedToken,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer

from bert.text import tokenizer

INVISIBLE = " \u00ad"
TEXTS = [
    "a very fine film",
    "  two  blanks ",
    "cafe\u0301 naïve",
    "한국어 영화가 좋다",
    "ภาพยนตร์ดีมาก",
    "हिन्दी फ़िल्म",
    "العربية جيدة",
    "日本語の映画",
    "中文电影很好",
    "Ελληνικά",
    "עברית טובה",
    "русский фильм",
    "മലയാളം",
    "emoji 😀👩\u200d👩\u200d👧 \u00ad x",
]


def train(made, special):
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=special, initial_alphabet=alphabet)
    made.train_from_iterator(ALL_WORDS, trainer)
    return made


def modernbert():
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return train(made, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])


def gemma():
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    special = ["<pad>", "<unk>", "<bos>", "<eos>", "<mask>"]
    return train(made, [*special, *(f"<0x{byte:02X}>" for byte in range(256))])


@pytest.mark.parametrize("make", [modernbert, gemma])
def test_ids_are_those_of_transformers_and_places_cover_the_text(make, tmp_path):
    made = make()
    names = [made.id_to_token(number) for number in range(5)]
    made.add_special_tokens([AddedToken(name, special=True) for name in names])
    _, _, cls, sep, _ = names
    made.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B {sep}",
        special_tokens=[(name, made.token_to_id(name)) for name in (cls, sep)],
    )
    made.save(str(tmp_path / "tokenizer.json"))
    kinds = ("pad", "unk", "cls", "sep", "mask")
    stated = {f"{kind}_token": name for kind, name in zip(kinds, names, strict=True)}
    stated |= {"tokenizer_class": "TokenizersBackend", "backend": "tokenizers"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(stated))
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), tokenizer.load(folder=tmp_path)
    assert [ours.pad_id, ours.unk_id, ours.cls_id, ours.sep_id, ours.mask_id] == [*range(5)]
    ours.save(tmp_path / "saved")
    written = AutoTokenizer.from_pretrained(tmp_path / "saved")
    for text, ids, spans in zip(TEXTS, *ours.encode(TEXTS), strict=True):
        assert ids.tolist() == theirs(text, add_special_tokens=False)["input_ids"]
        if make is modernbert:
            assert ours.text_of(ids) == unicodedata.normalize("NFC", text)
        for pair in ((text,), (text, "b")):
            assert written(*pair)["input_ids"] == theirs(*pair)["input_ids"]
        covered = {place for start, stop in spans.tolist() for place in range(start, stop)}
        assert covered >= {place for place, c in enumerate(text) if c not in INVISIBLE}
        assert all(0 <= start < stop <= len(text) for start, stop in spans.tolist())
