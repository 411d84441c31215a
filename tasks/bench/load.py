"""The load of a measured training step: a published model size or a given model, random tokens or real windows."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bert.settings import PassSettings
from distributed.collectives import CollectivesSettings
from ringbase.errors import InputError
from ringbase.settings import LONGEST_ROW, MOST_ROWS, MOST_STEPS, check_at_least, check_at_most, setting
from tasks.bench.settings import ModelSize
from tasks.environment import cache_folder
from tasks.settings import ComputeSettings

if TYPE_CHECKING:
    from transformers import BertConfig

    from bert.batch import Grouping
    from distributed.feed import Batch, BatchSource
    from distributed.plan import Plan, PlanSettings
    from distributed.world import World

# hidden size, layers, heads, intermediate size
SIZES = {
    "tiny": (128, 2, 2, 512),
    "minilm": (384, 6, 12, 1536),
    "base": (768, 12, 12, 3072),
    "large": (1024, 24, 16, 4096),
}
VOCABULARY = 30522
SEED = 42  # for the order of real windows


@dataclass(frozen=True, kw_only=True)
class StepLoad(PassSettings, CollectivesSettings, ComputeSettings):
    """What a measured step computes; the flags of training that matter for its speed."""

    model_size: ModelSize = setting("minilm", "published model size", "model")
    bert_config_file: str | None = setting(
        None, "JSON file with a BERT configuration, instead of --model_size", "model"
    )
    model: str | None = setting(
        None, "folder in Hugging Face layout, for the configuration and for the tokenizer of --train_file", "model"
    )
    train_file: str | None = setting(None, "SQuAD JSON to train on, instead of full rows of random tokens", "load")
    max_train_examples: int = setting(2000, "use the first N questions of --train_file", "load")
    batch_size: int = setting(8, "rows per rank and micro-batch", "load")
    seq_length: int = setting(384, "tokens per row; with --train_file, the maximum per window", "load")
    gradient_accumulation_steps: int = setting(1, "micro-batches per step", "load")
    num_warmup: int = setting(3, "steps before the measurement", "load")
    num_steps: int = setting(10, "measured steps", "load")
    xla: Literal["on", "off"] = setting("off", "let XLA compile the whole gradient", "machine")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(
            self, 1, "batch_size", "seq_length", "gradient_accumulation_steps", "max_train_examples", "num_steps"
        )
        check_at_least(self, 0, "num_warmup")
        check_at_most(self, MOST_ROWS, "batch_size", "gradient_accumulation_steps")
        check_at_most(self, LONGEST_ROW, "seq_length")
        check_at_most(self, MOST_STEPS, "num_warmup", "num_steps")
        if self.train_file and not self.model:
            raise ValueError("--train_file needs --model, a folder with its tokenizer")

    @property
    def model_name(self) -> str:
        return self.model or self.bert_config_file or self.model_size

    @property
    def rows_name(self) -> str:
        """The rows of a rank in one step, described in words."""
        rows = self.batch_size * self.gradient_accumulation_steps
        if self.train_file:
            return f"{rows} windows of {self.train_file} (packing {self.packing})"
        return f"{rows} x {self.seq_length} tokens"


def config_of(load: StepLoad) -> "BertConfig":
    """The model's configuration. Raises InputError: --model or --bert_config_file has none."""
    from bert import configuration

    if load.model:
        return configuration.config_from_file(Path(load.model).expanduser() / "config.json")
    if load.bert_config_file:
        return configuration.config_from_file(load.bert_config_file)
    return model_config(load.model_size, load.seq_length)


def model_config(size: ModelSize, seq_length: int = 512, vocab_size: int = VOCABULARY) -> "BertConfig":
    """The configuration of a published size."""
    from transformers import BertConfig

    hidden, layers, heads, intermediate = SIZES[size]
    return BertConfig(
        vocab_size=vocab_size, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=intermediate, max_position_embeddings=max(512, seq_length),
    )  # fmt: skip


