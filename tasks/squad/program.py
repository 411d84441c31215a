"""bert-squad: fine-tune BERT on SQuAD over all ranks, predict, score (google-research/bert `run_squad.py`).

Start reading at `run_squad`, below: data -> plan -> model -> train -> predict -> files.
"""

import time
from functools import partial
from typing import Any

from bert import hub
from distributed import phases
from distributed.order import Order
from distributed.run import Run
from ringbase.settings import flat
from tasks.cache import Prepared
from tasks.environment import result_file
from tasks.fit import TrainingData, fit, load_for_prediction
from tasks.job import Job, run_on_ranks
from tasks.predict import Predictor
from tasks.squad import metrics
from tasks.squad.answers import SpanDecoder, nbest_file
from tasks.squad.reading import Examples, Source, read, sources
from tasks.squad.settings import SquadConfig
from tasks.squad.task import SpanTask
from tasks.squad.windows import open_windows
from tasks.start import Needs, find_start

LENGTHS = ("max_seq_length", "doc_stride", "max_query_length", "version_2_with_negative")


def run(config: SquadConfig) -> None:
    run_on_ranks("bert-squad", config, config.machine, config.output_dir, partial(run_squad, config))


def run_squad(config: SquadConfig, job: Job) -> dict[str, float]:
    """Trains and predicts as the flags say, on every rank. Returns the scores, if the file has answers."""
    # Configuration, tokenizer and weights are found on rank 0; the windows are built once per machine.
    world, run, windows, training = job.world, job.run, config.windows, config.training
    task = SpanTask(windows.max_seq_length, flat(windows) | flat(config.answers))
    resume, needs = job.resume(training.resume), Needs(task.max_seq_length)
    start = world.on_first(find_start, config.model, resume, run, config.do_train, needs)
    train_source, predict_source = sources(config.questions)
    train_data = open_windows(windows, train_source, start.words, world, run) if config.do_train else None
    predict_data = open_windows(windows, predict_source, start.words, world, run) if config.do_predict else None
    phases.ended("data")
    job.make_model(start.bert_config, task.head, training.loop.seed)
    if train_data:
        fit(task, training_data(config, train_data), start, training, job)
    else:
        run.remove(result_file(trains=False))  # from here on the command is not complete
        load_for_prediction(job, start)
    scores: dict[str, float] = {}
    result: dict[str, object] = {}
    if predict_data:
        scores, result["prediction"] = predict(config, job, task, predict_source, predict_data)
    job.finish(config.do_train, scores, result)
    return scores


def training_data(config: SquadConfig, prepared: Prepared) -> TrainingData:
    """The windows to train on, and what must not change when the run is resumed."""
    rows, key, questions = prepared.tables["windows"], prepared.facts["digest"], config.questions
    name = questions.dataset_name
    return TrainingData(
        rows=rows,
        order=Order(len(rows), config.training.loop.seed),
        key=key,
        settings={f"--{name}": getattr(config.windows, name) for name in LENGTHS},
        commit=hub.cached_commit(name, questions.dataset_revision) if name else None,
    )


def predict(
    config: SquadConfig, job: Job, task: SpanTask, source: Source, data: Prepared
) -> tuple[dict[str, float], dict[str, float]]:
    """Predicts answers and writes the files. Returns the scores, and how fast it was: the number of windows, the
    seconds until the last one was scored, and those of what came after it."""
    started = time.perf_counter()
    version_2, windows = config.windows.version_2_with_negative, data.tables["windows"]
    examples = read(source, version_2)
    decoder = SpanDecoder(config.answers, version_2, examples, windows, data.tables["paragraphs"])
    kept = Predictor(job, task.batch, task.max_seq_length)(windows, config.predict_batch_size, decoder.keep)
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
