"""Compares the preparation of a SQuAD file (from its text to windows on disk) with transformers' tokenizer.

python -m benchmarks.prepare --model MINILM_FOLDER --train_file train-v1.1.json
"""

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringbase.settings import check_at_least, setting
from tasks import flags
from tasks.bench.program import measure_alone
from tasks.bench.settings import TurnSettings
from tasks.bench.timing import in_turn, ratio

if TYPE_CHECKING:
    from bert.text.tokenizer import Tokenizer
    from distributed.world import World
    from tasks.squad.reading import Examples

TEXTS_AT_ONCE = 1000  # as `datasets.map(batched=True)` calls it in transformers' run_qa.py


@dataclass(frozen=True, kw_only=True)
class PrepareConfig(TurnSettings):
    """Questions/s of bert-squad's preparation and of transformers' tokenizer, on all cores."""

    train_file: str = setting(help="SQuAD JSON to make windows of", group="data")
    model: str | None = setting(None, "folder with a tokenizer", "data")
    vocab_file: str | None = setting(None, "WordPiece vocabulary, instead of --model", "data")
    do_lower_case: bool | None = setting(
        None, "lower-case and strip accents", "data", shown_default="as bert-squad does"
    )
    max_train_examples: int | None = setting(None, "use the first N questions", "data", shown_default="all")
    max_seq_length: int = setting(384, "maximum number of tokens per window", "data")
    doc_stride: int = setting(128, "tokens between the starts of windows", "data")
    max_query_length: int = setting(64, "maximum number of tokens of a question", "data")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "max_train_examples", "max_seq_length", "doc_stride", "max_query_length")
        if not (self.model or self.vocab_file):
            raise ValueError("no vocabulary: give --model or --vocab_file")


def main(argv: Sequence[str] | None = None) -> None:
    prog = "benchmarks.prepare"
    measure_alone(prog, flags.parse(PrepareConfig, argv, prog=prog, description=str(__doc__)), bench_prepare)


def bench_prepare(config: PrepareConfig, world: "World") -> dict[str, Any]:
    """Times our whole preparation, from reading the file to writing windows, in turn with the tokenizer call of
    transformers' SQuAD example, which cuts and pads windows."""
    from bert.text import tokenizer
    from distributed.run import Run
    from tasks import cache
    from tasks.squad.reading import Source, read
    from tasks.squad.settings import WindowSettings
    from tasks.squad.windows import recipe

    folder = Path(config.model).expanduser() if config.model else None
    words = tokenizer.load(config.vocab_file, folder, config.do_lower_case)

    source = Source(config.train_file, "--train_file", is_training=True, limit=config.max_train_examples)
    settings = WindowSettings(
        max_seq_length=config.max_seq_length,
        doc_stride=config.doc_stride,
        max_query_length=min(config.max_query_length, config.max_seq_length - 4),
        allow_unknown=True,
        version_2_with_negative=True,
    )

    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as name:
        run = Run.of(str(Path(name, "run")), world)

        def ours() -> float:
            start_s = time.perf_counter()
            empty_cache = Path(tempfile.mkdtemp(dir=name), "windows")
            cache.build(empty_cache, recipe(settings, source, words, run)[1], run)
            return time.perf_counter() - start_s

        examples = read(source, allow_impossible=True)
        seconds = in_turn(
            {"ours": ours, "transformers": lambda: transformers_seconds(config, examples, words)}, config.repeat
        )
        run.close()
    number, times = len(examples.questions), ratio(seconds["transformers"], seconds["ours"]).median
    ours_s, theirs_s = (statistics.median(seconds[name]) for name in ("ours", "transformers"))
    world.say(
        f"{number:,} questions, medians of {config.repeat} turns: bert-squad, from file to windows, "
        f"{ours_s:.2f} s ({number / ours_s:,.0f} questions/s); transformers' tokenizer alone, as run_qa.py calls "
        f"it, {theirs_s:.2f} s ({number / theirs_s:,.0f} questions/s); ratio {times:.2f}"
    )
    return {"questions": number, "ours_s": ours_s, "transformers_s": theirs_s, "ratio": times}


def transformers_seconds(config: PrepareConfig, examples: "Examples", words: "Tokenizer") -> float:
    """The seconds of transformers' fast tokenizer with the same vocabulary, on all cores."""
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as folder:
        words.save(Path(folder))
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
    start_s = time.perf_counter()
    for start in range(0, len(examples.questions), TEXTS_AT_ONCE):
        part = examples.questions[start : start + TEXTS_AT_ONCE]
        tokenizer(
            [question.text.lstrip() for question in part],
            [examples.paragraphs[question.paragraph] for question in part],
            truncation="only_second",
            max_length=config.max_seq_length,
            stride=config.doc_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            padding="max_length",
        )
    return time.perf_counter() - start_s


if __name__ == "__main__":
    main()
