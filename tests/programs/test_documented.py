"""The command lines and the Python of the documentation, on small files of the names that they
have there: the first ones of each page run, one after the other, as a reader runs them, but on one
rank; `--plan` says of the other ones that they would."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from harness.documented import RUN, blocks, lines_of
from harness.documented_files import write_world
from harness.parsing import main_of, parsed
from harness.program_runs import in_process

TRAINS = [f"bert-{name}" for name in ("squad", "classifier", "tagger", "embedder", "pretraining")]
# In a store, of Slurm's numbers, or of Google's model.
UNREACHABLE = re.compile(r"s3://|sbatch|BERT_BASE_DIR")
# Of a page the folders that it has from others, by the page that makes them.
BROUGHT = {
    "docs/running.md": {
        "squad_output": "README.md/squad",
        "other_output": "README.md/squad",
        "runs/one": "README.md/squad",
        "published": "README.md/reviews/seed-1/model",
        "tuned": "README.md/reviews/seed-1",
        "other": "README.md/reviews/seed-2",
    },
    "docs/python.md": {
        "squad_output": "README.md/squad",
        "reviews": "README.md/reviews/seed-1",
        "names": "docs/running.md/names",
        "search": "docs/running.md/search",
    },
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    write_world(folder)
    return folder


@pytest.fixture
def runs(world, tmp_path, monkeypatch):
    """The folder that holds one for each page, which is made when its first block runs."""
    monkeypatch.setenv("RINGBERT_CACHE", str(tmp_path / "cache"))

    def enter(page):
        folder = tmp_path / page
        if not folder.exists():
            shutil.copytree(world, folder)
            for name, source in BROUGHT.get(page, {}).items():
                shutil.copytree(tmp_path / source, folder / name)
        monkeypatch.chdir(folder)

    return enter


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a reader's hour in one test: each page goes on with what others made
@pytest.mark.filterwarnings(r"ignore:.*\[UNK\]")  # of the small vocabulary
def test_blocks_run_one_after_the_other(runs):
    for page, beginnings in RUN.items():
        runs(page)
        for beginning in beginnings:
            (block,) = (b for b in blocks() if b.file == page and b.code.startswith(beginning))
            for name in ("shards", "vocab"):  # that each block makes anew
                shutil.rmtree(name, ignore_errors=True)
            if block.language == "python":
                exec(compile(block.code, str(block), "exec"), {"__name__": "__main__"})
                continue
            for line in lines_of(block.code):
                if command := line.command():
                    run(command, line.reads)


def run(command, reads):
    """Runs a program in this process, which must end well, with less of what takes long."""
    program, *argv = command
    if "--num_train_steps" in argv:
        argv += ["--num_train_steps=2", "--num_warmup_steps=0"]
    if "--vocab_size" in argv:
        argv += ["--vocab_size=200"]
    with open(reads or os.devnull) as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", file)
        if program in TRAINS or program == "bert-features":
            folder = Path(parsed(program, *argv).get("output_dir", "."))
            in_process(program.removeprefix("bert-"), folder, *argv)
        else:
            called(program, argv)


def called(program, argv):
    """Calls a program, which may end by SystemExit, as the shell does."""
    status = None
    try:
        main_of(program)(argv)
    except SystemExit as stop:
        status = stop.code
    assert not status, (program, argv)


def test_command_lines_would_run(world, tmp_path, monkeypatch, capsys):
    """`--plan` finds models, files, columns and labels, and counts the steps of trainings."""
    shutil.copytree(world, tmp_path / "all", dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path / "all")
    monkeypatch.setenv("RINGBERT_CACHE", str(tmp_path / "cache"))
    for name in ("pretrained/model", "continued/model", "search/model"):
        shutil.copytree("minilm", name)
    for name in ("shards", "held_out", "novels", "reviews"):
        build = ["build", "--input_file=text/*.txt", f"--output_dir={name}", "--model=minilm"]
        called("bert-corpus", [*build, "--num_workers=1"])
    Path("held_out/a.txt").unlink()  # a glob of the documentation finds shards there
    commands = planned_commands()
    assert len(commands) > 10
    for command in commands:
        called(command[0], [*command[1:], "--plan"])
        runs = json.loads(capsys.readouterr().out)
        assert "train" not in runs[0]["does"] or runs[0]["plan"] or runs[0]["plan_about"], command


def planned_commands():
    """The trainings of blocks that do not run here, but those that leave something to the
    reader."""
    run_here = {(page, start) for page, beginnings in RUN.items() for start in beginnings}
    found = []
    for block in blocks():
        runs = any(block.file == page and block.code.startswith(start) for page, start in run_here)
        lines = lines_of(block.code) if block.language == "bash" and not runs else []
        for line in lines:
            command = line.command()
            is_open = "…" in line.words or UNREACHABLE.search(" ".join(line.words))
            if command and command[0] in TRAINS and not is_open:
                found.append(command)
    return found
