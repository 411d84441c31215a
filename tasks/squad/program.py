"""bert-squad: fine-tune BERT on SQuAD over all ranks, predict, score (google-research/bert `run_squad.py`).

Start reading at `run_squad`, below: data -> plan -> model -> train -> predict -> files. Tensors have their shape
as a suffix: R tokens, B rows of T places, 2 for start and end.
"""

import time
from functools import partial
from typing import Any

import tensorflow as tf

from bert import hub
from bert.batch import num_examples
from bert.model import in_places, split_groups
from distributed import phases
from distributed.feed import Feed
from distributed.order import Order
from distributed.rows import Rows
from distributed.run import Run
from ringbase.settings import flat
from tasks.cache import Prepared
from tasks.environment import result_file
from tasks.fit import Training, fit, load_for_prediction
from tasks.job import Job, run_on_ranks
from tasks.squad import metrics
from tasks.squad.answers import SpanDecoder, nbest_file
from tasks.squad.reading import Examples, Source, read, sources
from tasks.squad.scores import collate, window_scorer
from tasks.squad.settings import SquadConfig
from tasks.squad.windows import open_windows
from tasks.start import Needs, find_start

LARGE = 1e30


def run(config: SquadConfig) -> None:
    run_on_ranks("bert-squad", config, config.machine, config.output_dir, partial(run_squad, config))


def run_squad(config: SquadConfig, job: Job) -> dict[str, float]:
    """Trains and predicts as the flags say, on every rank. Returns the scores, if the file has answers."""
    # Configuration, tokenizer and weights are found on rank 0; the windows are built once per machine.
    world, run, windows, training = job.world, job.run, config.windows, config.training
    needs = Needs(max_seq_length=windows.max_seq_length)
    start = world.on_first(find_start, config.model, job.resume(training.resume), run, config.do_train, needs)
    train_source, predict_source = sources(config.questions)
    train_data = open_windows(windows, train_source, start.words, world, run) if config.do_train else None
    predict_data = open_windows(windows, predict_source, start.words, world, run) if config.do_predict else None
    phases.ended("data")
    model = job.engine.bert(start.bert_config, "span", training.loop.seed)

    if train_data:
        lengths = ("max_seq_length", "doc_stride", "max_query_length", "version_2_with_negative")
        facts = {f"--{name}": getattr(windows, name) for name in lengths} | training.schedule()
        name, revision = config.questions.dataset_name, config.questions.dataset_revision
        commit = hub.cached_commit(name, revision) if name else None
        work = Training(
            model=model,
            feed=feed_of(train_data.tables["windows"], training.loop.seed, windows.max_seq_length),
            loss=lambda batch, key: {"loss": span_loss(model(batch, dropout_key=key), batch)},
            data_key=train_data.facts["digest"],
            settings=facts | {"training data (digest)": train_data.facts["digest"]},
        )
        fit(training, job, start, work, {"config": flat(config), "data_set": commit})
    else:
        run.remove(result_file(trains=False))  # from here on the command is not complete
        load_for_prediction(job, start, model)

    scores: dict[str, float] = {}
    speed: dict[str, float] = {}
    if predict_data:
        scores, speed = predict(config, job, predict_source, predict_data)
    result: dict[str, object] = {"scores": scores, "prediction": speed} if predict_data else {"scores": scores}
    job.finish(config.do_train, result)
    run.say(f"done: {config.output_dir}" + "".join(f", {name} {value:.2f}" for name, value in scores.items()))
    return scores


# -- training -----------------------------------------------------------------------------------------------------


def feed_of(windows: Rows, seed: int, max_seq_length: int) -> Feed:
    """The training data; each window has the same weight."""
    return Feed(
        rows=windows,
        order=Order(len(windows), seed),
        collate=collate,
        weights=lambda batch: {"loss": float(num_examples(batch))},
        lengths=partial(windows.lengths_at, "input_ids"),
        longest=max_seq_length,
    )


