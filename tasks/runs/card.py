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
DATA_FLAGS = ("task_name", "dataset_name", "train_file", "input_file", "data_dir")


def card_of(folder: Path) -> str:
    """The text of the card, with the hub's YAML header; the licence is left to the user."""
    run, result = read_object(folder / "run.json"), read_object(folder / result_file(trains=True))
    (name,) = read_object(folder / "model/config.json")["architectures"]
    pipeline = next(each.pipeline for each in HEADS.values() if name.endswith(each.transformers))
    config, program = run["config"], Path(run["environment"]["command"][0]).stem
    base = config.get("init_checkpoint") or config.get("model")
    trained = f"A {name}, trained with {program} of RingBERT {ringbase.__version__}"
    lines = [
        _header(pipeline, base, config.get("dataset_name")),
        f"# {folder.resolve().name}",
        f"{trained} from {base or 'initial values'}.",
        "## Scores",
        _table(result["scores"]) if result["scores"] else "Not measured.",
        "## Training",
        "\n".join(_training(folder, run, result)),
        "## Use",
        "    from transformers import pipeline",
        f'    model = pipeline("{pipeline}", model="this folder, or its name on the hub")',
    ]
    return "\n\n".join(lines) + "\n"


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
    config, plan, starts = run["config"], run["plan"], history.read(folder)
    data = [f"--{flag} {config[flag]}" for flag in DATA_FLAGS if config.get(flag)]
    yield f"- weights from: {starts[0]['from'] if starts else run['start']}"
    yield f"- data: {', '.join(data)}"
    batch = f"{plan['steps']:,} steps of {plan['global_batch_size']:,} rows"
    rate = f"learning rate {plan['learning_rate']:g}"
    yield f"- {batch}, {rate}, seed {config['seed']}, {config['precision']}"
    yield f"- {result['seconds']:,.0f} s; ranks: {result['world_size']}"
    yield f"- command of a rank: `{shlex.join(run['environment']['command'])}`"


def _is_of_hub(name: str) -> bool:
    return not name.startswith((".", "/", "~")) and not Path(name).exists()
