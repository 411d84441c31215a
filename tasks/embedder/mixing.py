"""The files to train on in one stream: by weights, or each global batch of one file. Without
TensorFlow."""

from collections.abc import Sequence
from fractions import Fraction

from distributed.mixture import units_of
from distributed.order import Order
from distributed.stages import Places, Table
from tasks.embedder.settings import EmbedderConfig
from tasks.runs.resolve.command import Stream
from tasks.runs.resolve.mixture import Corpus, MixtureStream, Weights, table_of_weights

FLAG = "train_file"


def stream_of(config: EmbedderConfig, sets: Sequence[tuple[str, int]]) -> Stream:
    """The stream of files with these names and numbers of rows, of which one without weights is
    nothing special. Raises InputError as `table_of_weights`."""
    corpora = [Corpus(*each) for each in sets]
    named = config.pairs.train_sets
    is_apart = config.pairs.same_dataset_within_batch
    has_weights = named[0].weight is not None
    if len(corpora) < 2 or not (has_weights or is_apart):
        return Stream()
    plan = config.training.plan.resolved()
    sizes = [corpus.num_rows for corpus in corpora]
    weights: Weights
    if has_weights:
        weights = table_of_weights(named, corpora, Places.of(plan, sum(sizes)), FLAG)
    else:
        weights = Table((0,), (units_of([*map(Fraction, sizes)]),))
    batch = plan.batch_size if is_apart else 1
    return MixtureStream(corpora, weights, FLAG, batch, Order)
