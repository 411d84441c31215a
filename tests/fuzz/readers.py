"""The readers under attack: the files that each gets, how it is called, and what must hold for what it accepts.

A reader is called as the programs call it. It returns if it accepts its files, after checking what it read, or
raises InputError. Anything else is a fault.
"""

import contextlib
import io
import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from bert.text.tokenizer_files import SPECIAL_TOKENS
from distributed.run import Run
from ringbert import manifest
from ringbert.errors import InputError

SENTENCES = ("the cat sat on the mat .", "a dog ran , and ran", "Émile saw 3 foxes [SEP] 가나다", "", "x" * 300)


@dataclass(frozen=True)
class Reader:
    """A reader and its files.

    Attributes:
      files: name -> (content, kind of its changes). One of them is changed in a case.
      read: (folder, changed file) -> None; checks what it accepts with `assert`.
      share: of the cases.
      others: files that are never changed.
      before: prepares the folder after its files are written.
    """

    name: str
    files: Mapping[str, tuple[bytes, str]]
    read: Callable[[Path, str], None]
    share: float = 1.0
    others: Mapping[str, bytes] = field(default_factory=dict)
    before: Callable[[Path], None] = lambda folder: None
    takes_flags: bool = False


def to_json(value: object) -> bytes:
    return json.dumps(value, indent=1).encode()


def rows(*values: object) -> bytes:
    return "".join(json.dumps(value) + "\n" for value in values).encode()


# -- JSON ---------------------------------------------------------------------------------------------------------


def read_any_json(folder: Path, name: str) -> None:
    from ringbert.json_files import read_json

    value = read_json(folder / name)
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    assert type(value) in (dict, list, str, int, float, bool, type(None))


ANY_JSON = to_json(
    {"a": [1, -2.5, 1e-7, None, True, "text \u2603 \U0001f600"], "b": {"c": {"d": [[], {}, ""]}}, "": 0}
)

# -- the model's configuration ------------------------------------------------------------------------------------

CONFIG = {
    "architectures": ["BertForSequenceClassification"],
    "attention_probs_dropout_prob": 0.1,
    "classifier_dropout": None,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 32,
    "id2label": {"0": "no", "1": "yes"},
    "initializer_range": 0.02,
    "intermediate_size": 64,
    "label2id": {"no": 0, "yes": 1},
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 24,
    "model_type": "bert",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "problem_type": "single_label_classification",
    "is_decoder": False,
    "dtype": "float32",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 60,
}
GOOGLE = {
    "attention_probs_dropout_prob": 0.1,
    "directionality": "bidi",
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 32,
    "initializer_range": 0.02,
    "intermediate_size": 64,
    "max_position_embeddings": 24,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "type_vocab_size": 2,
    "vocab_size": 60,
}


def read_configuration(folder: Path, name: str) -> None:
    from bert import configuration
    from tasks.classifier.labels import label_names, stated_labels, with_labels

    config = configuration.config_from_file(folder / name)
    sizes = [
        config.vocab_size,
        config.hidden_size,
        config.num_hidden_layers,
        config.num_attention_heads,
        config.intermediate_size,
        config.max_position_embeddings,
        config.type_vocab_size,
    ]
    assert all(type(size) is int and 0 < size < 1 << 31 for size in sizes), sizes
    assert config.hidden_size % config.num_attention_heads == 0
    rates = [config.hidden_dropout_prob, config.attention_probs_dropout_prob, config.classifier_dropout or 0]
    assert all(0 <= rate < 1 for rate in rates), rates
    assert np.float32(config.layer_norm_eps) > 0
    assert 0 < config.initializer_range < 100
    assert len(label_names(config)) == config.num_labels > 0
    stated_labels(config)
    assert with_labels(config, ("a", "b", "c")).num_labels == 3
    json.loads(config.to_json_string())


# -- tokenizers ---------------------------------------------------------------------------------------------------


