"""The lock files in requirements/ fit pyproject.toml; scripts/lock.sh writes them. Without a
network."""

import re

import pytest
from harness.parsing import PROJECT, ROOT, TABLE
from packaging.markers import Marker, default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
PYTHONS = ("3.11", "3.12", "3.13")
ADVICE = "run scripts/lock.sh"


def entries(lock):
    """Name, version, marker and whole text of each entry of a lock file and of those that it
    includes."""
    for entry in re.split(r"\n(?=\S)", lock.read_text()):
        if included := re.match(r"-r (\S+)", entry):
            yield from entries(lock.parent / included[1])
        elif not entry.startswith("#"):
            name, version, marker = re.match(
                r"([a-z0-9-]+)==([^ ;]+)(?: ; ([^\\]+))? \\", entry
            ).groups()
            yield name, version, Marker(marker or 'os_name != ""'), entry


def test_the_environments_of_the_scripts_have_lock_files():
    scripts = [(ROOT / "scripts" / name).read_text() for name in ("test.sh", "quickstart.sh")]
    made = {re.search(r"^ *make_environment (\S+)$", script, re.MULTILINE)[1] for script in scripts}
    assert {lock.stem.replace("-", ",") for lock in LOCKS} == made


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_file_has_what_pyproject_asks_for_and_nothing_that_it_no_longer_does(lock):
    texts = [*PROJECT["dependencies"], *TABLE["build-system"]["requires"]]
    texts += [
        text for extra in lock.stem.split("-") for text in PROJECT["optional-dependencies"][extra]
    ]
    wanted, asked = [Requirement(text) for text in texts], set()
    for python in PYTHONS:
        environment = default_environment() | {
            "python_version": python,
            "python_full_version": f"{python}.0",
        }
        versions = {}
        for name, version, marker, text in entries(lock):
            if marker.evaluate(environment):
                assert versions.setdefault(name, version) == version, (
                    f"{lock.name}: two versions of {name}"
                )
            parents = set(re.findall(r"^    # +(?:via )?(\S+)", text, re.MULTILINE)) - {"via"}
            asked |= {name} if "ringbert" in parents else set()
            assert parents, name
        for requirement in wanted:
            version = versions.get(canonicalize_name(requirement.name), "0")
            assert requirement.specifier.contains(version), (
                f"{version} is not {requirement}: {ADVICE}"
            )
    unwanted = asked - {canonicalize_name(requirement.name) for requirement in wanted}
    assert not unwanted, (
        f"{lock.name} has {unwanted}, which pyproject.toml no longer asks for: {ADVICE}"
    )
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}\b", text) for *_, text in entries(lock))
    assert "://" not in lock.read_text(), "it names a server"
