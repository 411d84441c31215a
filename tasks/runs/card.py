"""The card of a trained model, `model/README.md`, from the files of its run."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

import ringbase
from bert.heads import HEADS, Head
from ringbase.files import read_object
from ringbase.secrets import masked
from tasks.runs import history
from tasks.runs.commands import command_of
from tasks.runs.details import SCORED_ON
from tasks.runs.environment import result_file
from tasks.runs.rows.memory import in_words

CARD = "model/README.md"
PLACE = "this folder, or its name on the hub"
# that transformers 4 and 5 both have
PIPELINES = ("feature-extraction", "fill-mask", "text-classification", "token-classification")


def card_of(folder: Path) -> str:
    """The text of the card, with the hub's YAML header; the licence is left to the user."""
    run = masked(read_object(folder / "run.json"))  # earlier versions did not
    result = read_object(folder / result_file(trains=True))
    (name,) = read_object(folder / "model/config.json")["architectures"]
    head = _head_of(run, name)
    config = run["config"]
    base = config.get("init_checkpoint") or config.get("model")
    commits = run.get("hub_commits", {})  # of what is the hub's
    program, *_ = run["environment"]["command"]
    trained = f"A {name}, trained with {command_of(program)} of RingBERT {ringbase.__version__}"
    scores = result["scores"]
    paragraphs = [
        _header(
            head,
            base if commits.get("model") else None,
            config.get("dataset_name") if commits.get("data_set") else None,
        ),
        f"# {folder.resolve().name}",
        f"{trained} from {base or 'initial values'}.",
        "## Scores",
        _table(scores) if scores else "Not measured.",
        *_scored_on(run, result),
        "## Training",
        "\n".join(_training(folder, run, result)),
        "## Use",
        "\n".join(f"    {line}" for line in code_of(head)),
    ]
    return "\n\n".join(paragraphs) + "\n"


def _head_of(run: Mapping, name: str) -> Head:
    """The head of a run's model, whose class in transformers has this name."""
    if run.get("head") in HEADS:
        return HEADS[run["head"]]
    # of an earlier version
    return next(head for head in HEADS.values() if name.endswith(head.transformers))


def code_of(head: Head) -> list[str]:
    """Lines of Python that load such a model."""
    if head.library == "sentence-transformers":
        return [
            "from sentence_transformers import SentenceTransformer",
            f'model = SentenceTransformer("{PLACE}")',
        ]
    if head.pipeline in PIPELINES:
        return [
            "from transformers import pipeline",
            f'model = pipeline("{head.pipeline}", model="{PLACE}")',
        ]
    model = f"AutoModel{head.transformers}"
    return [
        f"from transformers import {model}, AutoTokenizer",
        f'model = {model}.from_pretrained("{PLACE}")',
        f'tokenizer = AutoTokenizer.from_pretrained("{PLACE}")',
    ]


def is_card_edited(folder: Path) -> bool:
    """Whether somebody has changed the card since it was written, or this version writes another
    one."""
    file = folder / CARD
    return file.is_file() and file.read_text(encoding="utf-8", errors="replace") != card_of(folder)


def _header(head: Head, base: str | None, data_set: str | None) -> str:
    """`base` and `data_set` are names on the hub."""
    lines = ["---", f"library_name: {head.library}", f"pipeline_tag: {head.pipeline}"]
    if base:
        lines.append(f"base_model: {base}")
    if data_set:
        lines += ["datasets:", f"- {data_set}"]
    lines += ["tags:", "- ringbert", "# license: yours to choose, as model and data allow", "---"]
    return "\n".join(lines)


def _table(scores: Mapping[str, float]) -> str:
    lines = ["| score | value |", "|---|---|"]
    lines += [f"| {name} | {value:.6g} |" for name, value in scores.items()]
    return "\n".join(lines)


def _scored_on(run: Mapping, result: Mapping) -> Iterator[str]:
    if names := result.get(SCORED_ON):
        yield in_words(f"Scored on {', '.join(names)}.", run.get("in_memory", {}))


def _training(folder: Path, run: Mapping, result: Mapping) -> Iterator[str]:
    config = run["config"]
    plan = run["plan"]
    starts = history.read(folder)
    origin = starts[0]["from"] if starts else run["start"]
    yield f"- weights from: {origin}"
    in_memory = run.get("in_memory", {})
    described = run.get("describes", {}).get("data", {})
    data = [f"--{flag} {value}" for flag, value in described.items()]
    if data:
        yield in_words(f"- data: {', '.join(data)}", in_memory)
    batch = f"{plan['steps']:,} steps of {plan['global_batch_size']:,} rows"
    rate = f"learning rate {plan['learning_rate']:g}"
    yield f"- {batch}, {rate}, seed {config['seed']}, {config['precision']}"
    yield f"- {history.duration(result['seconds'])}; ranks: {result['world_size']}"
    environment = run["environment"]
    launched = environment.get("launched_by")
    if launched:
        yield in_words(f"- run by: `{launched}`", in_memory)
    yield in_words(f"- command of a rank: `{shlex.join(environment['command'])}`", in_memory)
