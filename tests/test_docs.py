"""The documentation keeps to the facts: the links, flags, programs and files that it names exist."""

import ast
import contextlib
import importlib
import io
import re
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tasks.old_flags import IGNORED, INSTEAD

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
BENCHMARKS = ("compare", "prepare", "update", "corpus_google", "step_export", "gpu_compile", "gpu_first.__main__")
RECIPES = sorted((ROOT / "configs").glob("*.toml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SCRIPTS = PROJECT["scripts"]
COMMANDS = {
    "bert-corpus": ("vocab", "build", "verify"), "bert-bench": ("step", "scaling", "start", "allreduce", "corpus"),
    "benchmarks.gpu_first.__main__": ("run", "split"),
}  # fmt: skip
OTHERS_FLAGS = {
    "every", "rival_mpirun",  # benchmarks
    "bind_to", "with_ft",  # mpirun
    "mpi", "nodes", "ntasks_per_node", "gpus_per_task", "time",  # srun, sbatch
    "dist",  # pytest-xdist
    "require_hashes", "no_deps", "no_build_isolation",  # pip
    "upgrade", "strict",  # scripts/lock.sh and audit.py
    "output", "output_filename", "hostfile",  # mpirun, horovodrun
    "network_interfaces", "min_np", "max_np", "host_discovery_script", "reset_limit", "check_build", "autotune",
    "stall_check_warning_time_seconds", "stall_check_shutdown_time_seconds", "fusion_threshold_mb",
    "cycle_time_ms", "hierarchical_allreduce", "timeline_filename", "gloo",  # horovodrun
    "image_size", "batch_sizes",  # examples/resnet_synthetic.py, scripts/scaling.py
}  # fmt: skip
PACKAGES = ("ringbert", "bert", "distributed", "tasks")
MOST_CHARACTERS = 13_500


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_code(text: str) -> str:
    """Markdown without its code, in which brackets mean other things."""
    return re.sub(r"``.*?``|`[^`]*`", "", re.sub(r"^    .*$", "", text, flags=re.MULTILINE), flags=re.DOTALL)


@cache
def anchors(page: Path) -> set[str]:
    """The names by which GitHub links to the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)) for title in titles)
    return {text.strip().lower().replace(" ", "-") for text in words}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", without_code(page.read_text())):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


def test_readme_fits_on_a_front_page():
    assert len((ROOT / "README.md").read_text()) <= MOST_CHARACTERS


@pytest.mark.parametrize(
    ("page", "line"),
    [("README.md", "Version {} "), ("CHANGELOG.md", "## [{}] "), ("CITATION.cff", "version: {}\n")],
)
def test_the_version_is_the_same_everywhere(page, line):
    assert line.format(PROJECT["version"]) in (ROOT / page).read_text()


@pytest.mark.parametrize("page", [*PAGES, *RECIPES], ids=name_of)
def test_files_and_modules_that_are_named_exist(page):
    text = page.read_text()
    folders = "ringbert|bert|distributed|tasks|benchmarks|configs|docs|examples|scripts|tests"
    for path in re.findall(rf"(?<![\w/.-])(?:{folders})/[\w/.-]*\w", text):
        found = [base / path for base in (ROOT, page.parent) if (base / path).exists()]
        assert found or "." not in path, path
    for module in re.findall(r"python -m ((?:tasks|benchmarks|distributed)[\w.]*)", text):
        assert importlib.util.find_spec(module), module
    for program in re.findall(r"`(bert-(?!base-|tensorflow)[\w-]+)", text):
        assert program in SCRIPTS, program


@pytest.mark.parametrize("page", ["README.md", "docs/horovod.md"])
def test_the_common_errors_are_messages_of_ours(page):
    sources = "".join(path.read_text() for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
    sources = re.sub(r"\{[^{}]*\}", "…", re.sub(r'"\s*\n\s*f?"', "", sources))
    section = (ROOT / page).read_text().partition("## Common errors")[2].partition("\n## ")[0]
    messages = [
        cell for row in re.findall(r"^\|(.*?)\|", section, re.MULTILINE) for cell in re.findall("`(.+?)`", row)
    ]
    assert len(messages) > 5
    for message in messages:
        for words in re.split("…|[0-9]+", message):
            assert words.strip() in sources, words


def test_the_page_about_horovod_names_all_that_is_there_and_all_that_is_not():
    page = (ROOT / "docs/horovod.md").read_text()
    named = set(re.findall(r"`(\w+)[`(]", page))
    assert constants("ringbert/horovod/__init__.py", "__all__") - named == set()
    assert constants("ringbert/horovod/callbacks.py", "__all__") - named == set()
    absent = re.search(r"^\| no counterpart .*?\n\n", page, re.MULTILINE | re.DOTALL)[0]
    assert constants("ringbert/horovod/absent.py", "REASONS") - set(re.findall(r"`(\w+)`", absent)) == set()


def constants(path: str, name: str) -> set[str]:
    """The strings of a list in a source file, or the keys of a dict."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            parts = node.value.keys if isinstance(node.value, ast.Dict) else node.value.elts
            return {part.value for part in parts}
    raise AssertionError(f"{path} has no {name}")


# Flags: every program is asked for its help, in this process.


@pytest.fixture(scope="module")
def flags() -> set[str]:
    """The flags in the help of all programs, and the old ones that they accept; `-` is written as `_`."""
    entries = {**SCRIPTS, **{f"benchmarks.{name}": f"benchmarks.{name}:main" for name in BENCHMARKS}}
    text = ""
    for program, entry in entries.items():
        module, _, function = entry.partition(":")
        main = getattr(importlib.import_module(module), function)
        for command in COMMANDS.get(program, (None,)):
            text += help_of(main, [command, "--help"] if command else ["--help"])
    names = {name.replace("-", "_") for name in re.findall(r"--(?:\[no\])?(\w[\w-]*)", text)}
    return names | {f"no{name}" for name in names} | set(IGNORED)


def help_of(main: Callable, argv: list[str]) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code in (0, None)
    return output.getvalue()


@pytest.mark.parametrize("page", [*PAGES, *RECIPES], ids=name_of)
def test_flags_that_are_named_exist(page, flags):
    named = {name.replace("-", "_") for name in re.findall(r"(?<![\w-])--(\w[\w-]*)", page.read_text())}
    assert "num_train_epochs" in flags
    assert "num_train_epoch" not in flags
    refused = set(INSTEAD) if page.name == "flags.md" else set()
    assert sorted(named - flags - OTHERS_FLAGS - refused) == []
