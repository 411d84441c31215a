"""Several corpora in one stream: corpus and row are a function of (seed, position), each corpus is
seen in its own order without repeats, and every prefix has the stated shares."""

import time
import tracemalloc
from collections import Counter
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from distributed.mixture import MOST_UNITS, Mixture, Shares, hashed, units_of
from distributed.order import Order
from distributed.plan import PlanSettings, make_plan
from distributed.rows import Feed, Rows
from distributed.stages import DECAY, Places, Table, stages_of
from ringbase.errors import InputError
from tasks.pretraining.stream import shares_by

SIZES = 40, 300, 17
# weights by row: a corpus that comes in later, one that leaves, one alone
TABLE = Table((0, 500, 1100), ((7, 3, 0), (1, 2, 5), (0, 0, 1)))
BLOCK = 16  # rows, of BlockOrder


def mixture(seed=3):
    return Mixture(SIZES, TABLE, seed)


def test_each_corpus_is_seen_in_an_order_of_its_own_without_repeats():
    fields = mixture().fields_at(0, 1500)
    first_row = 0
    for number, size in enumerate(SIZES):
        mine = fields["corpus"] == number
        rows, epochs = fields["row"][mine] - first_row, fields["epoch"][mine]
        assert epochs.tolist() == (np.arange(mine.sum()) // size).tolist()
        for epoch in range(epochs[-1]):  # whole ones, also across changes of the weights
            assert sorted(rows[epochs == epoch]) == list(range(size))
        last = rows[epochs == epochs[-1]]
        assert len(set(last)) == len(last)
        first_row += size
    assert fields["position"].tolist() == list(range(1500))


def test_a_position_has_the_same_row_however_it_is_reached():
    whole, order, chance = mixture().fields_at(0, 1500), mixture(), np.random.default_rng(0)
    for _ in range(60):
        start, stop = np.sort(chance.integers(0, 1500, 2))
        for name, values in order.fields_at(start, stop).items():
            np.testing.assert_array_equal(values, whole[name][start:stop], err_msg=name)
    other = mixture(seed=4).fields_at(0, 1500)
    assert (other["row"] != whole["row"]).mean() > 0.5
    assert (other["corpus"] != whole["corpus"]).any()


def test_batches_are_of_one_corpus_each():
    """In the order of a mixture of batches; also where weights change within a batch, and where a
    corpus has no whole number of batches."""
    batch = 14
    order = Mixture(SIZES, TABLE, 3, batch, Order)
    fields = order.fields_at(0, 1500)
    corpora = fields["corpus"][: 107 * batch].reshape(-1, batch)
    assert (corpora == corpora[:, :1]).all()
    starts = tuple(-(-start // batch) for start in TABLE.starts)  # the next whole batch
    of_batches = Mixture(SIZES, Table(starts, TABLE.values), 3).fields_at(0, 107)["corpus"]
    assert corpora[:, 0].tolist() == of_batches.tolist()
    first_row = 0
    for number, size in enumerate(SIZES):
        mine = fields["corpus"] == number
        rows, epochs = fields["row"][mine] - first_row, fields["epoch"][mine]
        assert epochs.tolist() == (np.arange(mine.sum()) // size).tolist()
        for epoch in range(epochs[-1]):
            assert sorted(rows[epochs == epoch]) == list(range(size))
        first_row += size
    chance = np.random.default_rng(0)
    for _ in range(60):
        start, stop = np.sort(chance.integers(0, 1500, 2))
        for name, values in order.fields_at(start, stop).items():
            np.testing.assert_array_equal(values, fields[name][start:stop], err_msg=name)
        assert order.counts(stop) == np.bincount(fields["corpus"][:stop], minlength=3).tolist()


def test_the_mixture_is_the_same_on_every_machine():
    """Else a run that is resumed under another NumPy would lose rows."""
    fields = Mixture((5, 9), Table((0, 8), ((2, 1), (1, 3))), 42).fields_at(0, 20)
    assert "".join(map(str, fields["corpus"])) == "00100100101110111011"
    rows = "4 0 10 2 3 5 1 2 11 0 12 9 13 4 7 6 8 3 9 6"
    assert " ".join(map(str, fields["row"])) == rows


def test_corpora_take_turns_as_counters_say():
    """Row by row with a counter for each node of the tree, written out: the first half has its turn
    when the counter overflows."""
    key, units = 11, (5, 1, 2, 4)
    counters = {(0, 4): hashed(key, 0, 4) % 12}
    counters |= {(0, 2): hashed(key, 0, 2) % 6, (2, 4): hashed(key, 2, 4) % 6}
    expected = []
    for _ in range(300):
        low, high = 0, 4
        while high - low > 1:
            middle = (low + high) // 2
            first, total = sum(units[low:middle]), sum(units[low:high])
            counters[low, high] += first
            if counters[low, high] >= total:
                counters[low, high] -= total
                high = middle
            else:
                low = middle
        expected.append(low)
    found = np.empty(300, int)
    for portion in Shares(units, key).portions(0, 300):
        found[portion.places] = portion.corpus
    assert found.tolist() == expected


@pytest.mark.parametrize("ranks", [[1], [2], [3], [8], [8, 3, 1, 2]])
def test_any_number_of_ranks_sees_the_same_rows_also_after_resumes_and_deaths(ranks):
    """The rows of each step, by their own numbers, counted: each rank's part is taken as the
    training takes it, and the number of ranks changes between and, by a death, within trainings."""
    order = mixture()
    rows = Rows(pa.table({"number": pa.array(range(sum(SIZES)), pa.int64())}))
    feed = Feed(rows=rows, order=order, collate=dict)
    settings = PlanSettings(global_batch_size=24, num_train_steps=48)
    found: Counter = Counter()
    for step in range(48):
        size = ranks[step * len(ranks) // 48]
        plan = make_plan(settings, len(rows), size)
        if size > 1 and step % 3 == 2:  # the survivors take the step of all
            plan = plan.on_ranks(size - 1)
        for rank in range(plan.size):
            for batch in feed.micro_batches(plan, rank, step * 24):
                names = "number", "epoch", "position", "corpus"
                found.update(zip(*(batch[name].tolist() for name in names), strict=True))
    fields = order.fields_at(0, 48 * 24)
    names = "row", "epoch", "position", "corpus"
    assert found == Counter(zip(*(fields[name].tolist() for name in names), strict=True))


def test_every_prefix_has_the_stated_shares_within_a_block():
    """Of corpora of a thousand, a million and a billion rows, and of 50 whose weights have nothing
    in common; the counts by which a piece of the table begins are those of its rows."""
    chance = np.random.default_rng(1)
    for sizes, units in (
        ((10**3, 10**6, 10**9), (1, 30, 969)),
        ([1000] * 50, tuple(chance.integers(1, 10**6, 50).tolist())),
    ):
        order = Mixture(sizes, Table((0,), (units,)), 5)
        corpora = order.fields_at(0, 1 << 16)["corpus"]
        stops = np.arange(1, len(corpora) + 1)
        for number, unit in enumerate(units):
            counts = np.cumsum(corpora == number)
            assert np.abs(counts - stops * unit / sum(units)).max() < BLOCK
            assert order.counts(len(corpora))[number] == counts[-1]
        for stop in (10**9 + 1, 10**13 + 7):  # exactly, as whole numbers
            for count, unit in zip(order.counts(stop), units, strict=True):
                assert abs(count - Fraction(stop * unit, sum(units))) < BLOCK
    whole = mixture().fields_at(0, 1500)["corpus"]
    for stop in (0, 1, 499, 500, 501, 1100, 1500):
        expected = np.bincount(whole[:stop], minlength=3)
        assert mixture().counts(stop) == expected.tolist()


def test_a_billion_rows_take_no_memory_and_late_steps_no_more_time():
    tracemalloc.start()
    order = Mixture((10**3, 10**6, 10**9), Table((0, 10**9), ((1, 30, 969), (1, 1, 1))), 2)
    starts = 0, 5 * 10**8, 10**15

    def seconds(start):
        began = time.perf_counter()
        for step in range(20):
            order.fields_at(start + 256 * step, start + 256 * (step + 1))
        return time.perf_counter() - began

    times = [min(seconds(start) for _ in range(5)) for start in starts]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20
    assert max(times) < 4 * min(times), times  # a cost by positions would be 10^6 times as large
    rows = order.fields_at(starts[1], starts[1] + 256)
    assert len(np.unique(rows["row"])) == 256
    billion = rows["row"][rows["corpus"] == 2] - (10**3 + 10**6)
    assert 0 <= billion.min() <= billion.max() < 10**9
    assert len(np.unique(billion // 10**8)) >= 5, "drawn from all over the corpus"


def test_shares_by_a_temperature_are_those_of_the_formula():
    """p_i = n_i^α / Σ n_j^α (Conneau et al. 2020, section 3.1)."""
    sizes = np.array([2_000, 150_000, 7_000_000, 3])
    for alpha in (0.3, 0.5, 0.7, 1.0, 0.0):
        expected = sizes**alpha / (sizes**alpha).sum()
        units = np.array(units_of(shares_by(alpha, sizes.tolist())))
        np.testing.assert_allclose(units / units.sum(), expected, atol=2e-9)


def test_weights_become_the_smallest_whole_numbers():
    assert units_of([Fraction("0.7"), Fraction("0.3")]) == (7, 3)
    assert units_of([Fraction(14), Fraction(6), Fraction(0)]) == (7, 3, 0)
    with pytest.raises(ValueError, match="fewer digits"):
        units_of([Fraction("0.12345678901"), Fraction(1)])
    with pytest.raises(ValueError, match="0"):
        units_of([Fraction(0), Fraction(0)])
    assert MOST_UNITS**2 > 1 << 63  # why start · units is computed by Python


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_places_are_rows_of_the_stream_for_any_number_of_ranks(ranks):
    """By hand: 32 rows a step of one rank, 1,000 steps, 100 of them decay."""
    settings = PlanSettings(num_train_steps=1000)
    places = Places.of(settings, 777)
    table = places.table(stages_of("0.3:0.15@60%:.05@700:0@decay", "x"), "x")
    assert table.starts == (0, 19_200, 22_400, 28_800)
    assert [*map(float, table.values)] == [0.3, 0.15, 0.05, 0]
    plan = make_plan(settings, 777, ranks)
    assert abs(plan.steps * plan.global_batch_size - 32_000) < plan.global_batch_size
    assert [table.number_at(row) for row in (0, 19_199, 19_200, 50_000)] == [0, 0, 1, 3]
    assert Places.of(PlanSettings(num_train_epochs=2), 640).row_of("50%") == 640
    assert Places.of(PlanSettings(num_train_steps=100, num_decay_steps=7), 9).row_of(DECAY) == 2976


@pytest.mark.parametrize(
    "text", ["0.3:0.1@1000", "0.3:0.1@0", "0.3:0.2@50%:0.1@50%", "0.3:0.2@60%:0.1@200", "1:2@100%"]
)
def test_places_out_of_order_or_after_the_end_are_one_line(text):
    places = Places.of(PlanSettings(num_train_steps=1000), 9)
    with pytest.raises(InputError, match=r"--x: .* begins at row"):
        places.table(stages_of(text, "x"), "x")


@pytest.mark.parametrize(
    "text", ["", "a", "0.3:", "0.3:0.1", "0.3@5", "-1", "1e-3", "nan", "1:2@x"]
)
def test_what_are_no_stages_is_one_line(text):
    with pytest.raises(ValueError, match="--x must be a number, or numbers and where they begin"):
        stages_of(text, "x")


def test_numbers_of_python_and_toml_are_stages_too():
    assert stages_of(0.00001, "x") == stages_of("0.00001", "x")
    assert stages_of(1.0, "x")[0].value == 1
