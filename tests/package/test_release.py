"""What a package index and a forge take from the project: README.md, classifiers, changelog,
workflows and issue templates. scripts/soak.sh install builds and rehearses a release."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from harness.parsing import PROJECT, ROOT, TABLE

sys.path.insert(0, str(ROOT / "scripts"))
import release

FORGE = "https://forge.example/somebody/ringbert"
WORKFLOWS = ROOT / ".github/workflows"
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_readme_on_a_package_index_links_to_files_of_the_repository():
    text = release.absolute((ROOT / "README.md").read_text(), FORGE, "v1.2.3")
    prose = re.sub(r"(?m)^    .*$", "", text)
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", prose)
    assert len(links) == len(re.findall(r"\]\(", prose)) > 20
    assert [address for _, address in links if not address.startswith("https://")] == []
    own = [(mark, address) for mark, address in links if address.startswith(FORGE)]
    for mark, address in own:
        kind, tag, path = address.removeprefix(f"{FORGE}/").split("/", 2)
        assert (kind, tag) == ("raw" if mark else "blob", "v1.2.3")
        assert (ROOT / path.partition("#")[0]).is_file(), address
    assert ("!", f"{FORGE}/raw/v1.2.3/docs/report.png") in own


def test_links_in_code_and_to_elsewhere_stay_and_anchors_lead_to_the_page():
    text = "`[a](b)` ``[`]()`` [c](https://d) [`e`](f.md#g) [h\ni](#j) ![k](l.png)\n\n    [m](n)\n"
    assert release.absolute(text, FORGE, "v1") == (
        f"`[a](b)` ``[`]()`` [c](https://d) [`e`]({FORGE}/blob/v1/f.md#g)"
        f" [h\ni]({FORGE}/blob/v1/README.md#j) ![k]({FORGE}/raw/v1/l.png)\n\n    [m](n)\n"
    )


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        (["new", "--repository", "http://forge.example/a/b"], "https://HOST/OWNER/NAME"),
        (["new", "--repository", 'https://forge.example/"'], "https://HOST/OWNER/NAME"),
        (["full", "--repository", FORGE, "--rehearse"], "must be new or empty"),
    ],
)
def test_what_cannot_be_released_is_refused_before_anything_is_built(tmp_path, arguments, needed):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    command = [sys.executable, ROOT / "scripts/release.py", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, needed in done.stderr.splitlines()[-1]) == (2, True), done
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_the_changelog_keeps_the_form_of_keep_a_changelog():
    text = (ROOT / "CHANGELOG.md").read_text()
    first, *others = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert first == "[Unreleased]"
    # Only the version of pyproject.toml may wait for its date.
    dates = {re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\S+)", title).groups() for title in others}
    waiting = {version for version, date in dates if date == "unreleased"}
    assert waiting <= {PROJECT["version"]}
    assert all(
        re.fullmatch(r"\d{4}-\d\d-\d\d", date) for version, date in dates if version not in waiting
    )
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= KINDS
    unreleased = re.split(r"^## ", text, flags=re.MULTILINE)[1]
    assert unreleased.count("\n- ") <= 12, "a version is due"


def test_classifiers_lock_files_and_workflows_have_the_same_pythons():
    named = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
    check = yaml.safe_load((WORKFLOWS / "check.yml").read_text())
    assert check["jobs"]["ci"]["strategy"]["matrix"]["python"] == named
    assert f"Python {named[0]} to {named[-1]}" in (ROOT / "scripts/lock.sh").read_text()
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_workflows_call_ci_run_and_publish_without_a_password():
    check = yaml.safe_load((WORKFLOWS / "check.yml").read_text())
    assert {"run": 'sudo env "PATH=$PATH" .ci/run'} in check["jobs"]["ci"]["steps"]
    jobs = yaml.safe_load((WORKFLOWS / "release.yml").read_text())["jobs"]
    assert (jobs["build"]["needs"], jobs["publish"]["needs"]) == ("check", "build")
    assert jobs["check"]["uses"] == "./.github/workflows/check.yml"
    assert (jobs["publish"]["permissions"], jobs["publish"]["environment"]) == (
        {"id-token": "write"},
        "pypi",
    )
    *_, publish = jobs["publish"]["steps"]
    assert publish == {"uses": "pypa/gh-action-pypi-publish@release/v1"}
    for path in WORKFLOWS.glob("*.yml"):
        assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
        assert "secrets." not in path.read_text()


@pytest.mark.parametrize("name", ["bug.yml", "idea.yml"])
def test_issue_templates_ask_for_what_the_doctor_says(name):
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE" / name).read_text())
    assert {"name", "description", "body"} <= form.keys()
    fields = {field["id"]: field for field in form["body"] if field["type"] != "markdown"}
    assert "`bert-doctor --json`" in fields["doctor"]["attributes"]["label"]
    is_required = fields["doctor"].get("validations", {}).get("required", False)
    assert is_required == (name == "bug.yml")


def test_the_wheel_has_what_the_quickstart_starts():
    script = (ROOT / "scripts/quickstart.sh").read_text()
    named = {Path(path) for path in re.findall(r"\$share/(\w+/[\w.]+)", script)}
    assert len(named) == 3
    data = TABLE["tool"]["setuptools"]
    patterns = [pattern for group in data["data-files"].values() for pattern in group]
    files = {path.relative_to(ROOT) for pattern in patterns for path in ROOT.glob(pattern)}
    assert named | {Path("scripts/quickstart.sh")} <= files
