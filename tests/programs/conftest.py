"""Each file's runs have new caches."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RINGBERT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
