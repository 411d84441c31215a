"""Real texts, and tokenizers loaded once: BERT's, KoBERT's, ALBERT's, and small ones that
SentencePiece trains."""

import functools
import io
import random
import tempfile
from pathlib import Path

import sentencepiece as library
from harness.real_data import real
from harness.squad_files import read_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from bert.text import tokenizer

CONTROLS = {
    "pad_id": 0,
    "unk_id": 1,
    "bos_id": -1,
    "eos_id": -1,
    "pad_piece": "[PAD]",
    "unk_piece": "[UNK]",
}
CHANGING = (
    "  The ﬁrst …  oﬀer①② of ｆｕｌｌ ｗｉｄｔｈ cafe\u0301 costs\u30005㎏\x07 ½ \u200bﷺ ☃ x. "
)
PLAIN = "abc the ,. ", " \t\u00a0\u3000\u200b\x07", "한국어ㅋ①ﬁ½"  # words, controls and Hangul


@functools.cache
def nsmc(lines=2000):
    rows = real("nsmc/ratings_train.txt").read_text().split("\n")[1 : lines + 1]
    return [row.split("\t")[1] for row in rows]


@functools.cache
def contexts():
    """500 contexts of SQuAD and 3,000 lines of a novel."""
    squad = read_file(real("squad/dev-v1.1.json"), is_training=False, limit=3000)
    novel = min(real("text/british_fiction").glob("*.txt"))
    return [*squad.paragraphs[:500], *novel.read_text().split("\n")[:3000]]


def strings(number, *pools):
    """Random ones of the planes of Unicode that have blanks, beside characters of these pools."""
    draw, planes = random.Random(1), "".join(map(chr, (*range(1, 0xD800), *range(0xE000, 0x20000))))
    pools = (planes, *(pools or PLAIN))
    return [
        "".join(draw.choice(draw.choice(pools)) for _ in range(draw.randrange(60)))
        for _ in range(number)
    ]


@functools.cache
def uncased():
    return tokenizer.load(str(real("vocab/bert-base-uncased.txt")))


@functools.cache
def multilingual(do_lower_case=False):
    """Of a vocabulary with capital letters and whole Hangul syllables."""
    return tokenizer.load(
        str(real("vocab/bert-base-multilingual-cased.txt")), do_lower_case=do_lower_case
    )


@functools.cache
def kobert():
    return tokenizer.load(
        str(real("vocab/kobert_vocab.json")), spm_model_file=str(real("vocab/kobert.model"))
    )


@functools.cache
def albert(do_lower_case=False):
    path = str(real("vocab/albert_base_v1.model"))
    return tokenizer.load(spm_model_file=path, do_lower_case=do_lower_case)


@functools.cache
def processor(name):
    """The library's own tokenizer of a real model."""
    return library.SentencePieceProcessor(model_file=str(real(f"vocab/{name}.model")))


def train(folder, kind="unigram", vocab_size=1600, **options):
    """Trains a model with the library on 300 lines of NSMC and 600 of a novel; its path."""
    options = {"control_symbols": ["[CLS]", "[SEP]", "[MASK]"], **CONTROLS, **options}
    model = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter([*nsmc()[:300], *contexts()[500:1100]]),
        model_writer=model,
        model_type=kind,
        vocab_size=vocab_size,
        minloglevel=3,
        **options,
    )
    path = Path(tempfile.mkdtemp(dir=folder), "some.model")
    path.write_bytes(model.getvalue())
    return path


@functools.cache
def byte_level():
    """A small one with the parts of roberta-base's tokenizer.json."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(contexts()[:50], trainer)
    made.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=False
    )
    folder = Path(tempfile.mkdtemp())
    made.save(str(folder / "tokenizer.json"))
    return tokenizer.load(folder=folder)
