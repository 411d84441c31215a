"""The blocks of code in the documentation: a test runs them, or our programs read their command
lines, or one sees in them why nothing can. Python compiles and calls what there is, a shell can
read its lines. tests/programs/test_documented.py runs blocks, and plans the trainings of others."""

import ast
import inspect
import re
import shlex
import subprocess
from collections import Counter

import pytest
from harness import documented
from harness.documented import completed, lines_of, make_site
from harness.parsing import ROOT, SETTINGS, flags_of, parsed

import ringbert
from distributed import launch
from ringbert import jobs
from ringbert.searching.command import of_words
from ringbert.searching.space import Grid

BLOCKS = [pytest.param(block, id=str(block)) for block in documented.blocks()]
# The file that runs blocks, by their pages and how they begin.
RUN = {
    ("README.md", "scripts/quickstart.sh"): "tests/package/test_quickstart.py",
    ("docs/measured.md", "scripts/quickstart.sh"): "tests/package/test_quickstart.py",
    ("docs/contributing.md", "scripts/test.sh                          # the"): ".ci/run",
    ("docs/python.md", "import pandas\nimport ringbert"): "tests/programs/test_in_memory.py",
    ("examples/README.md", "python examples/lenet_fit.py"): "tests/spmd/test_horovod_scripts.py",
    ("docs/semantic_search.md", "import ringbert\n"): "tests/package/test_semantic_search.py",
    ("docs/contributing.md", "@pytest.mark.ranks"): "tests/spmd/test_documented_code.py",
    ("docs/horovod.md", "import keras"): "tests/spmd/test_documented_code.py",
    ("docs/horovod.md", "if hvd.rank() == 0:"): "tests/spmd/test_documented_code.py",
} | {
    (page, beginning): "tests/programs/test_documented.py"
    for page, beginnings in documented.RUN.items()
    for beginning in beginnings
}
LOGS = [file for file in make_site.PAGES if file.startswith("docs/log/")]
# Why nothing of ours runs or reads a block, and what shows it.
REASONS = {
    "it is what was typed on its day": "^docs/log/",
    "it has places for names of the reader's": r"…|\b[A-Z][A-Z0-9_]{2,}\b|\$MODEL",
    "it needs a model or data of others": r"google-bert/|ratings_|glue_data|minilm\b",
    "it needs files or runs": r"squad_|mrpc_|exported|\w\.(txt|jsonl?|[ct]sv|conll|py)\b",
    "it needs hosts or a batch system": r"-H |sbatch|horovodrun",
    "it needs programs of others": r"pip install|pre-commit|git clone|vllm|-router|nft |urllib",
    "it measures": r"benchmarks\.|bert-bench|test_scale",
    "it is a part of a script": r"hvd\.|@pytest",
}


# What docs/contributing.md says of them.


def in_language(language):
    return [block for block in BLOCKS if block.values[0].language == language]


@pytest.mark.parametrize("block", in_language("python"))
def test_python_compiles_and_calls_what_there_is(block):
    calls_of_ours(block)


def calls_of_ours(block):
    """How many calls of `ringbert` a block of Python has, each of which must be possible. Jobs
    whose arguments are written out are made, which checks all of their flags."""
    num_calls = 0
    for node in ast.walk(ast.parse(block.code.replace("…", "..."))):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "ringbert":
            assert hasattr(ringbert, node.attr), node.attr
        if isinstance(node, ast.Call) and re.fullmatch(r"ringbert\.\w+", ast.unparse(node.func)):
            num_calls += 1
            called = getattr(ringbert, node.func.attr)
            names = {keyword.arg: None for keyword in node.keywords}
            inspect.signature(called).bind_partial(*[None] * len(node.args), **names)
            values = {keyword.arg: keyword.value for keyword in node.keywords}
            is_job = node.func.attr in vars(jobs)
            if is_job and all(isinstance(value, ast.Constant) for value in values.values()):
                called(**{name: value.value for name, value in values.items()})
    return num_calls


def test_a_shell_reads_all_command_lines():
    for block in in_language("bash"):
        # A bracket stands for what can be left out, a tree of folders for what is there.
        done = subprocess.run(
            ["bash", "-n"],
            input=block.values[0].code,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, ""), (block.id, done.stderr)


@pytest.mark.parametrize("block", in_language("bash"))
def test_our_programs_read_their_command_lines(block, monkeypatch):
    monkeypatch.chdir(ROOT)
    for line in lines_of(block.code) if block.file not in LOGS else ():
        read(line)


def read(line):
    """Has bert-launch and our programs read what they get of a command line. Returns whether there
    is such a part."""
    command, started = line.command(), line.launcher()
    try:
        if started is not None and "--print-slurm" not in started:
            launch.parse_args(started)
        if command is not None:
            read_by_program(*command)
    except SystemExit as stop:
        raise AssertionError(shlex.join(line.words)) from stop
    return command is not None or started is not None


