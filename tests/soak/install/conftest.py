"""What several tests of a release start from."""

import sys

import pytest
from harness.jobs import isolated
from harness.parsing import ROOT


@pytest.fixture(scope="session")
def forge():
    """The address of the repository to which README.md leads."""
    return "https://forge.example/somebody/ringbert"


@pytest.fixture(scope="session")
def built(forge, tmp_path_factory):
    """A folder with the sdist of the checkout and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("built") / "dist"
    release = (sys.executable, ROOT / "scripts/release.py", folder)
    isolated(*release, "--repository", forge, "--rehearse", wait_s=3600)
    return folder
