"""The documentation keeps to the facts: the links, commands, flags, programs, files and messages in
it exist."""

import importlib
import re
import shlex
from functools import cache

import pytest
import yaml
from harness.parsing import PACKAGES, PROJECT, ROOT, SETTINGS, help_of, named, parsed

from distributed import horovodrun, launch
from tasks.runs.old_flags import IGNORED, INSTEAD

PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CODE_OF_CONDUCT.md",
    ROOT / "SECURITY.md",
    ROOT / "examples/README.md",
    *sorted(ROOT.glob("docs/**/*.md")),
]
RECIPES = sorted((ROOT / "configs").glob("*.toml"))
# Of benchmarks/, scripts/ and examples/; mpirun, Slurm, docker, TensorBoard; pip, pytest, git;
# horovodrun.
OTHERS_FLAGS = """every minutes rehearse image_size batch_sizes no_index find_links jax_python
    torch_python google_dir size sums
    table bind_to mpi nodes cpus_per_task ntasks_per_node gpus_per_task time array shm_size logdir
    mca read_only tmpfs changed seconds repository list quickstart
    require_hashes no_deps no_build_isolation upgrade strict dist tags target only
    output hostfile batch cpus signal force_reinstall no_binary
    stall_check_warning_time_seconds stall_check_shutdown_time_seconds
    binding_args no_stall_check version always timestamp_output
    documents reranker
    dtype model_base_path model_id model_name port rest_api_port runner task"""


def each(pages):
    return pytest.mark.parametrize("page", pages, ids=lambda page: str(page.relative_to(ROOT)))


@cache
def anchors(page):
    """The names by which GitHub links to the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    words = (
        re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)) for title in titles
    )
    return {text.strip().lower().replace(" ", "-") for text in words}


@each(PAGES)
def test_links_lead_somewhere(page):
    text = re.sub("(?m)^    .*$", "", page.read_text())
    text = re.sub("(?s)``.*?``|`[^`]*`", "", text)  # in code, brackets mean other things
    for target in re.findall(r"\]\((?!https://)([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


def test_readme_fits_on_a_front_page_and_the_version_is_the_same_everywhere():
    text = (ROOT / "README.md").read_text()
    # In an sdist the links have the repository's address, which scripts/release.py puts there.
    assert len(re.sub(r"\(https://\S+?/(?:blob|raw)/v[\d.]+/", "(", text)) <= 9_000
    version = PROJECT["version"]
    for page, line in (
        ("README.md", f"Version {version} "),
        ("CHANGELOG.md", f"## [{version}] "),
        ("CITATION.cff", f"version: {version}\n"),
    ):
        assert line in (ROOT / page).read_text()


@each([*PAGES, *RECIPES])
def test_files_modules_and_programs_that_are_named_exist(page):
    text = page.read_text()
    folders = "|".join([*PACKAGES, "benchmarks", "configs", "docs", "examples", "scripts", "tests"])
    for path in re.findall(rf"(?<![\w/.-])(?:{folders})/[\w/.-]*\w", text):
        found = [base / path for base in (ROOT, page.parent) if (base / path).exists()]
        assert found or "." not in path, path
    for module in re.findall(r"python -m ((?:tasks|benchmarks|distributed)[\w.]*)", text):
        assert importlib.util.find_spec(module), module
    for program in re.findall(r"`(bert-(?!base-|tensorflow)[\w-]+)", text):
        assert program in PROJECT["scripts"], program


# -- flags -----------------------------------------------------------------------------------------


def commands_in(page):
    """The complete command lines of our programs in the comments of a recipe."""
    mark = "#   "
    text = page.read_text().replace(f"\\\n{mark}", " ")
    found = []
    for line in (line.removeprefix(mark) for line in text.splitlines() if line.startswith(mark)):
        part = re.search(r"(?:^|[ &])(bert-(?!launch|report)[a-z]+(?: .*|$))", line)
        if part and "…" not in line:
            found.append(shlex.split(re.split(r"    #| [<>|&#] |;", part[1])[0]))
    return found


@each(RECIPES)
def test_commands_of_recipes_are_read_by_todays_programs(page, monkeypatch):
    """Those of pages: test_code_blocks.py."""
    monkeypatch.chdir(ROOT)
    assert commands_in(page) or page.name == "quickstart.toml"
    for program, *argv in commands_in(page):
        command = (
            f"{program} {argv.pop(0)}" if argv and f"{program} {argv[0]}" in SETTINGS else program
        )
        try:
            parsed(command, *argv)
        except SystemExit as stop:
            raise AssertionError(f"{program} {shlex.join(argv)}") from stop


@pytest.mark.parametrize("name", ["mpijob", "trainjob"])
def test_commands_in_kubernetes_files_are_read_by_todays_programs(name):
    lists = re.findall(
        r"args:\n((?: +- .*\n)+)", (ROOT / f"examples/places/{name}.yaml").read_text()
    )
    (words,) = [[yaml.safe_load(line)[0] for line in text.splitlines()] for text in lists]
    at = words.index("--")
    options = launch.parse_args(words)
    assert (options.num_proc, options.command) == (2, words[at + 1 :])
    parsed(*options.command)


@cache
def flags():
    """The flags in the help of all programs, and the old ones that they accept; `-` is written as
    `_`."""
    text = "".join(help_of(command) for command in {*SETTINGS, *PROJECT["scripts"]})
    for name in ("allreduce", "compare", "horovod_sums", "scaling"):
        text += help_of(name, named(f"benchmarks.{name}:main"))
    names = {name.replace("-", "_") for name in re.findall(r"--(?:\[no\])?(\w[\w-]*)", text)}
    answers = (*horovodrun.WITHOUT_EFFECT, *horovodrun.REFUSED)
    of_horovodrun = re.findall(r"--(\S+)", " ".join(answer.flags for answer in answers))
    names |= {name.replace("-", "_") for name in of_horovodrun}
    return names | {f"no{name}" for name in names} | set(IGNORED) | set(INSTEAD)


# which names flags that are gone
@each([page for page in (*PAGES, *RECIPES) if page.name != "CHANGELOG.md"])
def test_flags_that_are_named_exist(page):
    names = {
        name.replace("-", "_") for name in re.findall(r"(?<![\w-])--(\w[\w-]*)", page.read_text())
    }
    assert "num_train_epochs" in flags()
    assert sorted(names - flags() - set(OTHERS_FLAGS.split())) == []


# -- messages and names ----------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["docs/running.md", "docs/horovod.md"])
def test_the_common_errors_are_messages_of_ours(page):
    sources = "".join(path.read_text() for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
    sources = re.sub(r"\{[^{}]*\}", "…", re.sub(r'"\s*\n\s*f?"', "", sources))
    section = (ROOT / page).read_text().partition("# Common errors")[2].partition("\n## ")[0]
    rows = re.findall(r"^\|(.*?)\|", section, re.MULTILINE)
    messages = [message for row in rows for message in re.findall("`(.+?)`", row)]
    assert len(messages) > 5
    parts = [words for message in messages for words in re.split("…|[0-9]+", message)]
    assert [words for words in parts if words.strip() not in sources] == []
