"""bert-classifier: fine-tune BERT to label texts or pairs of texts (google-research/bert
`run_classifier.py`).

The data are those of a task in named_tasks.py, or your own files. Start reading at
`run_classifier`, below.
"""

import contextlib
import statistics
from dataclasses import replace
from typing import Any

from distributed.run import Run
from ringbase.settings import flat, made
from tasks.cache import Prepared
from tasks.classifier.details import details
from tasks.classifier.reading import Source, sources
from tasks.classifier.rows import open_set
from tasks.classifier.scoring import measure, write_predictions
from tasks.classifier.settings import ClassifierConfig
from tasks.classifier.several import THRESHOLDS
from tasks.classifier.task import LabelTask, class_weights, labels_of, with_labels
from tasks.environment import result_file
from tasks.fit import TrainingData, evaluations, fit, load_for_prediction, write_eval_results
from tasks.job import Job, run_on_ranks
from tasks.predict import Predictor
from tasks.start import Needs, Start, find_start
from tasks.trained import TASK_FILE, saved_settings, settings_of

Scores = dict[str, float]


def run(config: ClassifierConfig) -> None:
    run_on_ranks("bert-classifier", config, config.machine, config.output_dir, run_seeds)


def run_seeds(config: ClassifierConfig, job: Job) -> Scores:
    """Runs once, or once for each of `--seeds` and writes means and standard deviations into
    `output_dir`. Returns the scores, or their means. The runs share what is compiled
    (`tasks.job.Workspace`)."""
    if config.seeds is None:
        return run_classifier(config, job)
    job.run.remove(result_file(config.do_train))
    results: dict[str, Scores] = {}
    for seed in config.seeds.split(","):
        job.run.say(f"seed {seed}")
        folder = job.run.folder / f"seed-{seed}"
        values = flat(config) | {"seed": int(seed), "output_dir": str(folder), "seeds": None}
        job.world.on_first(job.run.lock_again)  # after a death
        with contextlib.closing(Run(folder, job.world)) as run:
            results[seed] = run_classifier(
                made(ClassifierConfig, values), replace(job, run=run, config=values)
            )
    columns = {
        name: [scores[name] for scores in results.values()] for name in next(iter(results.values()))
    }
    means = {name: statistics.mean(values) for name, values in columns.items()}
    deviations = {name: statistics.stdev(v) if len(v) > 1 else 0.0 for name, v in columns.items()}
    lines = [
        f"{name} = {means[name]:.4f} ± {deviations[name]:.4f} ({len(results)} seeds)"
        for name in means
    ]
    job.run.write("eval_results.txt", "\n".join(lines) + "\n")
    job.run.say("\n".join(lines))
    job.finish(config.do_train, means, {"standard_deviations": deviations, "seeds": results})
    return means


def run_classifier(config: ClassifierConfig, job: Job) -> Scores:
    """Trains, evaluates and predicts as the flags say, on every rank. Returns the scores."""
    # Configuration, tokenizer, weights and labels are found on rank 0; the rows are built once per
    # machine.
    world, run, training, evaluation = job.world, job.run, config.training, config.evaluation
    max_seq_length, resume = config.examples.max_seq_length, job.resume(config.training.resume)
    start = world.on_first(
        find_start, config.model, resume, run, config.do_train, Needs(max_seq_length)
    )
    task, start = world.on_first(with_labels, config, start, run)
    labels = labels_of(start.bert_config)

    def sets(kind: str, is_needed: bool) -> list[tuple[Source, Prepared]]:
        needed = sources(config.texts, task, kind) if is_needed else []
        return [
            (source, open_set(source, labels, config.examples, start.words, world, run))
            for source in needed
        ]

    train_sets = sets("train", config.do_train)
    dev_sets = sets("dev", evaluation.needs_dev_set(config.do_train))
    test_sets = sets("test", config.do_predict)
    examples = train_sets[0][1].tables["examples"] if train_sets else None
    weights = class_weights(config.class_weights, labels, examples) if examples else None
    num_labels = len(labels or ()) if task.has_several else 0
    label_task = LabelTask(max_seq_length, weights, saved_settings(config), num_labels)
    job.make_model(
        start.bert_config, label_task.head, training.loop.seed, start.weights is not None
    )
    predictor = Predictor(job, label_task.batch, max_seq_length)

    dev_outputs = dict[str, Any]()  # of the last evaluation

    def dev_scores() -> Scores:
        scores: Scores = {}
        for source, data in dev_sets:
            outputs = dev_outputs[source.split] = predictor(
                data.tables["examples"], evaluation.eval_batch_size
            )
            scores |= world.on_first(measure, "eval", source, data, labels, outputs)
        return scores

    if config.do_train:
        source, train_set = train_sets[0]
        num_rows = sum(len(dev.tables["examples"]) for _, dev in dev_sets)
        held_out = evaluations(evaluation, dev_scores, task.metrics[0], num_rows)
        fixed = {"max_seq_length": max_seq_length, "class_weights": config.class_weights}
        rows = TrainingData.of(train_set, "examples", training.loop.seed, fixed, source.commit)
        steps: int | None = fit(label_task, rows, start, training, job, held_out)
    else:
        steps = load_for_prediction(job, start)

    scores, facts = Scores(), dict[str, Any]()
    thresholds = {} if config.do_train else world.on_first(trained_thresholds, start)
    if evaluation.do_eval:
        scores = dev_scores()
        write_eval_results(run, {**scores, "loss": scores["eval_loss"], "global_step": steps})
        facts = world.on_first(details, dev_sets, dev_outputs, labels)
        if config.do_train and THRESHOLDS in facts:
            thresholds = facts[THRESHOLDS]
            run.write_json(f"model/{TASK_FILE}", {**saved_settings(config), THRESHOLDS: thresholds})
    for source, data in test_sets:
        outputs = predictor(data.tables["examples"], config.predict_batch_size)
        scores |= world.on_first(write_predictions, source, data, labels, outputs, run, thresholds)
    job.finish(config.do_train, scores, facts)
    return scores


def trained_thresholds(start: Start) -> dict[str, float]:
    """Those that an evaluation chose for the model, by label."""
    saved = settings_of(start.weights).get(THRESHOLDS) if start.weights else None
    return saved if isinstance(saved, dict) else {}
