"""The card of a trained model, `model/README.md`, from the files of its run."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

import ringbase
from bert.heads import HEADS
from ringbase.files import read_object
from tasks.runs import history
from tasks.runs.environment import result_file

CARD = "model/README.md"


def card_of(folder: Path) -> str:
    """The text of the card, with the hub's YAML header; the licence is left to the user."""
    run = read_object(folder / "run.json")
    result = read_object(folder / result_file(trains=True))
    (name,) = read_object(folder / "model/config.json")["architectures"]
    heads = (head for head in HEADS.values() if name.endswith(head.transformers))
    pipeline = next(heads).pipeline
    config = run["config"]
    base = config.get("init_checkpoint") or config.get("model")
    program, *_ = run["environment"]["command"]
    trained = f"A {name}, trained with {Path(program).stem} of RingBERT {ringbase.__version__}"
    scores = result["scores"]
    paragraphs = [
        _header(pipeline, base, config.get("dataset_name")),
        f"# {folder.resolve().name}",
        f"{trained} from {base or 'initial values'}.",
        "## Scores",
        _table(scores) if scores else "Not measured.",
        "## Training",
        "\n".join(_training(folder, run, result)),
        "## Use",
        "    from transformers import pipeline",
        f'    model = pipeline("{pipeline}", model="this folder, or its name on the hub")',
    ]
    return "\n\n".join(paragraphs) + "\n"


def is_card_edited(folder: Path) -> bool:
    """Whether somebody has changed the card since it was written, or this version writes another
    one."""
    file = folder / CARD
    return file.is_file() and file.read_text(encoding="utf-8", errors="replace") != card_of(folder)


def _header(pipeline: str, base: str | None, data_set: str | None) -> str:
    lines = ["---", "library_name: transformers", f"pipeline_tag: {pipeline}"]
    if base and _is_of_hub(base):
        lines.append(f"base_model: {base}")
    if data_set and _is_of_hub(data_set):
        lines += ["datasets:", f"- {data_set}"]
    lines += ["tags:", "- ringbert", "# license: yours to choose, as model and data allow", "---"]
    return "\n".join(lines)


def _table(scores: Mapping[str, float]) -> str:
    lines = ["| score | value |", "|---|---|"]
    lines += [f"| {name} | {value:.6g} |" for name, value in scores.items()]
    return "\n".join(lines)


def _training(folder: Path, run: Mapping, result: Mapping) -> Iterator[str]:
    config = run["config"]
    plan = run["plan"]
    starts = history.read(folder)
    origin = starts[0]["from"] if starts else run["start"]
    yield f"- weights from: {origin}"
    described = run.get("describes", {}).get("data", {})
    data = [f"--{flag} {value}" for flag, value in described.items()]
    yield f"- data: {', '.join(data)}"
    batch = f"{plan['steps']:,} steps of {plan['global_batch_size']:,} rows"
    rate = f"learning rate {plan['learning_rate']:g}"
    yield f"- {batch}, {rate}, seed {config['seed']}, {config['precision']}"
    yield f"- {history.duration(result['seconds'])}; ranks: {result['world_size']}"
    yield f"- command of a rank: `{shlex.join(run['environment']['command'])}`"


def _is_of_hub(name: str) -> bool:
    return not name.startswith((".", "/", "~")) and not Path(name).exists()