def read_by_program(program, *argv):
    if program.startswith("benchmarks."):
        own = argv[: argv.index("--")] if "--" in argv else argv
        names = {word[2:].partition("=")[0] for word in own if word.startswith("--")}
        # those of its help
        assert not names or names <= flags_of(program).keys(), program
        return
    if program == "bert-search":
        at = argv.index("--")
        trial, space = of_words(completed(argv[at + 1 :]))
        trial.check(Grid(space, 0).values(0))
        argv = argv[:at]
    if program == "run_squad.py":
        program = "bert-squad"
    name = program
    if argv and f"{program} {argv[0]}" in SETTINGS:
        name, argv = f"{program} {argv[0]}", argv[1:]
    parsed(name, *argv)


def test_blocks_without_a_language_are_not_code():
    """They are what programs print, formulas and parts of files."""
    for block in in_language("text"):
        lines = block.values[0].code.splitlines()
        commands = [line for line in lines if make_site.COMMAND.match(line)]
        assert commands == [], block.id


def how_far(block):
    """What is known of a block: that it was "run", "read" by our programs, or "shown", why not."""
    begins = [(page, text) for page, text in RUN if page == block.file]
    if any(block.code.startswith(text) for _, text in begins):
        return "run"
    if block.language == "python":
        return "read" if calls_of_ours(block) else "shown"
    if block.file in LOGS:
        return "shown"
    is_read = [read(line) for line in lines_of(block.code)]
    return "read" if any(is_read) else "shown"


def test_a_block_is_run_or_read_or_shows_why_not(monkeypatch):
    monkeypatch.chdir(ROOT)
    counts, of_reasons, faults = Counter(), Counter(), []
    for block in (*in_language("python"), *in_language("bash")):
        (one,) = block.values
        known = how_far(one)
        counts[known] += 1
        shown = f"{one.file}\n{one.code}"
        reasons = [reason for reason, mark in REASONS.items() if re.search(mark, shown)]
        if known == "shown":
            of_reasons.update(reasons)
            if not reasons:
                faults.append(block.id)
    assert faults == [], "let a test run them, or add the reason why none can"
    assert counts["run"] == len(RUN), "a page has no block that begins so"
    assert set(of_reasons) == set(REASONS), "a reason that no block has"
    assert counts["run"] + counts["read"] > 2 * counts["shown"]
    print(counts, of_reasons)


def test_the_tests_that_run_blocks_exist():
    assert [path for path in RUN.values() if not (ROOT / path).is_file()] == []


def test_the_navigation_of_the_site_has_every_page():
    named = re.findall(r"^ +- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [page for page in make_site.PAGES.values() if page.endswith(".md")]
    assert sorted(named) == sorted([*pages, *make_site.REFERENCE])


def test_pages_of_the_site_hold_all_code_and_links_lead_to_pages_or_the_repository():
    for file in (file for file in make_site.PAGES if file.endswith(".md")):
        text = (ROOT / file).read_text()
        blocks = [code for _, code in make_site.blocks(text)]
        assert make_site.blocks(make_site.for_mkdocs(text)) == []
        fences = re.findall(r"^ *```\w+\n(.*?)^ *```$", make_site.for_mkdocs(text), re.M | re.S)
        assert [inspect.cleandoc(code) for code in fences] == [
            inspect.cleandoc(code) for code in blocks
        ]
    linked = make_site.linked(
        "[a](../README.md#b) [c](../LICENSE) `[d](e)` ![f](../report.png) [g](https://h)",
        "docs/log/2026-11.md",
        "https://forge.example/a/b/blob/v1",
    )
    assert linked == (
        "[a](https://forge.example/a/b/blob/v1/docs/README.md#b)"
        " [c](https://forge.example/a/b/blob/v1/docs/LICENSE) `[d](e)` ![f](../report.png)"
        " [g](https://h)"
    )
    assert make_site.linked("[a](../README.md#b)", "docs/flags.md", "") == "[a](index.md#b)"


def test_the_report_of_a_quickstart_is_an_example_on_the_site(tmp_path):
    report = tmp_path / "quickstart" / make_site.REPORT
    report.parent.mkdir(parents=True)
    report.write_text("<html>")
    folder = tmp_path / "pages"
    folder.mkdir()
    make_site.write_pages(folder, "https://forge.example/a/b", "v1", tmp_path / "quickstart")
    assert (folder / "quickstart.html").read_text() == "<html>"
    (link,) = re.findall(r"\[!\[.*?\]\((.*?)\)\]\((.*?)\)", (folder / "index.md").read_text())
    assert link == ("report.png", "quickstart.html")
    with pytest.raises(SystemExit):
        make_site.main(["site", "--repository=https://a/b", f"--quickstart={folder}"])
