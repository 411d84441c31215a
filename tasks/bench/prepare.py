"""bert-bench prepare: a SQuAD file from its text to windows on the disk, beside transformers' tokenizer."""

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringbert.settings import setting

if TYPE_CHECKING:
    from bert.text.tokenizer import Tokenizer
    from distributed.world import World
    from tasks.squad.windows import Examples

RIVAL_AT_ONCE = 1000  # as `datasets.map(batched=True)` calls it in transformers' run_qa.py


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """bert-bench prepare: questions/s of bert-squad's preparation beside transformers' tokenizer, on all cores."""

    train_file: str = setting(help="SQuAD JSON to make windows of", group="data")
    model: str | None = setting(None, "folder with a tokenizer", "data")
    vocab_file: str | None = setting(None, "WordPiece vocabulary, instead of --model", "data")
    do_lower_case: bool | None = setting(None, "as in bert-squad", "data")
    max_train_examples: int | None = setting(None, "the first N questions", "data")
    max_seq_length: int = setting(384, "tokens per window", "data")
    doc_stride: int = setting(128, "tokens between the starts of windows", "data")
    max_query_length: int = setting(64, "tokens of a question that are kept", "data")
    repeat: int = setting(3, "turns; medians are printed", "load")
    output_file: str | None = setting(None, "write the figures as JSON too", "machine")

    def __post_init__(self):
        for name in ("max_train_examples", "max_seq_length", "doc_stride", "max_query_length", "repeat"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name} is {value}, needed is at least 1")
        if not (self.model or self.vocab_file):
            raise ValueError("the vocabulary is not named: give --model or --vocab_file")


def bench_prepare(config: PrepareConfig, world: "World") -> dict[str, Any]:
    """Times in turn: reading, checking, tokenizing, finding answers, cutting and writing windows; and what
    transformers' example recipe for SQuAD does of that in its tokenizer alone, with windows cut and padded."""
    from bert.text import tokenizer
    from distributed.run import Run
    from tasks.squad import windows as squad_data

    folder = Path(config.model).expanduser() if config.model else None
    words = tokenizer.load(config.vocab_file, folder, config.do_lower_case)
    ours_s: list[float] = []
    rival_s: list[float] = []
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as name:
        run = Run.of(str(Path(name, "run")), world)
        for turn in range(config.repeat):
            began = time.perf_counter()
            examples = squad_data.read(
                config.train_file,
                "--train_file",
                training=True,
                allow_impossible=True,
                most=config.max_train_examples,
            )
            squad_data.windows(
                examples,
                words,
                Path(name, f"cache-{turn}"),
                max_seq_length=config.max_seq_length,
                doc_stride=config.doc_stride,
                max_query_length=config.max_query_length,
                allow_unknown=True,
                run=run,
            )
            ours_s.append(time.perf_counter() - began)
            rival_s.append(_rival_seconds(config, examples, words))
        run.close()
    ratio = statistics.median(theirs / ours for ours, theirs in zip(ours_s, rival_s, strict=True))
    number, ours, theirs = len(examples.questions), statistics.median(ours_s), statistics.median(rival_s)
    world.say(
        f"{number:,} questions, medians of {config.repeat} turns: bert-squad, from file to windows, "
        f"{ours:.2f} s ({number / ours:,.0f} questions/s); transformers' tokenizer alone, as run_qa.py calls it, "
        f"{theirs:.2f} s ({number / theirs:,.0f} questions/s); ratio {ratio:.2f}"
    )
    return {"questions": number, "ours_s": ours, "transformers_s": theirs, "ratio": ratio}


def _rival_seconds(config: PrepareConfig, examples: "Examples", words: "Tokenizer") -> float:
    """transformers' fast tokenizer with the same vocabulary, on all cores."""
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as folder:
        words.save(Path(folder))
        from transformers import AutoTokenizer

        rival = AutoTokenizer.from_pretrained(folder)
    began = time.perf_counter()
    for start in range(0, len(examples.questions), RIVAL_AT_ONCE):
        part = examples.questions[start : start + RIVAL_AT_ONCE]
        rival(
            [question.text.lstrip() for question in part],
            [examples.paragraphs[question.paragraph] for question in part],
            truncation="only_second",
            max_length=config.max_seq_length,
            stride=config.doc_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            padding="max_length",
        )
    return time.perf_counter() - began
