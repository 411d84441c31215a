"""bert-pretraining: masked words and next sentences from sharded corpora (Google's `run_pretraining.py`).

The shards are those of `bert-corpus build`, or Google's TFRecord files. The story is `run_pretraining`, below.
Tensors bear their shape as a suffix: B rows, T positions of a row, M masked tokens of all rows, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ringbert.errors import InputError
from ringbert.settings import check_at_least, setting
from tasks import flags
from tasks.batches import encoder_inputs, filled, grouped, num_examples, prediction_batches
from tasks.fit import TrainingSettings, fit, load_for_prediction, write_eval_results
from tasks.job import Job, cache_folder, run_on_ranks
from tasks.origin import Needs, Origin, find_origin

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from bert.corpus.masking import Masking
    from bert.model import Bert
    from bert.packing import Layouts
    from distributed.evaluation import HeldOut
    from distributed.feed import Batch
    from distributed.rows import RowSource
    from distributed.train import Training

DEFAULT_STEPS, DEFAULT_WARMUP_STEPS = 100_000, 10_000  # of run_pretraining.py
NOT_MASKED = -1  # the id of what fills up the masked tokens of a batch
EVALUATION_SEED = 0  # of the masks of held-out examples: the same in every run, so that runs compare
MASKS: dict[str, Any] = {"max_predictions_per_seq": 20, "masked_lm_prob": 0.15, "do_whole_word_mask": False}
MEASURED = ("masked_lm_accuracy", "masked_lm_loss", "next_sentence_accuracy", "next_sentence_loss")


@dataclass(frozen=True, kw_only=True)
class Config(TrainingSettings):
    """The flags of bert-pretraining: names and defaults of run_pretraining.py, and a few of ours."""

    input_file: str = setting(
        help="shards to train on: comma-separated globs, .arrow or TFRecord files", group="data"
    )
    eval_input_file: str | None = setting(None, "shards to evaluate on; else those of --input_file", "data")
    max_seq_length: int = setting(128, "tokens per example at most", "data")
    max_predictions_per_seq: int | None = setting(
        None, "masked tokens per example at most (what the shards were built with, else 20)", "data"
    )
    masked_lm_prob: float | None = setting(
        None, "share of tokens masked, where masks are drawn here (what the shards were built with)", "data"
    )
    do_whole_word_mask: bool | None = setting(
        None, "mask whole words, where masks are drawn here (what the shards were built with)", "data"
    )

    num_train_epochs: float | None = setting(None, "passes over the shards, instead of steps", "training")
    num_train_steps: int | None = setting(
        None, "optimizer steps of one rank, divided by the ranks (100000 unless epochs are given)", "training"
    )
    num_warmup_steps: int | None = setting(
        None, "warmup steps of one rank, divided by the ranks (10000, with epochs a share)", "training"
    )
    init_moments: bool = setting(
        False, "take the optimizer's moments from --init_checkpoint too, a checkpoint of this program", "training"
    )

    do_eval: bool = setting(False, "evaluate", "evaluation")
    eval_batch_size: int = setting(
        8, "examples of --max_seq_length per evaluation batch; of shorter ones more", "evaluation"
    )
    max_eval_steps: int = setting(100, "at most so many times --eval_batch_size examples", "evaluation")
    eval_steps: int | Literal["auto"] | None = setting(
        None,
        "evaluate every N steps of training too; auto: as often as takes at most 2 % of the time",
        "evaluation",
    )

    def __post_init__(self):
        super().__post_init__()
        if not (self.do_train or self.do_eval):
            raise ValueError("nothing to do: give --do_train, --do_eval or both")
        if self.num_train_steps is not None and self.num_train_epochs is not None:
            raise ValueError("--num_train_steps and --num_train_epochs exclude each other: give one")
        if self.init_moments and not self.init_checkpoint:
            raise ValueError("--init_moments needs --init_checkpoint, a folder in a run's checkpoints/")
        if self.masked_lm_prob is not None and not 0 < self.masked_lm_prob < 1:
            raise ValueError(f"--masked_lm_prob must be between 0 and 1, got {self.masked_lm_prob}")
        check_at_least(self, 1, "max_predictions_per_seq", "eval_batch_size", "max_eval_steps", "eval_steps")
        check_at_least(self, 1, "max_seq_length")

    def with_default_steps(self) -> "Config":
        """The same with Google's numbers of steps, unless epochs are given."""
        if self.num_train_epochs is not None:
            return self
        steps = DEFAULT_STEPS if self.num_train_steps is None else self.num_train_steps
        warmup = DEFAULT_WARMUP_STEPS if self.num_warmup_steps is None else self.num_warmup_steps
        return replace(self, num_train_steps=steps, num_warmup_steps=warmup)