def check_tokenizer(words: Any) -> None:
    ids, spans = words.encode(SENTENCES)
    for text, tokens, places in zip(SENTENCES, ids, spans, strict=True):
        assert len(tokens) == len(places)
        assert ((tokens >= 0) & (tokens < words.vocab_size)).all()
        assert not len(places) or (places.min() >= 0 and places.max() <= len(text))
        assert len(words.pieces(tokens)) == len(tokens)
    special = {words.pad_id, words.unk_id, words.cls_id, words.sep_id, words.mask_id}
    assert len(special) == 5
    assert all(0 <= number < words.vocab_size for number in special)
    assert len(words.continues_word) == words.vocab_size
    assert isinstance(words.case_problem, str)
    assert isinstance(words.lower_case, bool)
    assert words.special_ids


def read_folder_tokenizer(folder: Path, name: str) -> None:
    from bert.text import tokenizer

    check_tokenizer(tokenizer.load(folder=folder))


def read_vocabulary(folder: Path, name: str) -> None:
    from bert.text import tokenizer

    check_tokenizer(tokenizer.load(str(folder / name)))


def read_piece_ids(folder: Path, name: str) -> None:
    from bert.text.sentencepiece_model import read_ids

    pieces = read_ids(folder / name)
    assert pieces
    assert len(set(pieces)) == len(pieces)
    assert all(isinstance(piece, str) for piece in pieces)
    "".join(pieces).encode()


LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,"
VOCABULARY = [
    *SPECIAL_TOKENS,
    *LETTERS,
    *(f"##{letter}" for letter in LETTERS),
    "the",
    "cat",
    "dog",
    "##ing",
    "##ly",
]
VOCAB = "".join(f"{token}\n" for token in VOCABULARY).encode()
SPECIAL_MAP = to_json({f"{name[1:-1].lower()}_token": name for name in SPECIAL_TOKENS})
PIECES = to_json({"token_to_idx": {token: number for number, token in enumerate(VOCABULARY)}})


def saved_tokenizer() -> dict[str, bytes]:
    """The files that we write for a WordPiece vocabulary."""
    import tempfile

    from bert.text import tokenizer

    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "vocab.txt").write_bytes(VOCAB)
        tokenizer.load(str(Path(name) / "vocab.txt")).save(Path(name))
        return {path.name: path.read_bytes() for path in Path(name).iterdir()}


def saved_sentencepiece() -> dict[str, bytes]:
    """The files that we write for a small unigram model."""
    import tempfile

    import sentencepiece

    from bert.text import tokenizer

    model = io.BytesIO()
    texts = [
        " ".join(random.Random(n).choices(("the", "cat", "dogs", "ran", "보다", "saw"), k=9)) for n in range(300)
    ]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=40,
        minloglevel=3,
        hard_vocab_limit=False,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        pad_piece="[PAD]",
        unk_piece="[UNK]",
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
    )
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "spiece.model").write_bytes(model.getvalue())
        tokenizer.load(spm_model_file=str(Path(name) / "spiece.model")).save(Path(name))
        return {path.name: path.read_bytes() for path in Path(name).iterdir()}


# -- SQuAD --------------------------------------------------------------------------------------------------------