def feed_and_plan(load: StepLoad, world: "World", vocab_size: int) -> "tuple[BatchSource, Plan]":
    """The source of the steps' batches, and the plan of the steps.

    Raises InputError: --train_file or --model cannot be used.
    """
    from distributed.plan import PlanSettings, make_plan

    num_steps = load.num_warmup + load.num_steps
    settings = PlanSettings(
        global_batch_size=load.batch_size * load.gradient_accumulation_steps * world.size,
        num_train_steps=num_steps,
        gradient_accumulation_steps=load.gradient_accumulation_steps,
    )
    num_rows = num_steps * settings.batch_size
    if not load.train_file:
        return RandomBatches(load, vocab_size), make_plan(settings, num_rows, world.size)
    windows = world.on_each_machine(
        windows_of, load.model, load.train_file, load.max_train_examples, load.seq_length, num_rows
    )
    return feed_of_windows(load, windows, settings, world)


@dataclass(frozen=True)
class RandomBatches:
    """Full rows of random tokens; see `distributed.feed.BatchSource`."""

    load: StepLoad
    vocab_size: int

    def weights(self, batch: "Batch") -> dict[str, float]:
        return {"loss": float(len(batch["start_position"]))}

    def micro_batches(self, plan: "Plan", rank: int, position: int) -> "list[Batch]":
        first = (plan.steps * rank + position // plan.global_batch_size) * plan.accumulation
        size = self.load.batch_size, self.load.seq_length, self.vocab_size
        is_fixed = self.load.xla == "on"
        return [_random_batch(*size, seed, is_fixed) for seed in range(first, first + plan.accumulation)]


def feed_of_windows(
    load: StepLoad, path: Path, settings: "PlanSettings", world: "World"
) -> "tuple[BatchSource, Plan]":
    """Real windows, in the order of `bert-squad`'s training and shared among the ranks in the same way."""
    from distributed.plan import make_plan
    from distributed.rows import Rows
    from tasks.batches import grouping_of, layouts_of
    from tasks.squad.program import feed_of

    rows = Rows.open(path)
    feed, plan = feed_of(rows, SEED, load.seq_length), make_plan(settings, len(rows), world.size)
    lengths = feed.lengths if load.packing == "auto" else None
    grouping: Grouping = grouping_of(load.packing)
    if load.xla == "on":
        grouping = layouts_of(plan, feed.order, lengths, load.seq_length)
    feed = replace(
        feed, collate=partial(feed.collate, grouping=grouping), lengths=lengths, is_fixed=load.xla == "on"
    )
    return feed, plan


def windows_of(model: str, train_file: str, max_train_examples: int, max_seq_length: int, needed: int) -> Path:
    """The file of windows that bert-squad prepares in its cache. Raises InputError: there is no such model or
    file, or there are fewer windows than the steps need."""
    from bert.text import tokenizer
    from distributed.rows import Rows
    from distributed.run import Run
    from tasks import cache
    from tasks.squad.reading import Source
    from tasks.squad.settings import WindowSettings
    from tasks.squad.windows import recipe

    folder = Path(model).expanduser()
    if not (folder / "config.json").is_file():
        raise InputError(f"--model {model}: no config.json there")
    settings = WindowSettings(max_seq_length=max_seq_length, max_query_length=min(64, max_seq_length - 4))
    source = Source(train_file, "--train_file", is_training=True, limit=max_train_examples)
    run = Run(Path(), is_writer=False)
    key, make = recipe(settings, source, tokenizer.load(None, folder), run)
    cache.build(cache_folder() / key, make, run)
    path = cache_folder() / key / "windows.arrow"
    number = len(Rows.open(path))
    if number < needed:
        raise InputError(
            f"--max_train_examples {max_train_examples} gives {number:,} windows, but the steps of all ranks need "
            f"{needed:,} (--num_warmup, --num_steps, --batch_size)"
        )
    return path


def shapes_of(batch: "Batch") -> list[tuple[int, int]]:
    """Rows and length of each group of a micro-batch that has rows."""
    return [(int(rows), int(length)) for rows, length in batch["groups"] if rows]


def _random_batch(rows: int, length: int, vocabulary: int, seed: int, is_fixed: bool) -> "Batch":
    import numpy as np

    from bert.batch import fixed
    from tasks.squad.program import collate

    generator = np.random.default_rng(seed)
    ids = generator.integers(0, vocabulary, rows * length, dtype=np.int32)
    answers = {f"{end}_position": generator.integers(0, length, rows, dtype=np.int32) for end in ("start", "end")}
    tokens: dict = {
        "input_ids": (ids, np.arange(0, len(ids) + 1, length)),
        "question_tokens": np.full(rows, length),
    }
    return collate(tokens | answers, fixed(((rows, length),)) if is_fixed else None)
