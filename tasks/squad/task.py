"""The task of bert-squad: the start and the end of the answer in a window of tokens. Contexts are
cut into windows by Google's rules (google-research/bert `run_squad.py`).

Tensors have their shape as a suffix: B rows of attention, T places of a row, R rows of the hidden
state, one for each token, 2 for start and end.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from bert.batch import Batch, Grouping, batch_of, num_examples
from bert.heads import SPAN, Head
from bert.layers import in_places, split_groups
from distributed.run import Run
from ringbase.ragged import padded
from tasks.runs.details import Details, Record
from tasks.runs.resolve.spec import Start
from tasks.runs.rows.sets import DataSet
from tasks.runs.task import Scores, Task, Tensors
from tasks.squad.answers import Prediction, SpanDecoder, nbest_file
from tasks.squad.details import details, marked_context
from tasks.squad.metrics import AllScores, Unit, separates_words, squad_v1, squad_v2
from tasks.squad.reader import ANSWERS, SpanReader
from tasks.squad.reading import Examples
from tasks.squad.settings import AnswerSettings

LARGE = 1e30
Data = DataSet[Examples]
Results = Sequence[Prediction]

SHOWN = "question", "context", "prediction", "answers", "f1", "probability"


@dataclass(frozen=True)
class SpanTask(SpanReader, Task[Examples, Results]):
    """Windows with an answer's first and last token."""

    answers: AnswerSettings = field(default_factory=AnswerSettings)
    smoothing: float = 0.0  # the flag --label_smoothing_factor
    scoring: str = "auto"  # what F1 counts: the flag `--metric`
    settings: Mapping = field(default_factory=dict)
    head = SPAN
    metric = "f1"

    def batch(self, fields: dict, grouping: Grouping | None = None) -> Batch:
        fields = {**fields, "sentence_a_tokens": fields["question_tokens"]}
        fields, batch = batch_of(fields, grouping)
        for name in ANSWERS:
            batch[name] = padded(fields[name], len(batch["first_tokens"]))
        return batch

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(num_examples(batch))}

    def loss(self, scores_R2: tf.Tensor, batch: Batch) -> Tensors:
        """The sum over rows of (cross-entropy of the start + cross-entropy of the end) / 2, without
        padding."""
        scores = in_places(scores_R2, batch)
        masks = split_groups(batch["attention_mask"], batch)
        targets_B2 = tf.stack([batch[name] for name in ANSWERS], 1)
        is_example_B = batch["is_example"]
        sums = []
        for scores_BT2, mask_BT in zip(scores, masks, strict=True):
            padding_B1T = 1 - tf.cast(mask_BT, scores_BT2.dtype)[:, None]
            scores_B2T = tf.transpose(scores_BT2, [0, 2, 1])
            log_probs_B2T = tf.nn.log_softmax(scores_B2T - LARGE * padding_B1T)
            rows, length = tf.unstack(tf.shape(mask_BT))
            here_B2, targets_B2 = targets_B2[:rows], targets_B2[rows:]
            is_here_B, is_example_B = is_example_B[:rows], is_example_B[rows:]
            # GPUs compute shapes for the gradients of tf.gather with batch_dims and of sums without
            # keepdims, and the host waits for them.
            here_B2T = tf.one_hot(here_B2, length, dtype=scores_BT2.dtype)
            weights_B2T = here_B2T
            if share := self.smoothing:  # over the tokens of the row
                tokens_B1T = 1 - padding_B1T
                num_B11 = tf.reduce_sum(tokens_B1T, -1, keepdims=True)
                even_B1T = tf.math.divide_no_nan(tokens_B1T, num_B11)
                weights_B2T = (1 - share) * here_B2T + share * even_B1T
            log_probs_B21 = tf.reduce_sum(log_probs_B2T * weights_B2T, -1, keepdims=True)
            sums.append(tf.reduce_sum(log_probs_B21 * is_here_B[:, None, None]))
        return {"loss": -tf.add_n(sums) / 2}

    def decoder(self, data: Data) -> SpanDecoder:
        version_2 = self.windows.version_2_with_negative
        return SpanDecoder(self.answers, version_2, data.tables)

    def outputs(self, scores_BT2: tf.Tensor) -> Tensors:
        start_BT, end_BT = tf.unstack(scores_BT2, axis=2)
        return {"start_logits": start_BT, "end_logits": end_BT}

    def scores(self, kind: str, data: Data, results: Results) -> Scores:
        """Those of the official scripts, by their names; `kind` begins none of them."""
        return self._scored(data.examples(), results)[0]

    def _scored(self, examples: Examples, results: Results) -> AllScores:
        """The scores of the script, and those of each question; none without answers."""
        if not has_answers(examples):
            return {}, {}
        unit = unit_of(self.scoring, examples)
        texts, _, null_odds, *_ = zip(*results, strict=True)
        predictions = by_id(examples, texts)
        if not self.windows.version_2_with_negative:
            return squad_v1(examples.references, predictions, unit)
        return squad_v2(examples.references, predictions, by_id(examples, null_odds), unit)

    def records(self, data: Data, results: Results) -> Iterator[Record]:
        examples = data.examples()
        _, scores = self._scored(examples, results)
        for question, answer in zip(examples.questions, results, strict=True):
            context = examples.paragraphs[question.paragraph]
            fields: dict = {
                "id": question.id,
                "question": question.text,
                "context": context,
                "prediction": answer.text,
                "start": answer.start,
                "probability": answer.probability,
            }
            mistake = shown = None
            if scores:
                score = scores[question.id]
                fields["answers"] = [*dict.fromkeys(text for text, _ in question.answers)]
                fields["f1"] = score.f1
                mistake = None if score.exact else answer.probability
                # what fits on a page; mistakes.jsonl has all
                shown = {name: fields[name] for name in SHOWN}
                shown["context"] = marked_context(context, question, answer)
            yield Record(fields, mistake, shown)

    def write(self, run: Run, data: Data, results: Results) -> None:
        """Writes Google's files."""
        examples = data.examples()
        if not has_answers(examples):
            run.say("the questions have no answers: predictions are written, not scored")
        elif unit_of(self.scoring, examples) == "word" and not separates_words(examples.paragraphs):
            run.say(
                "the contexts have no blanks between words: F1 hardly differs from EM; see --metric"
                " characters"
            )
        texts, entries, null_odds, *_ = zip(*results, strict=True)
        run.write_json("predictions.json", by_id(examples, texts))
        run.write("nbest_predictions.json", nbest_file(by_id(examples, entries)))
        if self.windows.version_2_with_negative:
            run.write_json("null_odds.json", by_id(examples, null_odds))

    def details(self, data: Data, results: Results) -> Details:
        examples = data.examples()
        _, scores = self._scored(examples, results)
        return Details(sections=details(examples, scores))


def by_id(examples: Examples, values: Iterable) -> dict:
    """What each question has, by the question's id."""
    return dict(zip(examples.references, values, strict=True))


def has_answers(examples: Examples) -> bool:
    return any(question.answers or question.is_impossible for question in examples.questions)


def unit_of(metric: str, examples: Examples) -> Unit:
    """What F1 counts by the flag `--metric`."""
    if metric == "characters":
        return "character"
    is_korquad = metric == "auto" and "korquad" in examples.version.lower()
    return "korquad_v1" if is_korquad or metric == "korquad_v1" else "word"


def of_model(head: Head, start: Start) -> SpanTask | None:
    """The task of a trained model with this head, for export."""
    return SpanTask() if head is SPAN else None
