import numpy as np
import pytest


@pytest.mark.ranks(1, 2, 3)
def test_a_world_of_some_of_the_ranks(world, num_ranks, folder):
    assert world.size == num_ranks
    assert world.all_gather(world.rank) == list(range(num_ranks))
    assert world.all_reduce_sum(np.array([1.0])).tolist() == [num_ranks]