def squad(is_v2: bool) -> bytes:
    contexts = ["the cat sat on the mat . a dog ran", "émile saw 3 foxes , and \u202f two hares in the snow"]
    paragraphs = []
    for number, context in enumerate(contexts):
        first = {
            "id": f"q{number}",
            "question": "who sat ?",
            "answers": [{"text": context[4:7], "answer_start": 4}],
        }
        other = {"id": f"r{number}", "question": "what ?", "answers": [{"text": context[:3], "answer_start": 0}]}
        if is_v2:
            first["is_impossible"] = False
            other |= {
                "is_impossible": True,
                "answers": [],
                "plausible_answers": [{"text": "x", "answer_start": 0}],
            }
        paragraphs.append({"context": context, "qas": [first, other]})
    return to_json({"version": "2.0" if is_v2 else "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]})


def read_squad(folder: Path, name: str) -> None:
    from bert.text import tokenizer
    from distributed.rows import Rows
    from tasks.squad.reading import Source, read
    from tasks.squad.settings import WindowSettings
    from tasks.squad.windows import windows

    is_training, is_v2 = "train" in name, "v2" in name
    flag = "--train_file" if is_training else "--predict_file"
    examples = read(Source(str(folder / name), flag, is_training), is_v2)
    assert examples.questions
    assert len({question.id for question in examples.questions}) == len(examples.questions)
    for question in examples.questions:
        question.id.encode()
        assert examples.paragraphs[question.paragraph].strip()
        if is_training and question.answers and not question.is_impossible:
            text, start = question.answers[0]
            assert 0 <= start <= start + len(text) <= len(examples.paragraphs[question.paragraph])
    if hash_of(folder / name) % 8:
        return  # building windows takes ten times as long as reading
    words = tokenizer.load(str(folder / "vocab.txt"))
    settings = WindowSettings(
        max_seq_length=24, doc_stride=6, max_query_length=8, allow_unknown=True, version_2_with_negative=is_v2
    )
    cache = folder / "cache"
    key = windows(settings, examples, words, cache, Run(folder, is_writer=False))
    table = Rows.open(cache / key / "windows.arrow")
    ids, offsets = table.column("input_ids")
    lengths = np.diff(offsets)
    assert len(table)
    assert ((ids >= 0) & (ids < words.vocab_size)).all()
    assert (lengths <= 24).all()
    for end in ("start_position", "end_position"):
        assert (table.column(end) < lengths).all()
    assert (table.column("start_position") <= table.column("end_position")).all()


def hash_of(path: Path) -> int:
    import zlib

    return zlib.crc32(path.read_bytes())


# -- classifiers --------------------------------------------------------------------------------------------------

CSV = b'text,more,label\nthe cat sat,a dog,yes\n"he said ""no"", twice\nthen",x,no\nfoxes,,yes\n'
TSV = 'text\tmore\tlabel\nthe cat sat\ta dog\tyes\nhe said "no"\tx\tno\nÉmile\t\tyes\n'.encode()
JSONL = rows(
    {"text": "the cat", "more": "a dog", "label": "yes", "id": 1},
    {"text": "he \u2603", "more": "", "label": "no", "score": 1.5},
    {"text": "foxes \U0001f600", "more": "x", "label": 3},
)
NUMBER_LINES = rows({"text": "a", "more": "b", "label": 1.5}, {"text": "c", "more": "d", "label": -2})
NUMBERS = b"text,more,label\na cat,a dog,1.5\na fox,b,-2\nb,c,3e-1\n"


def read_classifier(folder: Path, name: str) -> None:
    from tasks.classifier.tasks import Columns
    from tasks.classifier.texts import check_labels, labels_of, read_file

    is_regression = "numbers" in name
    columns = Columns("text", "more", "label", id="")
    texts = read_file(str(folder / name), "--train_file", columns, numeric_labels=is_regression, needs_labels=True)
    check_texts(texts)
    assert texts.labels is not None
    if is_regression:
        assert all(math.isfinite(label) for label in texts.labels)
    else:
        labels = labels_of(texts)
        assert len(set(labels)) == len(labels)
        assert all(labels)
        check_labels(texts, labels, "--train_file")


def check_texts(texts: Any) -> None:
    assert 0 < len(texts) == len(texts.first) == len(texts.ids)
    assert texts.second is None or len(texts.second) == len(texts)
    assert texts.labels is None or len(texts.labels) == len(texts)
    "".join([*texts.first, *(texts.second or ())]).encode()
    texts.place(len(texts) - 1)


GLUE = {
    "CoLA/train.tsv": (b"gj04\t1\t\tThe cat sat.\ngj04\t0\t*\tSat cat the.\nks08\t1\t\tFoxes ran.\n", "cola"),
    "STS-B/dev.tsv": (
        b"index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        b"0\tmain\tMSR\t2012\t1\tnone\tnone\tA cat sits.\tA cat sat.\t4.25\n"
        b'1\tmain\tMSR\t2012\t2\tnone\tnone\tA "dog" ran.\tTwo dogs.\t0.5\n',
        "sts-b",
    ),
    "MRPC/train.tsv": (
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n".encode()
        + b"1\t7\t8\tA cat.\tOne cat.\n0\t9\t10\tA dog.\tFoxes.\n",
        "mrpc",
    ),
    "SST-2/test.tsv": (b"index\tsentence\n0\tuneasy mishmash\n1\ta dog of a film\n", "sst-2"),
}


def read_glue(folder: Path, name: str) -> None:
    from tasks.classifier.tasks import find_task
    from tasks.classifier.texts import check_labels, read_task

    task = find_task(GLUE[name][1])
    texts = read_task(task, str(folder), Path(name).stem)
    check_texts(texts)
    if task.labels and texts.labels is not None:
        with contextlib.suppress(InputError):
            check_labels(texts, task.labels, "--data_dir")
    elif texts.labels is not None:
        assert all(math.isfinite(label) for label in texts.labels)


# -- corpora and texts --------------------------------------------------------------------------------------------

TEXT = b"The cat sat on the mat.\nA dog ran.\n\nFoxes saw it.\n\n\nThe end came.\n" * 3
DOCUMENTS = rows({"text": "The cat sat.\nA dog ran.", "id": 7}, {"text": "Foxes.", "id": None}, {"text": None})


def read_documents(folder: Path, name: str) -> None:
    from bert.corpus.documents import documents
    from bert.corpus.inputs import find_units
    from bert.corpus.settings import TextSettings

    units, _ = find_units(TextSettings(input_file=str(folder / name), split_sentences="split" in name))
    for unit in units:
        for document in documents(
            unit, TextSettings(input_file=str(folder / name), split_sentences="split" in name)
        ):
            assert document
            assert all(document)
            "".join(document).encode()


def read_feature_lines(folder: Path, name: str) -> None:
    from bert.text import tokenizer
    from tasks import features

    words = tokenizer.load(str(folder / "vocab.txt"))
    config = features.Config(
        input_file=str(folder / name), output_file="x", model="m", max_seq_length=16, allow_unknown=True
    )
    table = features.tokenize(config, words)
    ids = table.column("input_ids").combine_chunks().flatten().to_numpy()
    assert len(table)
    assert ((ids >= 0) & (ids < words.vocab_size)).all()


FEATURES = "the cat sat\na dog ||| foxes ran\n\nÉmile ||| \n".encode()

# -- checkpoints and runs -----------------------------------------------------------------------------------------

STATE = {
    "position": 640,
    "step": 20,
    "steps": 100,
    "global_batch_size": 32,
    "settings": {"--seed": 42, "--learning_rate": 5e-5, "--num_train_steps": None},
    "evaluations": [[320, 0.5], [640, 0.75]],
}
PLAN = {"steps": 40, "size": 2, "global_batch_size": 64, "learning_rate": 1e-3, "rows": 100}
ENVIRONMENT = {
    "machine": "2 cores",
    "command": ["/venv/bin/bert-squad", "--do_train", "--train_file=my data.json"],
}
FIGURES = {"learning_rate": 1e-4, "gradient_norm": 1.0, "examples_per_s": 480.0, "compute_s": 0.1, "data_s": 0.0}
METRICS = rows(
    *({"step": step, "time": 1.5, "rows": 64 * step, "loss": 4 - step / 20, **FIGURES} for step in (1, 20, 40)),
    {"step": 20, "time": 2.5, "rows": 1280, "eval_accuracy": 0.5, "eval_loss": 1.5},
    {"step": 40, "time": 3.5, "rows": 2560, "eval_accuracy": 0.75, "eval_loss": 1.25},
)
RUN = {
    "run.json": (to_json({"config": {"seed": 42}, "plan": PLAN, "environment": ENVIRONMENT}), "json"),
    "metrics.jsonl": (METRICS, "jsonl"),
    "result.json": (to_json({"scores": {"exact_match": 81.25, "f1": 88.5, "total": 100}, "seconds": 5}), "json"),
}


def read_state(folder: Path, name: str) -> None:
    from distributed.state import read_state

    state = read_state(folder)
    assert 0 <= state.step <= state.steps
    assert type(state.position) is int
    assert state.global_batch_size >= 1
    assert state.best is None or state.best[0] >= 0
    dict(state.settings)


def read_manifest(folder: Path, name: str) -> None:
    position = manifest.position_of(folder)
    assert position is None or position >= 0
    try:
        manifest.check_intact(folder)
    except InputError as error:  # its callers name the folder
        raise InputError(f"{folder}: {error}") from error
    assert manifest.position_of(folder) is not None


def read_report(folder: Path, name: str) -> None:
    from tasks import report

    runs = report.read_runs([folder])
    report.score_table(runs)
    for run in runs:
        report.command_of(run)
        assert run.steps


def draw_report(folder: Path, name: str) -> None:
    from tasks import report

    page = report.make_page(report.read_runs([folder]))
    page.encode()
    assert "data:image/png;base64," in page


def rewind_metrics(folder: Path, name: str) -> None:
    run = Run(folder, is_writer=True)
    run.rewind_metrics(1300)
    for line in (folder / name).read_text(encoding="utf-8").split("\n")[:-1]:
        assert json.loads(line)["rows"] <= 1300


# -- weights ------------------------------------------------------------------------------------------------------


def tiny_model() -> Any:
    from transformers import BertConfig

    from bert.model import Bert

    keys = (*GOOGLE.keys() - {"directionality"},)
    return Bert(BertConfig(**{key: GOOGLE[key] for key in keys} | {"num_hidden_layers": 1}), "span")


_MODEL: list[Any] = []


def read_weights(folder: Path, name: str) -> None:
    from bert import weights

    _MODEL[:] = _MODEL or [tiny_model()]
    weights.load(_MODEL[0], weights.find(str(folder / "bert_model.ckpt") if "ckpt" in name else str(folder)))
    for variable in _MODEL[0].named_tensors().values():
        assert np.isfinite(variable.numpy()).all()


def weight_files() -> dict[str, dict[str, bytes]]:
    """safetensors in one file and in two with an index, and a TensorFlow checkpoint, of one tiny model."""
    import tempfile

    from safetensors.numpy import load, save
    from weight_files import write_tf1

    from bert import weights

    model = tiny_model()
    with tempfile.TemporaryDirectory() as name:
        weights.save(model, Path(name) / "hf")
        whole = (Path(name) / "hf/model.safetensors").read_bytes()
        tensors = {key: variable.numpy() for key, variable in model.named_tensors().items()}
        write_tf1(Path(name) / "bert_model.ckpt", tensors, moments=False)
        old = {path.name: path.read_bytes() for path in Path(name).glob("bert_model.ckpt*")}
    names = sorted(load(whole))
    parts = {f"model-0000{k + 1}-of-00002.safetensors": names[k::2] for k in range(2)}
    sharded = {file: save({key: load(whole)[key] for key in keys}) for file, keys in parts.items()}
    weight_map = {key: file for file, keys in parts.items() for key in keys}
    sharded["model.safetensors.index.json"] = to_json({"metadata": {}, "weight_map": weight_map})
    return {"whole": {"model.safetensors": whole}, "sharded": sharded, "tf1": old}


# -- flags --------------------------------------------------------------------------------------------------------


def programs() -> dict[str, Any]:
    from tasks import corpus, features
    from tasks.bench.step import StepConfig
    from tasks.classifier.program import Config as Classifier
    from tasks.pretraining.program import Config as Pretraining
    from tasks.squad.program import Config as Squad

    return {
        "bert-squad": Squad,
        "bert-classifier": Classifier,
        "bert-pretraining": Pretraining,
        "bert-corpus build": corpus.BuildConfig,
        "bert-corpus vocab": corpus.VocabConfig,
        "bert-features": features.Config,
        "bert-bench step": StepConfig,
    }


REQUIRED = {
    "bert-squad": "--output_dir=o --do_train --train_file=t",
    "bert-classifier": "--output_dir=o --do_train --train_file=t --dev_file=d",
    "bert-pretraining": "--output_dir=o --input_file=i --do_train",
    "bert-corpus build": "--output_dir=o --input_file=i",
    "bert-corpus vocab": "--output_dir=o --input_file=i",
    "bert-features": "--input_file=i --output_file=o --model=m",
    "bert-bench step": "",
}


def parsed(prog: str, *argv: str) -> None:
    """Reads flags as a program does. A refusal must be one line on standard error, with status 2."""
    from distributed.plan import PlanSettings, make_plan
    from tasks import flags

    printed, status = io.StringIO(), None
    try:
        with contextlib.redirect_stderr(printed):
            config = flags.parse(programs()[prog], [*REQUIRED[prog].split(), *argv], prog=prog, description="")
    except SystemExit as stop:
        status = stop.code
    if status == 0:  # --help
        return
    if status:
        lines = printed.getvalue().splitlines()
        assert (status, len(lines)) == (2, 1), lines
        assert lines[0].startswith(f"{prog}: error: "), lines
        raise InputError(lines[0])
    for entry in fields(config):
        value = getattr(config, entry.name)
        if isinstance(value, str):
            value.encode()
            assert "\0" not in value
        elif isinstance(value, int | float):
            assert math.isfinite(value)
            assert -(1 << 63) <= value < 1 << 63
    if isinstance(config, PlanSettings):
        for size in (1, 3):
            with contextlib.suppress(InputError):
                plan = make_plan(config, 1000, size)
                assert 0 < plan.steps * plan.global_batch_size < 1 << 62
                assert math.isfinite(plan.learning_rate)
                assert plan.share(0).stop <= plan.global_batch_size


def read_toml(folder: Path, name: str) -> None:
    parsed(Path(name).stem.replace("_", " "), f"--config={folder / name}")


TOML = {
    "bert-squad.toml": b"learning_rate = 3e-5\nnum_train_epochs = 2\nmax_seq_length = 384\nprecision = 'bf16'\n"
    b"seed = 7\ndoc_stride = 128\nversion_2_with_negative = true\nglobal_batch_size = 32\n",
    "bert-classifier.toml": b"max_seq_length = 128\nlearning_rate = 2e-5\neval_steps = 'auto'\nseeds = '1,2,3'\n"
    b"text_column = 'body'\nwarmup_proportion = 0.1\ntrain_batch_size = 16\n",
    "bert-pretraining.toml": b"num_train_steps = 1000\nnum_warmup_steps = 100\noptimizer = 'lamb'\n"
    b"learning_rate = 1e-3\n",
    "bert-corpus_build.toml": b"max_seq_length = 128\ndupe_factor = 2\nshort_seq_prob = 0.1\nnum_shards = 4\n"
    b"random_seed = 1\n",
}


def read_command_line(folder: Path, name: str) -> None:
    """The file holds a program's name and its flags, each on a line."""
    text = (folder / name).read_bytes().decode("utf-8", "surrogateescape")
    prog, *argv = text.replace("\0", "").split("\n")
    skipped = ("-h", "-help", "--help", "--version", "-version", "--flagfile", "-flagfile", "--config", "-config")
    if prog not in REQUIRED or any(word.split("=")[0] in skipped for word in argv):
        raise InputError(f"{name}: not a case")
    parsed(prog, *[word for word in argv if word])


EXCLUDED = ("train_batch_size", "num_train_epochs")  # beside --global_batch_size and --num_train_steps


def command_lines() -> dict[str, tuple[bytes, str]]:
    """Every flag of every program that is not text, with its default or some value."""
    from ringbert.settings import alternatives, fields_of

    files = {}
    for prog, config in programs().items():
        lines = [prog]
        for entry in fields_of(config):
            kinds = alternatives(entry.type)
            if (int in kinds or float in kinds) and entry.name not in EXCLUDED:
                default = entry.default if isinstance(entry.default, int | float) else 3 if int in kinds else 0.5
                lines.append(f"--{entry.name}={default}")
        files[f"{prog.replace(' ', '_')}.flags"] = ("\n".join(lines).encode(), "text")
    return files
