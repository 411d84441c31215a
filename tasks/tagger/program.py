"""bert-tagger: fine-tune BERT to tag words or characters over all ranks, such as named entities.

Start reading at `run_tagger`, below.
"""

from dataclasses import replace

from bert import configuration
from distributed.run import Run
from ringbase.errors import InputError
from tasks.runs.job import Job, run_on_ranks
from tasks.runs.labels import stated_labels
from tasks.runs.program import open_sets, run_task, runs_of
from tasks.runs.start import Needs, Start, start_of_run
from tasks.runs.task import Scores
from tasks.runs.trained import saved_settings
from tasks.tagger.reading import Source, in_bioes, is_plain, read, tags_of
from tasks.tagger.settings import TaggerConfig
from tasks.tagger.task import TagTask


def run(config: TaggerConfig) -> None:
    run_on_ranks("bert-tagger", config, config.output_dir, run_tagger)


def run_tagger(config: TaggerConfig, job: Job) -> Scores:
    """Trains, evaluates and predicts as the flags say, on every rank. Returns the scores."""
    # configuration, tokenizer, weights and tags are found on rank 0
    runs = runs_of(config, job, start_of_tagger)
    labels = runs[0].start.bert_config.labels
    task = TagTask(config.sentences, labels, saved_settings(config))
    sources = {kind: [Source(config.files, kind)] for kind in config.wanted_sets}
    sets = open_sets(task, sources, runs, config, job)
    return run_task(task, sets, runs, config, job)


def start_of_tagger(config: TaggerConfig, job: Job) -> Start:
    """Where a run starts; its configuration has the tags."""
    start = start_of_run(config, job, Needs(config.sentences.max_seq_length))
    return job.world.on_first(with_tags, config, start, job.run)


def with_tags(config: TaggerConfig, start: Start, run: Run) -> Start:
    """The start of a tagger: its configuration has the tags of the checkpoint, else of the training
    file with O first; a head for other tags is initialized again. On rank 0."""
    # config.json beside the weights counts, even if `--bert_config_file` replaces it.
    trained = configuration.read_config(start.weights) if start.weights else None
    stated = stated_labels(trained) or stated_labels(start.bert_config)
    if stated and not is_plain(stated):
        stated = tuple(in_bioes(stated))
    if stated and (start.state or not config.do_train):
        return replace(start, bert_config=replace(start.bert_config, labels=stated))
    if not config.do_train:
        raise InputError(
            "the tags are unknown: the model's config.json has no id2label; --do_train is off"
        )
    source = Source(config.files, "train")
    found = tags_of(read(source, config.sentences.characters))
    if found == {"O"}:
        raise InputError(f"{source}: every tag is O")
    if is_plain(found):
        run.say(f"no tag has a prefix such as B-: {len(found)} plain tags, one for each word")
    else:
        found.add("O")
    labels = tuple(sorted(found, key=lambda tag: (tag != "O", tag)))
    fresh: tuple[str, ...] = ()
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