def main(argv: Sequence[str] | None = None) -> None:
    description = "Pretrain BERT on sharded corpora over all MPI ranks."
    config = flags.parse(Config, argv, prog="bert-pretraining", description=description)
    run_on_ranks("bert-pretraining", config.with_default_steps(), config.output_dir, run_pretraining)


def run_pretraining(config: Config, job: Job) -> dict[str, float]:
    """Trains and evaluates as the flags say, on every rank; the figures of the evaluation."""
    from bert.model import Bert

    world, run = job.world, job.run
    tokenizer_folder = world.on_first(tokenizer_of_shards, config.input_file)
    needs = Needs(
        max_seq_length=config.max_seq_length,
        tokenizer=tokenizer_folder is not None,  # TFRecord shards are ids already: Google's program has none
        tokenizer_folder=tokenizer_folder,
    )
    origin = world.on_first(find_origin, config, run, config.do_train, needs)
    shards = open_shards(config, job, origin, config.input_file, "--input_file") if config.do_train else None
    eval_shards = None
    if config.do_eval or config.eval_steps is not None:
        held_out_file = config.eval_input_file or config.input_file
        flag = "--eval_input_file" if config.eval_input_file else "--input_file"
        eval_shards = open_shards(config, job, origin, held_out_file, flag)
    model = Bert(origin.bert_config, "pretraining", seed=config.seed)
    held_out = evaluator(config, job, model, eval_shards) if eval_shards else None

    steps = origin.state.step if origin.state else None
    if shards:
        if config.init_moments:
            origin = replace(origin, moments=Path(str(config.init_checkpoint)).expanduser())
        steps = fit(config, job, origin, training_of(config, model, shards, held_out))
    else:
        run.remove("result.json")  # from here on the run is not complete
        load_for_prediction(job, origin, model)

    figures: dict[str, float] = {}
    if config.do_eval and held_out:
        figures = dict(held_out.measure())
        loss = sum(value for name, value in figures.items() if name.endswith("_loss"))
        write_eval_results(run, figures, loss, steps)
    job.finish({"scores": figures})
    run.say(f"done: {config.output_dir}" + "".join(f", {name} {value:.4f}" for name, value in figures.items()))
    return figures


# -- data ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shards:
    """Examples as rows; `masking` says how their masks are drawn, None when they are in the shards already, and
    `masks` the same as flags. `lengths` gives the tokens of rows without reading them, None where it cannot."""

    rows: "RowSource"
    key: str
    masking: "Masking | None"
    masks: dict[str, object]
    has_next_sentence: bool
    lengths: Callable[["np.ndarray"], "np.ndarray"] | None


def tokenizer_of_shards(patterns: str) -> Path | None:
    """The folder of the tokenizer that Arrow shards were made with; None for TFRecord files. On rank 0."""
    from bert.corpus import build as corpus

    kind, files = corpus.find_shards(patterns)
    return corpus.tokenizer_folder(files) if kind == "arrow" else None


def open_shards(config: Config, job: Job, origin: Origin, patterns: str, flag: str) -> Shards:
    """The shards on every rank, memory-mapped. Raises InputError when they do not fit the flags or the model."""
    from bert.corpus import build as corpus

    rows: RowSource
    kind, files = corpus.find_shards(patterns, flag)
    if kind == "arrow":
        from distributed.rows import Rows, digest

        table, manifest = corpus.open_table(files, flag)
        masks = masks_of(config, manifest["settings"])
        rows = stored = Rows(table)
        key, masking = digest(manifest), dynamic_masking(config, masks, manifest, origin, flag)
        has_next_sentence = "is_random_next" in table.column_names
        lengths = partial(stored.lengths_at, "input_ids")
    else:
        from bert.corpus.tfrecord import RecordRows

        masks = masks_of(config, {})

        def open_records() -> RecordRows:
            return RecordRows(
                files,
                cache_folder(),
                max_seq_length=config.max_seq_length,
                max_predictions_per_seq=masks["max_predictions_per_seq"],
                vocab_size=origin.bert_config.vocab_size,
                flag=flag,
            )

        job.world.on_each_machine(lambda: len(open_records()))  # the index is made once per machine
        records = open_records()
        rows, key, masking, has_next_sentence = records, records.digest, None, True
        lengths = None
    job.world.agree({f"the shards {patterns}": (key, len(rows))})
    drawn = "drawn for every epoch" if masking else "those of the shards"
    job.run.say(f"{patterns}: {len(rows):,} examples, masks {drawn}")
    flags_of_masks = {f"--{name}": value for name, value in masks.items()}
    return Shards(rows, key, masking, flags_of_masks, has_next_sentence, lengths)


