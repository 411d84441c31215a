"""bert-squad: fine-tune BERT on SQuAD over all ranks, predict, score (google-research/bert
`run_squad.py`).

Start reading at `run_squad`, below: data -> plan -> model -> train -> predict -> files.
"""

import time
from typing import Any

from bert import hub
from distributed.run import Run
from tasks.cache import Prepared
from tasks.details import REPORT, Section
from tasks.evaluation import write_eval_results
from tasks.job import Job, run_on_ranks
from tasks.predict import Predictor
from tasks.squad.answers import SpanDecoder, nbest_file
from tasks.squad.details import details
from tasks.squad.metrics import Unit, separates_words, squad_v1, squad_v2
from tasks.squad.reading import Examples, Source, read, source_of
from tasks.squad.settings import SquadConfig
from tasks.squad.task import SpanTask
from tasks.squad.windows import open_windows
from tasks.start import Needs, start_of_run
from tasks.texts import Preparation
from tasks.trained import saved_settings
from tasks.training import Training, TrainingData


def run(config: SquadConfig) -> None:
    run_on_ranks("bert-squad", config, config.machine, config.output_dir, run_squad)


def run_squad(config: SquadConfig, job: Job) -> dict[str, float]:
    """Trains and predicts as the flags say, on every rank. Returns the scores, if the file has
    answers."""
    # Configuration, tokenizer and weights are found on rank 0; the windows are built once per
    # machine.
    world, run, windows, training = job.world, job.run, config.windows, config.training
    task = SpanTask(windows.max_seq_length, saved_settings(config))
    start = start_of_run(config, job, Needs(task.max_seq_length))
    train_source, predict_source = (
        source_of(config.questions, is_training) for is_training in (True, False)
    )
    preparation = Preparation(world, run, start.words, windows.allow_unknown)
    train = open_windows(windows, train_source, preparation) if config.do_train else None
    dev = open_windows(windows, predict_source, preparation) if config.do_predict else None
    model = start.model(task.head)
    if train:
        commit = train_source.split and hub.cached_commit(train_source.path, train_source.revision)
        data = TrainingData.of(train, "windows", saved_settings(windows), commit)
        Training(model, task, data, training, job).run(start, job, training.loop.seed)
    else:
        start.load(model, world, run)
    predictor = Predictor(model, task.batch, task.max_seq_length, job)
    scores, facts = predict(config, job, predictor, predict_source, dev) if dev else ({}, {})
    job.finish(config.do_train, scores, facts)
    return scores


def predict(
    config: SquadConfig, job: Job, predictor: Predictor, source: Source, data: Prepared
) -> tuple[dict[str, float], dict[str, object]]:
    """Predicts answers and writes the files. Returns the scores, and what else result.json
    holds."""
    started, windows = time.perf_counter(), data.tables["windows"]
    examples = read(source, config.windows.version_2_with_negative)
    decoder = SpanDecoder(
        config.answers, config.windows.version_2_with_negative, examples, data.tables
    )
    kept = predictor(windows, config.predict_batch_size, decoder.keep)
    seconds = time.perf_counter() - started
    scores, sections = job.world.on_first(
        write_predictions, config, job.run, examples, decoder, kept
    )
    files_s = time.perf_counter() - started - seconds
    speed = f"{len(windows) / seconds:.1f} a second; answers, scores and files {files_s:.1f} s"
    job.run.say(f"predicted {len(windows):,} windows in {seconds:.1f} s, {speed}")
    figures = {"windows": len(windows), "seconds": seconds, "files_s": files_s}
    return scores, {"prediction": figures, REPORT: sections}


def unit_of(metric: str, examples: Examples) -> Unit:
    """What F1 counts by the flag `--metric`."""
    if metric == "characters":
        return "character"
    is_korquad = metric == "auto" and "korquad" in examples.version.lower()
    return "korquad_v1" if is_korquad or metric == "korquad_v1" else "word"


def write_predictions(
    config: SquadConfig, run: Run, examples: Examples, decoder: SpanDecoder, kept: list[Any]
) -> tuple[dict[str, float], list[Section]]:
    """Writes answers and scores as Google's files. Returns the scores, and sections for the report.
    On rank 0."""
    ids, version_2 = list(examples.references), config.windows.version_2_with_negative
    decoded = [*decoder.decode(kept)]
    texts, entries, odds = [*zip(*decoded, strict=True)][:3]
    predictions, null_odds = dict(zip(ids, texts, strict=True)), dict(zip(ids, odds, strict=True))
    run.write_json("predictions.json", predictions)
    run.write("nbest_predictions.json", nbest_file(ids, entries))
    if version_2:
        run.write_json("null_odds.json", null_odds)
    if not any(question.answers or question.is_impossible for question in examples.questions):
        run.say("the questions have no answers: predictions are written, not scored")
        return {}, []
    unit = unit_of(config.metric, examples)
    if unit == "word" and not separates_words(examples.paragraphs):
        run.say(
            "the contexts have no blanks between words: F1 hardly differs from EM; see --metric"
            " characters"
        )
    if version_2:
        scores, each = squad_v2(examples.references, predictions, null_odds, unit)
    else:
        scores, each = squad_v1(examples.references, predictions, unit)
    write_eval_results(run, scores)
    return scores, details(examples, decoded, each)
