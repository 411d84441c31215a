"""bert-tagger: fine-tune BERT to tag words or characters over all ranks, such as named entities.

Start reading at `run_tagger`, below.
"""

from distributed.run import Run
from ringbase.errors import InputError
from tasks.runs.job import Job, run_on_ranks
from tasks.runs.labels import with_outputs
from tasks.runs.program import open_sets, run_task, runs_of
from tasks.runs.start import Start
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
    runs = runs_of(config, job, config.sentences.max_seq_length, with_tags)
    labels = runs[0].start.bert_config.labels
    task = TagTask(config.sentences, labels, saved_settings(config))
    sources = {kind: [Source(config.files, kind)] for kind in config.wanted_sets}
    sets = open_sets(task, sources, runs, config, job)
    return run_task(task, sets, runs, config, job)


def with_tags(config: TaggerConfig, start: Start, run: Run) -> Start:
    """The start of a tagger: see `with_outputs`. The tags are those of the checkpoint, else of the
    training file with O first. On rank 0."""
    labels: tuple[str, ...] = ()
    if config.do_train and not start.state:
        source = Source(config.files, "train")
        found = tags_of(read(source, config.sentences.characters))
        if found == {"O"}:
            raise InputError(f"{source}: every tag is O")
        if is_plain(found):
            run.say(f"no tag has a prefix such as B-: {len(found)} plain tags, one for each word")
        else:
            found.add("O")
        labels = tuple(sorted(found, key=lambda tag: (tag != "O", tag)))
    return with_outputs(start, labels, config.do_train, run, as_read)


def as_read(tags: tuple[str, ...]) -> tuple[str, ...]:
    """A model's tags as those of a file are read: in BIOES, unless they are plain."""
    return tags if is_plain(tags) else tuple(in_bioes(tags))
