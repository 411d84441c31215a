"""Models with PyTorch's scores and gradients, as scripts/torch_goldens.py writes them, and how far
ours are from them."""

from dataclasses import replace

import keras
import numpy as np
from harness.batches import Row
from safetensors.numpy import load_file

from bert import configuration, weights
from bert.heads import HEADS
from bert.model import Bert

NO_DROPOUT: dict = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
# Of scores and loss, and of gradients. Two float32 programs that sum in different orders differ by
# some units of 6e-8 per operation, over the dozens of dependent operations of two layers by about
# 1e-5 of the largest value. bfloat16 has 8 bits: 0.4 % for each of some dozen rounded values;
# gradients are sums that nearly cancel.
TOLERANCES = {"float32": (2e-5, 2e-5), "mixed_bfloat16": (0.02, 0.1)}


def loaded(folder, precision="float32", head=None):
    """The model as we load it, PyTorch's numbers, and the rows of which they are. The folder's name
    begins with that of the head."""
    there = load_file(folder / "golden.safetensors")
    written = configuration.read_config(folder)
    assert written
    config = replace(written, **NO_DROPOUT)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    model = Bert(config, head or HEADS[folder.name.split("_")[0]])
    keras.config.set_dtype_policy(before)
    weights.load(model, folder)
    rows, length = [], there["input_ids"].shape[1]
    none = np.zeros(len(there["input_ids"]), int)
    for number, mask in enumerate(there["attention_mask"].astype(bool)):
        masked = zip(there.get("masked_tokens", []), there.get("masked_ids", []), strict=True)
        start, end = (int(there.get(f"{end}_positions", none)[number]) for end in ("start", "end"))
        rows.append(
            Row(
                there["input_ids"][number, mask].tolist(),
                int((there["token_type_ids"][number, mask] == 0).sum()),
                (start, end),
                int(there.get("labels", none)[number]),
                {
                    int(token % length): int(id_)
                    for token, id_ in masked
                    if token // length == number
                },
                there["tags"][number, mask].tolist() if "tags" in there else (),
            )
        )
    return model, there, rows


def scores_there(there, rows):
    """PyTorch's scores of each row, as in `Computed`."""
    if "mlm" not in there:
        per_token = there["scores"].ndim > 2
        lengths = [len(row.input_ids) if per_token else None for row in rows]
        return [scores[:length] for scores, length in zip(there["scores"], lengths, strict=True)]
    ends = np.cumsum([len(row.masked) for row in rows])
    mlm = np.split(there["mlm"], ends[:-1])
    nsp = there.get("nsp", [[]] * len(rows))
    return [np.concatenate([part.ravel(), of_row]) for part, of_row in zip(mlm, nsp, strict=True)]


def gradients_off(found, there, model):
    """How far each gradient is from PyTorch's, as a share of its norm."""
    mark = "gradient."
    theirs = {key.removeprefix(mark): there[key] for key in there if key.startswith(mark)}
    largest, off = max(map(np.linalg.norm, theirs.values())), {}
    for key, ours in found.items():
        assert ours.dtype == np.float32
        right = theirs.pop(weights.hugging_face_name(key, model.head, model.config.architecture))
        # Softmax ignores a common addend: gradients of key biases, and of a span's last beta and
        # bias, are 0.
        scale = max(np.linalg.norm(right), largest / 100)
        off[key] = np.linalg.norm((ours.T if key.endswith("/kernel") else ours) - right) / scale
    assert not theirs
    return off
