"""bert-squad: fine-tune BERT on SQuAD over all ranks, predict, score (google-research/bert `run_squad.py`).

Start reading at `run_squad`, below: data -> plan -> model -> train -> predict -> files. Tensors have their shape
as a suffix: B rows, T positions of a row, 2 for start and end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from ringbert.settings import MOST_ROWS, check_at_least, check_at_most, setting
from tasks import flags
from tasks.batches import INPUTS, encoder_inputs, grouped, num_examples, prediction_batches, with_checked_ids
from tasks.fit import TrainingSettings, fit, load_for_prediction
from tasks.job import Job, cache_folder, run_on_ranks
from tasks.origin import Needs, find_origin
from tasks.squad.settings import AnswerSettings, QuestionSettings, WindowSettings

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from bert.model import Bert
    from bert.packing import Grouping
    from bert.text.tokenizer import Tokenizer
    from distributed.feed import Batch, Feed
    from distributed.rows import Rows
    from distributed.run import Run

LARGE = 1e30


@dataclass(frozen=True, kw_only=True)
class Config(AnswerSettings, WindowSettings, QuestionSettings, TrainingSettings):
    """The flags of bert-squad: names and defaults of run_squad.py, and some more."""

    do_predict: bool = setting(False, "predict answers, and score them if the file has answers", "prediction")
    predict_batch_size: int = setting(
        8, "windows of --max_seq_length tokens per prediction batch; more if they are shorter", "prediction"
    )
    metric: Literal["auto", "squad_v1", "squad_v2", "korquad_v1"] = setting(
        "auto", "how predictions are scored; auto: by the version of the file", "prediction"
    )

    def __post_init__(self):
        super().__post_init__()
        if not (self.do_train or self.do_predict):
            raise ValueError("nothing to do: give --do_train, --do_predict or both")
        for wanted, flag in ((self.do_train, "train_file"), (self.do_predict, "predict_file")):
            if wanted and not (getattr(self, flag) or self.dataset_name):
                raise ValueError(f"--do_{flag.removesuffix('_file')} needs --{flag} (or --dataset_name)")
        check_at_least(self, 1, "predict_batch_size")
        check_at_most(self, MOST_ROWS, "predict_batch_size")
        if self.metric != "auto" and (self.metric == "squad_v2") != self.version_2_with_negative:
            raise ValueError(
                f"--metric {self.metric} does not fit --version_2_with_negative={self.version_2_with_negative}"
            )

    @property
    def data_set_commit(self) -> str | None:
        from bert import hub

        return hub.cached_commit(self.dataset_name, self.dataset_revision) if self.dataset_name else None


def main(argv: Sequence[str] | None = None) -> None:
    config = flags.parse(
        Config, argv, prog="bert-squad", description="Fine-tune BERT on SQuAD over all MPI ranks."
    )
    run_on_ranks("bert-squad", config, config.output_dir, run_squad)


def run_squad(config: Config, job: Job) -> dict[str, float]:
    """Trains and predicts as the flags say, on every rank. Returns the scores, if the file has answers."""
    from bert.model import Bert
    from distributed.train import Training

    # Configuration, tokenizer and weights are found on rank 0; the windows are built once per machine.
    world, run = job.world, job.run
    origin = world.on_first(find_origin, config, run, config.do_train, Needs(max_seq_length=config.max_seq_length))
    train_data = open_data(config, job, origin.words, is_training=True) if config.do_train else None
    predict_data = open_data(config, job, origin.words, is_training=False) if config.do_predict else None
    model = Bert(origin.bert_config, "span", seed=config.seed)

    if train_data:
        lengths = ("max_seq_length", "doc_stride", "max_query_length", "version_2_with_negative")
        training = Training(
            model=model,
            feed=feed_of(train_data.windows, config.seed, config.max_seq_length),
            loss=lambda batch, key: {"loss": span_loss(model(batch, dropout_key=key), batch)},
            data_key=train_data.key,
            settings=config.run_settings(train_data.key, *lengths),
        )
        fit(config, job, origin, training)
    else:
        run.remove("result.json")  # from here on the run is not complete
        load_for_prediction(job, origin, model)

    scores: dict[str, float] = {}
    if predict_data:
        outputs = predict_windows(config, job, model, predict_data.windows)
        scores = world.on_first(write_predictions, config, run, predict_data, outputs)
    job.finish({"scores": scores})
    run.say(f"done: {config.output_dir}" + "".join(f", {name} {value:.2f}" for name, value in scores.items()))
    return scores


# -- data ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """A SQuAD file as rows: its windows, and the positions of its contexts' tokens. `key` is a digest of the
    data."""

    windows: "Rows"
    paragraphs: "Rows"
    key: str


def open_data(config: Config, job: Job, tokenizer: "Tokenizer", is_training: bool) -> Data:
    """The windows for training or for prediction, memory-mapped on every rank."""
    from distributed.rows import Rows
    from tasks.squad.reading import source_of
    from tasks.squad.windows import prepare

    source = source_of(config, is_training)
    key = job.world.on_each_machine(prepare, config, source, tokenizer, cache_folder(), job.run)
    job.world.agree({f"the content of {source.flag}": key})
    folder = cache_folder() / key
    return Data(Rows.open(folder / "windows.arrow"), Rows.open(folder / "paragraphs.arrow"), key)


def collate(fields: dict, grouping: "Grouping | None" = None) -> "Batch":
    """Windows -> the encoder's inputs and the answers' positions [B]."""
    import numpy as np

    from ringbert.ragged import padded

    fields, groups = grouped(fields, grouping)
    batch = encoder_inputs(fields | {"sentence_a_tokens": fields["question_tokens"]}, groups)
    answers = ("start_position", "end_position")
    lengths = np.diff(fields["input_ids"][1])
    assert all((fields[name] < lengths).all() for name in answers), "an answer outside its window"
    return batch | {name: padded(fields[name], len(batch["first_tokens"])) for name in answers}


# -- training -----------------------------------------------------------------------------------------------------


def feed_of(windows: "Rows", seed: int, max_seq_length: int) -> "Feed":
    """The training data; each window has the same weight."""
    from distributed.feed import Feed
    from distributed.order import Order

    return Feed(
        rows=windows,
        order=Order(len(windows), seed),
        collate=collate,
        weights=lambda batch: {"loss": float(num_examples(batch))},
        lengths=partial(windows.lengths_at, "input_ids"),
        longest=max_seq_length,
    )


def span_loss(scores: "tf.Tensor", batch: dict[str, "tf.Tensor"]) -> "tf.Tensor":
    """The sum over rows of (cross-entropy of the start + cross-entropy of the end) / 2, without padding."""
    import tensorflow as tf

    from bert.inputs import example_numbers, in_groups

    groups = zip(in_groups(scores, batch), in_groups(example_numbers(batch), batch), strict=True)
    targets_B2 = tf.stack([batch["start_position"], batch["end_position"]], 1)
    sums = []
    for scores_BT2, example_ids_BT in groups:
        padding_B1T = tf.cast(example_ids_BT == 0, scores_BT2.dtype)[:, None]
        log_probs_B2T = tf.nn.log_softmax(tf.transpose(scores_BT2, [0, 2, 1]) - LARGE * padding_B1T)
        rows, length = tf.unstack(tf.shape(example_ids_BT))
        here_B2, targets_B2 = targets_B2[:rows], targets_B2[rows:]
        # GPUs compute shapes for the gradients of tf.gather with batch_dims and of sums without keepdims, and the
        # host waits for them.
        here_B2T = tf.one_hot(here_B2, length, dtype=scores_BT2.dtype)
        log_probs_B21 = tf.reduce_sum(log_probs_B2T * here_B2T, -1, keepdims=True)
        sums.append(tf.reduce_sum(log_probs_B21 * (1 - padding_B1T[:, :, :1])))  # some rows are all padding
    return -tf.add_n(sums) / 2


# -- prediction ---------------------------------------------------------------------------------------------------


def predict_windows(config: Config, job: Job, model: "Bert", windows: "Rows") -> "list[np.ndarray] | None":
    """Start and end scores of every window, float32 [tokens, 2], on rank 0; None elsewhere."""
    import numpy as np
    import tensorflow as tf

    from distributed.feed import batch_maker
    from distributed.predict import predict

    lengths = np.diff(windows.column("input_ids")[1])
    batches = prediction_batches(lengths, config.predict_batch_size, config.max_seq_length)
    signature = {name: tf.TensorSpec([None, None], tf.int32) for name in INPUTS}
    forward = tf.function(lambda batch: model(batch), input_signature=[signature], autograph=False)

    def inputs(fields: dict) -> "Batch":
        batch = collate(fields)
        return {name: batch[name] for name in INPUTS}

    advice = "lower --predict_batch_size or --max_seq_length"
    make_batch = batch_maker(windows, with_checked_ids(inputs, model.config))
    outputs = predict(job.world, job.run, batches, make_batch, forward, memory_advice=advice)
    if outputs is None:
        return None
    scores: list = [None] * len(windows)
    for batch, scores_BT2 in zip(batches, outputs, strict=True):
        for row, window in enumerate(batch):
            scores[window] = scores_BT2[row, : lengths[window]]
    return scores


def write_predictions(config: Config, run: "Run", data: Data, scores: "list[np.ndarray]") -> dict[str, float]:
    """Writes answers and scores as Google's files. Returns the scores. On rank 0."""
    from tasks.squad import metrics
    from tasks.squad.answers import find_answers
    from tasks.squad.reading import read, source_of

    version_2 = config.version_2_with_negative
    examples = read(source_of(config, is_training=False), version_2)
    answers = find_answers(config, version_2, examples, data.windows, data.paragraphs, scores)
    run.write_json("predictions.json", answers.predictions)
    run.write_json("nbest_predictions.json", answers.nbest)
    if version_2:
        run.write_json("null_odds.json", answers.null_odds)
    if not examples.is_labelled:
        run.say(f"{examples.source.path} has no answers: predictions are written, not scored")
        return {}
    metric = config.metric
    if metric == "auto":
        korean = "korquad" in examples.version.lower()
        metric = "squad_v2" if version_2 else "korquad_v1" if korean else "squad_v1"
    if metric == "squad_v2":
        result = metrics.squad_v2(examples.references, answers.predictions)
        best = metrics.squad_v2(examples.references, answers.predictions, answers.null_odds)
        result |= {name: value for name, value in best.items() if name.startswith("best_")}
    else:
        result = getattr(metrics, metric)(examples.references, answers.predictions)
    run.write("eval_results.txt", "".join(f"{name} = {value}\n" for name, value in sorted(result.items())))
    return result


if __name__ == "__main__":
    main()
