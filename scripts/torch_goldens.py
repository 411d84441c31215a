"""The models in tests/goldens, as transformers saves them, with PyTorch's outputs; for
make_goldens.py.

Each model's folder has the files of `save_pretrained` and golden.safetensors: the inputs,
`hidden_0` (embeddings) to `hidden_N`, the scores, the loss, and its gradients as `gradient.NAME`
with the Hugging Face names. Dropout is off, and everything is float32.
"""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "goldens"
VOCAB_SIZE = 60
DISTILBERT = {  # its names of the sizes
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_position_embeddings",
}


class Rows(NamedTuple):
    """What the three rows of a batch are like; one token more than the longest has is padding."""

    lengths: tuple[tuple[int, int], ...]  # of the question and of the whole row
    spans: tuple[tuple[int, int], ...]  # the first and the last token of the answer
    masked: tuple[tuple[int, int], ...]  # (row, token)


SHORT = Rows(
    lengths=((5, 11), (4, 7), (6, 8)),
    spans=((6, 9), (0, 0), (7, 7)),
    masked=((0, 2), (0, 8), (1, 1), (2, 5), (2, 7)),
)
LABELS = (2, 0, 1)
MASKED_IDS = (17, 5, 40, 59, 23)
MINILM_IDS = [101, 7592, 1010, 1996, 4248, 2829, 4419, 2743, 2058, 1037, 3898, 1012, 102]
MINILM_PLACES = ((0, 0), (0, 383), (5, 100), (12, 7))  # (token, component)


