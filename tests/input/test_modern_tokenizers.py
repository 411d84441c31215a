"""The tokenizers of ModernBERT (byte-level BPE) and mmBERT (Gemma's): transformers' ids, also from
the files that we write, and places that cover the text, in many scripts."""

import json
import unicodedata

import pytest
from harness.refusals import refused
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


def llama():
    """As transformers converts Llama's: ▁ by the normalizer, also before the text."""
    made = gemma()
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.pre_tokenizer = None
    return made


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (modernbert, "TokenizersBackend"),
        (gemma, "TokenizersBackend"),
        (gemma, "GemmaTokenizerFast"),
        (gemma, "GemmaTokenizer"),
        (llama, "LlamaTokenizerFast"),
        (llama, "LlamaTokenizer"),
    ],
)
def test_ids_are_those_of_transformers_and_places_cover_the_text(make, kind, tmp_path):
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
    stated |= {"tokenizer_class": kind, "backend": "tokenizers"}
    # transformers 4 reads Llama's tokenizer.json as it is; 5 makes parts of its own instead, which
    # forget a blank at the beginning of a text
    as_it_is = {"tokenizer_class": "PreTrainedTokenizerFast"} if make is llama else {}
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(stated | as_it_is))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    path.write_text(json.dumps(stated))
    ours = tokenizer.load(folder=tmp_path)
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


@pytest.mark.parametrize("kind", ["GemmaTokenizer", "LlamaTokenizerFast"])
def test_classes_with_code_of_their_own_need_a_tokenizer_json(kind, tmp_path):
    """Their .model file alone does not say all that they do."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    (tmp_path / "tokenizer.model").write_bytes(b"")
    refused(lambda: tokenizer.load(folder=tmp_path), "tokenizer_config.json", kind[:5])
