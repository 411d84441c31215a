"""The blocks of code in the documentation: Python compiles and calls what there is, a shell can
read its lines, and a test runs them, or one sees in them why none can. test_docs.py has our
programs read their command lines."""

import ast
import inspect
import re
import subprocess
import sys
from collections import Counter

import pytest
from harness.parsing import ROOT

import ringbert

sys.path.insert(0, str(ROOT / "scripts"))
import make_site

BLOCKS = [
    pytest.param(code, id=f"{file}:{first + 1}")
    for file in make_site.PAGES
    if file.endswith(".md")
    for first, code in make_site.blocks((ROOT / file).read_text())
]
# How a block begins, and the file that runs it.
RUN = {
    "scripts/quickstart.sh": "tests/package/test_quickstart.py",
    "scripts/test.sh": ".ci/run",
    "import pandas\nimport ringbert": "tests/programs/test_in_memory.py",
    "import ringbert\n\nembedder =": "tests/package/test_semantic_search.py",
    "python examples/lenet_fit.py": "tests/spmd/test_horovod_scripts.py",
}
# Why no test runs a block, and what shows it.
REASONS = {
    "it has places for names of the reader's": r"…|\b[A-Z][A-Z0-9_]{2,}\b|\$MODEL",
    "it needs a model or data of others": r"google-bert/|ratings_|glue_data|minilm\b",
    "it needs files or runs": r"squad_|mrpc_|exported|\w\.(txt|jsonl?|[ct]sv|conll|py)\b",
    "it needs hosts or a batch system": r"-H |sbatch|horovodrun",
    "it needs programs of others": r"pip install|git clone|vllm|-router|nft |optimum|urllib",
    "it measures": r"benchmarks\.|bert-bench|test_scale",
    "it is a part of a script": r"hvd\.|@pytest",
}


def in_language(language):
    return [block for block in BLOCKS if make_site.language_of(*block.values) == language]


@pytest.mark.parametrize("code", in_language("python"))
def test_python_compiles_and_calls_what_there_is(code):
    for node in ast.walk(ast.parse(code.replace("…", "..."))):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "ringbert":
            assert hasattr(ringbert, node.attr), node.attr
        if isinstance(node, ast.Call) and re.fullmatch(r"ringbert\.\w+", ast.unparse(node.func)):
            called = getattr(ringbert, node.func.attr)
            names = {keyword.arg: None for keyword in node.keywords}
            inspect.signature(called).bind_partial(*[None] * len(node.args), **names)


def test_a_shell_reads_all_command_lines():
    for block in in_language("bash"):
        # A bracket stands for what can be left out, a tree of folders for what is there.
        done = subprocess.run(
            ["bash", "-n"], input=block.values[0], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, ""), (block.id, done.stderr)


def test_blocks_without_a_language_are_not_code():
    """They are what programs print, formulas and parts of files."""
    for block in in_language("text"):
        lines = block.values[0].splitlines()
        commands = [line for line in lines if make_site.COMMAND.match(line)]
        assert commands == [], block.id


def test_a_block_is_run_by_a_test_or_shows_why_not():
    num_run, counts, faults = 0, Counter(), []
    for block in (*in_language("python"), *in_language("bash")):
        (code,) = block.values
        reasons = [reason for reason, mark in REASONS.items() if re.search(mark, code)]
        if any(code.startswith(begin) for begin in RUN):
            num_run += 1
        elif reasons:
            counts.update(reasons)
        else:
            faults.append(block.id)
    assert faults == [], "let a test run them, or add the reason why none can"
    assert num_run >= len(RUN)
    assert set(counts) == set(REASONS), "a reason that no block has"
    print(f"{len(BLOCKS)} blocks, of which tests run {num_run}; {counts}")


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