def make_models(only: str, published: Path | None) -> None:
    """Writes the folders with `only` in their names, and minilm.json of the `published` model if it
    is given."""

    def make_one(name: str, *arguments) -> None:
        if only in name:
            make(FOLDER / name, *arguments)

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 24,
    }
    for name, activation, architecture, add_loss in (
        ("span_gelu", "gelu", BertForQuestionAnswering, span_loss),
        ("classifier_gelu", "gelu", BertForSequenceClassification, classifier_loss),
        ("pretraining_gelu", "gelu", BertForPreTraining, pretraining_loss),
        ("pretraining_gelu_new", "gelu_new", BertForPreTraining, pretraining_loss),
    ):
        make_one(name, architecture, add_loss, BertConfig(**sizes, hidden_act=activation))
    small = sizes | {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    others = {
        "roberta": small | {"type_vocab_size": 1},
        "electra": small | {"embedding_size": 8},
        "distilbert": {theirs: small[ours] for theirs, ours in DISTILBERT.items()},
        # windows of 4 places on each side, and rows of up to 11: some tokens are far from others
        "modernbert": small | {"num_hidden_layers": 3, "local_attention": 8, "pad_token_id": 0},
    }
    for model_type, values in others.items():
        for head, make_model, add_loss in (
            ("span", AutoModelForQuestionAnswering.from_config, span_loss),
            ("classifier", AutoModelForSequenceClassification.from_config, classifier_loss),
            ("tagger", AutoModelForTokenClassification.from_config, tagger_loss),
        ):
            config = AutoConfig.for_model(model_type, **values)
            make_one(f"{head}_{model_type}", make_model, add_loss, config)
    config = AutoConfig.for_model("modernbert", **others["modernbert"])
    make_one("masked_modernbert", AutoModelForMaskedLM.from_config, masked_loss, config)
    config = AutoConfig.for_model("modernbert", **others["modernbert"], classifier_pooling="mean")
    mean = "classifier_modernbert_mean"
    make_one(mean, AutoModelForSequenceClassification.from_config, classifier_loss, config)
    silu = {"classifier_activation": "silu", "hidden_activation": "silu"}
    config = AutoConfig.for_model("modernbert", **others["modernbert"], **silu)
    make_one(
        "classifier_modernbert_silu",
        AutoModelForSequenceClassification.from_config,
        classifier_loss,
        config,
    )
    make_one("tagger_gelu", BertForTokenClassification, tagger_loss, BertConfig(**small))
    if published:
        (FOLDER / "minilm.json").write_text(json.dumps(minilm(published), indent=1) + "\n")


def make(
    folder: Path,
    architecture,
    add_loss,
    config,
    rows: Rows = SHORT,
    dtype=torch.float32,
    deviation: float = 0.25,
) -> None:
    """Writes the folder of one model, which computes in this dtype. The standard deviation is that
    of its weights."""
    # the eager one computes its softmax in float32 whatever the model computes in
    config._attn_implementation = "eager" if dtype == torch.float32 else "sdpa"
    config.num_labels = 2 + (add_loss in (classifier_loss, tagger_loss))
    torch.manual_seed(7)
    model = architecture(config).eval()
    # larger than initial values: attention prefers some tokens, and GELU's forms differ
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_gamma = name.lower().replace("_", "").endswith("norm.weight")
            centre = 1.0 if is_gamma else 0.0
            parameter.copy_(centre + deviation * torch.randn(parameter.shape))
        words = model.get_input_embeddings().weight
        words[config.pad_token_id] = deviation * torch.randn(words.shape[1])  # [PAD] as any other
    model.to(dtype)
    inputs, has_types = make_inputs(rows.lengths), getattr(config, "type_vocab_size", 0) > 1
    outputs = model(
        **{name: value for name, value in inputs.items() if has_types or name != "token_type_ids"},
        output_hidden_states=True,
    )
    results = dict(inputs) | {
        f"hidden_{number}": state for number, state in enumerate(outputs.hidden_states)
    }
    results |= add_loss(outputs, inputs, rows)
    model.zero_grad()
    results["loss"].backward()
    results |= {f"gradient.{name}": parameter.grad for name, parameter in model.named_parameters()}
    shutil.rmtree(folder, ignore_errors=True)
    tensors = {}
    for name, value in results.items():
        is_whole = not value.is_floating_point()
        tensors[name] = value.detach().to(value.dtype if is_whole else torch.float32).contiguous()
    model.float().save_pretrained(folder)
    save_file(tensors, folder / "golden.safetensors")


def make_inputs(lengths) -> dict[str, torch.Tensor]:
    """Rows with both token types and padding."""
    length = max(stop for _, stop in lengths) + 1
    input_ids = torch.randint(5, VOCAB_SIZE, (len(lengths), length))
    token_type_ids = torch.zeros_like(input_ids)
    attention_mask = torch.zeros_like(input_ids)
    for row, (start, stop) in enumerate(lengths):
        token_type_ids[row, start:stop] = 1
        attention_mask[row, :stop] = 1
    input_ids *= attention_mask
    return {
        "input_ids": input_ids,
        "token_type_ids": token_type_ids,
        "attention_mask": attention_mask,
    }


def span_loss(outputs, inputs, rows) -> dict[str, torch.Tensor]:
    """The mean over rows of the cross-entropies of start and end, averaged, over real tokens
    only."""
    start_positions, end_positions = torch.tensor(rows.spans).unbind(1)
    scores = torch.stack([outputs.start_logits, outputs.end_logits], -1)
    masked = scores.masked_fill(inputs["attention_mask"][:, :, None] == 0, float("-inf"))
    loss = sum(
        torch.nn.functional.cross_entropy(masked[:, :, column], positions) / 2
        for column, positions in enumerate((start_positions, end_positions))
    )
    return {
        "scores": scores,
        "start_positions": start_positions,
        "end_positions": end_positions,
        "loss": loss,
    }


def classifier_loss(outputs, inputs, rows) -> dict[str, torch.Tensor]:
    """Mean cross-entropy."""
    labels = torch.tensor(LABELS)
    loss = torch.nn.functional.cross_entropy(outputs.logits, labels)
    return {"scores": outputs.logits, "labels": labels, "loss": loss}


def tagger_loss(outputs, inputs, rows) -> dict[str, torch.Tensor]:
    """Mean cross-entropy of every other token."""
    places = torch.arange(inputs["input_ids"].shape[1])
    used = (inputs["attention_mask"] == 1) & (places % 2 == 1)
    tags = torch.where(used, places % 3, -1)
    loss = torch.nn.functional.cross_entropy(outputs.logits.transpose(1, 2), tags, ignore_index=-1)
    return {"scores": outputs.logits, "tags": tags, "loss": loss}


def pretraining_loss(outputs, inputs, rows) -> dict[str, torch.Tensor]:
    """Mean cross-entropy of the masked tokens plus that of the next-sentence labels."""
    results = of_masked_tokens(outputs.prediction_logits, rows)
    nsp, labels = outputs.seq_relationship_logits, torch.tensor([1, 0, 1])
    loss = results["loss"] + torch.nn.functional.cross_entropy(nsp, labels)
    return results | {"nsp": nsp, "labels": labels, "loss": loss}


def masked_loss(outputs, inputs, rows) -> dict[str, torch.Tensor]:
    """Mean cross-entropy of the masked tokens."""
    return of_masked_tokens(outputs.logits, rows)


def of_masked_tokens(logits, rows) -> dict[str, torch.Tensor]:
    length = logits.shape[1]
    # indices into B*T
    masked_tokens = torch.tensor([row * length + token for row, token in rows.masked])
    masked_ids = torch.tensor(MASKED_IDS)
    mlm = logits.reshape(-1, VOCAB_SIZE)[masked_tokens]
    loss = torch.nn.functional.cross_entropy(mlm, masked_ids)
    return {"mlm": mlm, "masked_tokens": masked_tokens, "masked_ids": masked_ids, "loss": loss}


@torch.no_grad()
def minilm(folder: Path) -> dict:
    """A few components of a real model's hidden states for one sentence."""
    model = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    states = model(torch.tensor([MINILM_IDS]), output_hidden_states=True).hidden_states
    return {
        "input_ids": MINILM_IDS,
        "places": MINILM_PLACES,
        "values": [
            [float(state[0, token, part]) for token, part in MINILM_PLACES] for state in states
        ],
        "norms": [float(state.norm()) for state in states],
    }
