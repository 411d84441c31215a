"""Makes the documentation's site, with search and a reference from the docstrings.

    python scripts/make_site.py OUTPUT_DIR --repository ADDRESS [--quickstart FOLDER]

The pages are README.md, docs/ and what they link to (`PAGES`). Links between them lead to the pages
of the site, other ones to the repository, as those of a release (scripts/release.py). Indented code
becomes fenced code with its language. A dead link or anchor, or a page outside the navigation, is
an error. With the folder of a quickstart (scripts/quickstart.sh) the picture of its report leads to
the report itself. Needs `pip install -e '.[docs]'`. The settings are in mkdocs.yml.
"""

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from pathlib import Path

from markdown_it import MarkdownIt
from release import CODE_OR_LINK

ROOT = Path(__file__).resolve().parent.parent
# A file of the repository -> the page that it becomes.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "examples/README.md": "examples.md",
} | {
    path.relative_to(ROOT).as_posix(): path.relative_to(ROOT / "docs").as_posix()
    for path in sorted((ROOT / "docs").rglob("*"))
    if path.suffix in (".md", ".png")
}
# A page of the reference -> the module whose names it describes.
REFERENCE = {
    "api/ringbert.md": "ringbert",
    "api/task.md": "ringbert.task",
    "api/horovod.md": "ringbert.horovod",
}


# The quickstart's page: in its folder, on the site, and as README.md shows it.
REPORT, EXAMPLE = "trained/report.html", "quickstart.html"
PICTURE = re.compile(r"!\[[^\]]*\]\([^)]*report\.png\)")


def language_of(code: str) -> str:
    """Python, a shell's commands, or text: what programs print, formulas, parts of files."""
    if PYTHON.search(code):
        return "python"
    return "bash" if COMMAND.match(code) else "text"


PYTHON = re.compile(r"^(import \w|from [\w.]+ import |@\w|(if|for|with) .*:$)", re.MULTILINE)
# How the command lines of the documentation begin.
COMMAND = re.compile(
    r"(\w+=\S+ )*(bert-[a-z]+|python3?|pip|pytest|scripts/[\w.]+|\.ci/run|mpirun|horovodrun|sbatch"
    r"|srun|git|cd|awk|nft|docker|vllm|text-embeddings-router|tensorboard)(\s|$)"
    r"|\w+=\S+(\s+#.*)?$",
    re.MULTILINE,
)


def blocks(text: str) -> list[tuple[int, str]]:
    """The blocks of code of a page, with their first lines."""
    tokens = MarkdownIt("commonmark").parse(text)
    return [
        (token.map[0], textwrap.dedent(token.content).rstrip())
        for token in tokens
        if token.type == "code_block" and token.map
    ]


def for_mkdocs(text: str) -> str:
    """A page whose blocks of code say their language, and whose lists are indented by four blanks,
    with a blank line after an item of several paragraphs, as mkdocs' reader of Markdown wants
    them."""
    lines = text.splitlines()
    depths = [0] * len(lines)
    begins, ends = set(), set()
    for token in MarkdownIt("commonmark").parse(text):
        if token.type == "list_item_open" and token.map:
            begins.add(token.map[0])
            if "" in lines[slice(*token.map)]:
                ends.add(token.map[1])  # of several paragraphs
            for line in range(*token.map):
                depths[line] += 1
    for line, depth in enumerate(depths):
        if depth:
            levels = depth - 1 if line in begins else depth
            lines[line] = f"{'    ' * levels}{lines[line].strip()}"
    for line in begins & ends:
        lines[line] = f"\n{lines[line]}"
    for first, code in reversed(blocks(text)):
        fence = [f"```{language_of(code)}", *code.splitlines(), "```"]
        last = first + code.count("\n") + 1
        lines[first:last] = [f"{'    ' * depths[first]}{line}".rstrip() for line in fence]
    return "\n".join(lines) + "\n"


def linked(text: str, file: str, elsewhere: str) -> str:
    """The text of a file, with links from its page to other pages, or to the repository."""
    here = Path(file).parent
    page_folder = os.path.dirname(PAGES[file])

    def replaced(match: re.Match[str]) -> str:
        target = match["target"]
        if target is None or "://" in target or target.startswith("#"):
            return match[0]
        name, mark, anchor = target.partition("#")
        path = os.path.normpath(here / name)
        if path in PAGES:
            address = os.path.relpath(PAGES[path], page_folder or ".")
        else:
            address = f"{elsewhere}/{path}"
        return f"{match['text']}({address}{mark}{anchor})"

    return CODE_OR_LINK.sub(replaced, text)


def statements_of(module: str) -> list[ast.stmt]:
    path = ROOT / module.replace(".", "/")
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(source.read_text()).body


def names_of(module: str) -> list[str]:
    """What a module offers, without importing it: its `__all__`, else the functions and classes
    that it imports from its own parts."""
    imported: list[str] = []
    for statement in statements_of(module):
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return [name for name in ast.literal_eval(statement.value) if name != "__version__"]
        if isinstance(statement, ast.ImportFrom) and str(statement.module).startswith(f"{module}."):
            parts = statements_of(str(statement.module))
            kinds = (ast.FunctionDef, ast.ClassDef)
            defined = {part.name for part in parts if isinstance(part, kinds)}
            imported += [alias.name for alias in statement.names if alias.name in defined]
    return sorted(imported)


def with_example(text: str) -> str:
    """The text of a page, whose picture of the quickstart's report is a link to the report."""
    return PICTURE.sub(lambda match: f"[{match[0]}]({EXAMPLE})", text)


def write_pages(folder: Path, repository: str, tag: str, quickstart: Path | None = None) -> None:
    """Writes the pages from which mkdocs makes the site."""
    if quickstart:
        shutil.copy(quickstart / REPORT, folder / EXAMPLE)
    for file, page in PAGES.items():
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        if page.endswith(".md"):
            text = linked((ROOT / file).read_text(), file, f"{repository}/blob/{tag}")
            text = with_example(text) if quickstart else text
            (folder / page).write_text(for_mkdocs(text))
        else:
            shutil.copy(ROOT / file, folder / page)
    for page, module in REFERENCE.items():
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        parts = [f"# {module}\n", *(f"::: {module}.{name}\n" for name in names_of(module))]
        (folder / page).write_text("\n".join(parts))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output_dir", type=Path, help="the folder of the site, which is replaced")
    parser.add_argument("--repository", required=True, help="https://HOST/OWNER/NAME")
    parser.add_argument("--quickstart", type=Path, help="the folder of a quickstart that is done")
    options = parser.parse_args(arguments)
    if options.quickstart and not (options.quickstart / REPORT).is_file():
        parser.error(f"--quickstart {options.quickstart}: there is no {REPORT}")
    repository = options.repository.rstrip("/")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    with tempfile.TemporaryDirectory() as folder:
        write_pages(Path(folder), repository, f"v{version}", options.quickstart)
        build = [sys.executable, "-m", "mkdocs", "build", "--strict"]
        places = {"RINGBERT_SITE_PAGES": folder, "RINGBERT_SITE_REPOSITORY": repository}
        done = subprocess.run(
            [*build, "--site-dir", str(options.output_dir.resolve())],
            cwd=ROOT,
            env={**os.environ, **places},
        )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