def masks_of(config: Config, built: Mapping[str, Any]) -> dict[str, Any]:
    """The masks' flags: as given, else as the shards were built with."""
    given = {name: getattr(config, name) for name in MASKS}
    return {name: built.get(name, MASKS[name]) if value is None else value for name, value in given.items()}


def dynamic_masking(
    config: Config, masks: Mapping[str, Any], manifest: dict, origin: Origin, flag: str
) -> "Masking | None":
    """How masks are drawn for these shards; None when they hold masks. Raises InputError: they do not fit."""
    from bert.corpus.masking import Masking

    made, tokenizer = manifest["settings"], origin.tokenizer
    if tokenizer is None:
        raise InputError("--eval_input_file has Arrow shards, --input_file has none: give their --vocab_file")
    if manifest["tokenizer_digest"] != tokenizer.digest:
        raise InputError(f"{flag}: the shards were made with another vocabulary than {tokenizer.source}")
    if made["max_seq_length"] > config.max_seq_length:
        raise InputError(
            f"--max_seq_length {config.max_seq_length}, but the examples of the shards have up to "
            f"{made['max_seq_length']} tokens"
        )
    if made["masking"] == "static":
        if made["max_predictions_per_seq"] > masks["max_predictions_per_seq"]:
            raise InputError(
                f"--max_predictions_per_seq {masks['max_predictions_per_seq']}, but the masks of the shards are "
                f"up to {made['max_predictions_per_seq']}"
            )
        return None
    return Masking(
        vocab_size=tokenizer.vocab_size,
        mask_id=tokenizer.mask_id,
        special_ids=(tokenizer.cls_id, tokenizer.sep_id),
        masked_lm_prob=masks["masked_lm_prob"],
        max_predictions_per_seq=masks["max_predictions_per_seq"],
        continues_word=tokenizer.continues_word if masks["do_whole_word_mask"] else None,
    )


def collate(
    fields: dict,
    masking: "Masking | None",
    seed: int,
    grouping: "int | Layouts" = 1,
    most: Callable[[int], int] | None = None,
) -> "Batch":
    """Examples -> the encoder's inputs, `masked_tokens` (indices into them) and `masked_ids` [M], first tokens [B]
    and `next_sentence_label` [B] (1: the second sentence is a random one).

    With layouts M is theirs: `most` gives the masked tokens of a row of a length at most. What is filled up has
    the id -1.
    """
    import numpy as np

    from bert.corpus.masking import example_keys, mask

    fields, groups = grouped(fields, grouping)
    values, offsets = fields["input_ids"]
    if masking:
        drawn = mask(values, offsets, example_keys(seed, fields["row"], fields["epoch"]), masking)
        values, positions, position_offsets, masked_ids = drawn
    else:
        (positions, position_offsets), (masked_ids, _) = fields["masked_lm_positions"], fields["masked_lm_ids"]
    inputs = encoder_inputs(fields | {"input_ids": (values, offsets)}, groups)
    masked = np.diff(position_offsets)
    first = np.repeat(inputs["first_tokens"][: len(masked)], masked)
    batch = inputs | {
        "masked_tokens": first + positions.astype(np.int32),
        "masked_ids": masked_ids.astype(np.int32),
    }
    if "is_random_next" in fields:
        labels = fields["is_random_next"].astype(np.int32)
        batch["next_sentence_label"] = filled(labels, len(batch["first_tokens"]))
    if not isinstance(grouping, int) and most:
        size = sum(rows * most(length) for rows, length in groups)
        batch["masked_tokens"] = filled(batch["masked_tokens"], size)
        batch["masked_ids"] = filled(batch["masked_ids"], size, NOT_MASKED)
    return batch


def most_predictions(shards: Shards) -> Callable[[int], int]:
    """How many tokens of a row of a length are masked at most."""
    most = int(str(shards.masks["--max_predictions_per_seq"]))
    masking = shards.masking
    return lambda length: min(length, most) if masking is None else masking.num_predictions(length)


# -- training -----------------------------------------------------------------------------------------------------


