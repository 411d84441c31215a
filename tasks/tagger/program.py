"""bert-tagger: fine-tune BERT to tag words or characters over all ranks, such as named entities.

Start reading at `run_tagger`, below.
"""

import functools
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from bert import configuration
from distributed.run import Run
from ringbase.errors import InputError
from ringbase.files import digest
from ringbase.settings import flat
from tasks.cache import Prepared, Recipe
from tasks.classifier.task import stated_labels
from tasks.evaluation import evaluations, write_eval_results
from tasks.job import Job, run_on_ranks
from tasks.predict import Predictor
from tasks.start import Needs, Start, start_of_run
from tasks.tagger.reading import Sentence, Source, read, text_of
from tasks.tagger.scoring import details, entities, measure
from tasks.tagger.settings import TaggerConfig
from tasks.tagger.task import VERSION, Tags, TagTask, best_and_losses, tables, tags_of
from tasks.texts import Preparation
from tasks.trained import saved_settings
from tasks.training import Training, TrainingData

Scores = dict[str, float]


def run(config: TaggerConfig) -> None:
    run_on_ranks("bert-tagger", config, config.machine, config.output_dir, run_tagger)


def run_tagger(config: TaggerConfig, job: Job) -> Scores:
    """Trains, evaluates and predicts as the flags say, on every rank. Returns the scores."""
    # Configuration, tokenizer, weights and tags are found on rank 0; the rows are built once per
    # machine.
    world, run, training, evaluation = job.world, job.run, config.training, config.evaluation
    length = config.sentences.max_seq_length
    start = world.on_first(with_tags, config, start_of_run(config, job, Needs(length)), run)
    labels, characters = start.bert_config.labels, config.sentences.characters
    kinds = filter(config.wanted.get, config.wanted)
    preparation = Preparation(world, run, start.words, config.sentences.allow_unknown)
    sets = {
        kind: open_set(Source(config.files, kind), config, labels, preparation) for kind in kinds
    }
    task = TagTask(length, saved_settings(config))
    model = start.model(task.head)
    predictor = Predictor(model, task.batch, length, job)
    read_set = functools.cache(lambda kind: read(Source(config.files, kind), characters, labels))

    def tagged(
        kind: str, batch_size: int
    ) -> tuple[Sequence[Sentence], Sequence[Tags], Sequence[np.ndarray]]:
        """On rank 0 the sentences of a set, the tags that the model gives them, and the losses of
        words with tags."""
        rows = sets[kind].tables["rows"]
        kept = predictor(rows, batch_size, functools.partial(best_and_losses, rows.column("tags")))
        if kept is None:
            return (), (), ()
        best, losses = zip(*kept, strict=True)
        sentences = read_set(kind)  # once, although every evaluation needs the dev set
        return sentences, tags_of(sentences, labels, characters, rows, best), losses

    last = list[Any]()  # what the last evaluation has tagged, on rank 0

    def dev_scores() -> Scores:
        last[:] = tagged("dev", evaluation.eval_batch_size)
        return world.on_first(measure, "eval", labels, characters, *last)

    if config.do_train:
        data = TrainingData.of(sets["train"], "rows", task.settings)
        num_rows = len(sets["dev"].tables["rows"]) if "dev" in sets else 0
        held_out = evaluations(evaluation, dev_scores, "f1", num_rows)
        seed = training.loop.seed
        steps: int | None = Training(model, task, data, training, job).run(
            start, job, seed, held_out
        )
    else:
        steps = start.load(model, world, run)
    scores, facts = Scores(), dict[str, Any]()
    if evaluation.do_eval:
        scores = dev_scores()
        write_eval_results(run, {**scores, "loss": scores["eval_loss"], "global_step": steps})
        facts = world.on_first(lambda: details(characters, *last[:2]))
    if config.do_predict:
        found = tagged("predict", config.predict_batch_size)
        scores |= world.on_first(write_predictions, run, labels, characters, *found)
    job.finish(config.do_train, scores, facts)
    return scores


def open_set(
    source: Source, config: TaggerConfig, labels: Sequence[str], preparation: Preparation
) -> Prepared:
    """The rows of a source, as `tables` makes them, on every rank. Raises InputError as `read` and
    `Preparation.rows`."""
    settings, tokenizer = config.sentences, preparation.tokenizer

    def recipe() -> Recipe:
        sentences = read(source, settings.characters, labels)
        content = digest("tagger", VERSION, tokenizer.digest, labels, flat(settings), sentences)
        return content, lambda: tables(sentences, labels, settings, preparation)

    return preparation.rows(recipe, source)


def with_tags(config: TaggerConfig, start: Start, run: Run) -> Start:
    """The start of a tagger: its configuration has the tags of the checkpoint, else of the training
    file with O first; a head for other tags is initialized again. On rank 0."""
    # config.json beside the weights counts, even if `--bert_config_file` replaces it.
    trained = configuration.read_config(start.weights) if start.weights else None
    stated = stated_labels(trained) or stated_labels(start.bert_config)
    if stated and (start.state or not config.do_train):
        return replace(start, bert_config=replace(start.bert_config, labels=stated))
    if not config.do_train:
        raise InputError(
            "the tags are unknown: the model's config.json has no id2label; --do_train is off"
        )
    source = Source(config.files, "train")
    found = {
        tag for each in read(source, config.sentences.characters) for tag in each.tags or ()
    } - {"O"}
    if not found:
        raise InputError(f"{source}: every tag is O")
    labels, fresh = ("O", *sorted(found)), tuple[str, ...]()
    if stated and sorted(stated) == sorted(labels):
        labels = stated  # in the model's own order
    elif stated:
        run.say(
            f"the model's tags {', '.join(stated)} are not this file's: a new tagger is trained"
        )
        fresh = "output_weights", "output_bias"
    return replace(
        start, bert_config=replace(start.bert_config, labels=labels), fresh_tensors=fresh
    )


def write_predictions(
    run: Run,
    labels: Sequence[str],
    characters: bool,
    sentences: Sequence[Sentence],
    found: Sequence[Tags],
    losses: Sequence[np.ndarray],
) -> Scores:
    """Writes predictions.conll, words and tags, and predictions.jsonl, texts and entities with
    their places. Returns the scores if the set has tags. On rank 0."""
    blocks, lines = list[str](), list[str]()
    for each, tags in zip(sentences, found, strict=True):
        blocks.append(
            "".join(f"{word}\t{tag}\n" for word, tag in zip(each.words, tags[0], strict=True))
        )
        text, starts = text_of(each.words, characters)
        value = {
            "text": text,
            "entities": [asdict(entity) for entity in entities(text, each.words, starts, tags)],
        }
        lines.append(json.dumps(value, ensure_ascii=False) + "\n")
    run.write("predictions.conll", "\n".join(blocks))
    run.write("predictions.jsonl", "".join(lines))
    has_tags = all(each.tags for each in sentences)
    return measure("predict", labels, characters, sentences, found, losses) if has_tags else {}