def span_loss(scores_R2: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """The sum over rows of (cross-entropy of the start + cross-entropy of the end) / 2, without padding."""
    groups = zip(in_places(scores_R2, batch), split_groups(batch["attention_mask"], batch), strict=True)
    targets_B2 = tf.stack([batch["start_position"], batch["end_position"]], 1)
    is_example_B = batch["is_example"]
    sums = []
    for scores_BT2, mask_BT in groups:
        padding_B1T = 1 - tf.cast(mask_BT, scores_BT2.dtype)[:, None]
        log_probs_B2T = tf.nn.log_softmax(tf.transpose(scores_BT2, [0, 2, 1]) - LARGE * padding_B1T)
        rows, length = tf.unstack(tf.shape(mask_BT))
        here_B2, targets_B2 = targets_B2[:rows], targets_B2[rows:]
        is_here_B, is_example_B = is_example_B[:rows], is_example_B[rows:]
        # GPUs compute shapes for the gradients of tf.gather with batch_dims and of sums without keepdims, and the
        # host waits for them.
        here_B2T = tf.one_hot(here_B2, length, dtype=scores_BT2.dtype)
        log_probs_B21 = tf.reduce_sum(log_probs_B2T * here_B2T, -1, keepdims=True)
        sums.append(tf.reduce_sum(log_probs_B21 * is_here_B[:, None, None]))
    return -tf.add_n(sums) / 2


# -- prediction ---------------------------------------------------------------------------------------------------


def predict(
    config: SquadConfig, job: Job, source: Source, data: Prepared
) -> tuple[dict[str, float], dict[str, float]]:
    """Predicts answers and writes the files. Returns the scores, and how fast it was: the number of windows, the
    seconds until the last one was scored, and those of what came after it."""
    started = time.perf_counter()
    version_2, windows = config.windows.version_2_with_negative, data.tables["windows"]
    examples = read(source, version_2)
    decoder = SpanDecoder(config.answers, version_2, examples, windows, data.tables["paragraphs"])
    score_windows = window_scorer(job, config.windows.max_seq_length)
    # Answers are chosen where the scores are, while the model computes the next batch.
    kept = score_windows(windows, config.predict_batch_size, decoder.keep)
    scored = time.perf_counter()
    scores = job.world.on_first(write_predictions, config, job.run, examples, decoder, kept)
    speed = {"windows": len(windows), "seconds": scored - started, "files_s": time.perf_counter() - scored}
    job.run.say(
        f"predicted {speed['windows']:,} windows in {speed['seconds']:.1f} s, "
        f"{speed['windows'] / speed['seconds']:.1f} a second; answers, scores and files {speed['files_s']:.1f} s"
    )
    return scores, speed


def write_predictions(
    config: SquadConfig, run: Run, examples: Examples, decoder: SpanDecoder, kept: list[Any]
) -> dict[str, float]:
    """Writes answers and scores as Google's files. Returns the scores. On rank 0."""
    ids, decoded = [question.id for question in examples.questions], decoder.decode(kept)
    version_2 = config.windows.version_2_with_negative
    predictions = {id_: each.answer for id_, each in zip(ids, decoded, strict=True)}
    null_odds = {id_: each.null_odds for id_, each in zip(ids, decoded, strict=True) if each.null_odds is not None}
    run.write_json("predictions.json", predictions)
    run.write("nbest_predictions.json", nbest_file(ids, decoded))
    if version_2:
        run.write_json("null_odds.json", null_odds)
    if not examples.is_labelled:
        run.say(f"{examples.source.path} has no answers: predictions are written, not scored")
        return {}
    metric = config.metric
    if metric == "auto":
        korean = "korquad" in examples.version.lower()
        metric = "squad_v2" if version_2 else "korquad_v1" if korean else "squad_v1"
    if metric == "squad_v2":
        result = metrics.squad_v2(examples.references, predictions, null_odds)
    else:
        result = getattr(metrics, metric)(examples.references, predictions)
    run.write("eval_results.txt", "".join(f"{name} = {value}\n" for name, value in sorted(result.items())))
    return result