def training_of(config: Config, model: "Bert", shards: "Shards", held_out: "HeldOut | None") -> "Training":
    """What is trained: masked words and, where the shards have them, next sentences."""
    from distributed.feed import Feed
    from distributed.order import BlockOrder
    from distributed.train import Training

    feed = Feed(
        rows=shards.rows,
        order=BlockOrder(len(shards.rows), config.seed),
        collate=partial(collate, masking=shards.masking, seed=config.seed, most=most_predictions(shards)),
        weights=weights,
        lengths=shards.lengths,
        longest=config.max_seq_length,
    )
    return Training(
        model=model,
        feed=feed,
        loss=lambda batch, key: losses(model(batch, dropout_key=key), batch),
        loss_terms=("mlm", "nsp") if shards.has_next_sentence else ("mlm",),
        data_key=shards.key,
        settings=config.run_settings(shards.key, "max_seq_length") | shards.masks,
        held_out=held_out if config.eval_steps else None,
    )


def weights(batch: "Batch") -> dict[str, float]:
    """What the loss terms are divided by, over all ranks: masked tokens, and examples."""
    found = {"mlm": float((batch["masked_ids"] != NOT_MASKED).sum())}
    return found | ({"nsp": float(num_examples(batch))} if "next_sentence_label" in batch else {})


def losses(scores: dict[str, "tf.Tensor"], batch: dict[str, "tf.Tensor"]) -> dict[str, "tf.Tensor"]:
    """Sums of the cross-entropies of masked tokens and of next sentences."""
    import tensorflow as tf

    from bert.model import is_example

    def cross_entropy(labels: "tf.Tensor", logits: "tf.Tensor", counts: "tf.Tensor") -> "tf.Tensor":
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), logits)
        return tf.reduce_sum(losses * tf.cast(counts, losses.dtype))

    sums = {"mlm": cross_entropy(batch["masked_ids"], scores["mlm"], batch["masked_ids"] != NOT_MASKED)}
    if "next_sentence_label" in batch:
        sums["nsp"] = cross_entropy(batch["next_sentence_label"], scores["nsp"], is_example(batch))
    return sums


# -- evaluation ---------------------------------------------------------------------------------------------------


def evaluator(config: Config, job: Job, model: "Bert", shards: Shards) -> HeldOut:
    """Measures accuracy and loss of masked tokens and next sentences, the same values on every rank.

    It sees the first `max_eval_steps * eval_batch_size` examples, with the same masks each time.
    """
    import numpy as np
    import tensorflow as tf

    from distributed.evaluation import HeldOut
    from distributed.feed import batch_maker
    from distributed.gradient import batch_signature
    from distributed.predict import predict

    rows = np.arange(min(len(shards.rows), config.max_eval_steps * config.eval_batch_size))
    lengths = np.diff(shards.rows.take(rows)["input_ids"][1])
    batches = prediction_batches(lengths, config.eval_batch_size, config.max_seq_length)
    prepare = partial(collate, masking=shards.masking, seed=EVALUATION_SEED)

    def count(batch: dict[str, "tf.Tensor"]) -> "tf.Tensor":
        scores = model(batch)
        sums = losses(scores, batch)
        pairs = [("mlm", "masked_ids")] + [("nsp", "next_sentence_label")] * ("nsp" in sums)
        found = []
        for term, label in pairs:
            right = tf.argmax(scores[term], 1, tf.int32) == batch[label]
            found += [tf.reduce_sum(tf.cast(right, tf.float32)), sums[term], tf.cast(tf.size(right), tf.float32)]
        return tf.stack(found)

    make_batch = batch_maker(shards.rows, prepare)
    signature = batch_signature(make_batch(rows[:1]))
    forward = tf.function(count, input_signature=[signature], autograph=False)

    def total(outputs: "list[np.ndarray]") -> dict[str, float]:
        sums = np.sum(np.asarray(outputs, np.float64), 0).reshape(-1, 3)
        return dict(zip(MEASURED, (sums[:, :2] / sums[:, 2:]).reshape(-1).tolist(), strict=False))

    def evaluate() -> dict[str, float]:
        advice = "lower --eval_batch_size or --max_seq_length"
        outputs = predict(
            job.world, job.run, batches, make_batch, forward, label="evaluation", memory_advice=advice
        )
        return job.world.on_first(total, outputs)

    return HeldOut(measure=evaluate, tokens=int(lengths.sum()), every=config.eval_steps or "auto")


if __name__ == "__main__":
    main()
