"""Entities in texts by a model that bert-tagger has trained, by the same code as bert-tagger."""

from dataclasses import dataclass

from bert.configuration import BertConfig
from bert.heads import TAGGER
from bert.text.characters import word_spans
from ringbert.predictors.base import LoadSettings
from ringbert.predictors.texts import TextPredictor
from tasks.runs.task import DataSet
from tasks.tagger.reading import Sentence
from tasks.tagger.scoring import Entity, entities
from tasks.tagger.settings import SentenceSettings
from tasks.tagger.task import TagTask


@dataclass(frozen=True, kw_only=True)
class TaggingSettings(LoadSettings, SentenceSettings):
    """How texts become rows and batches."""


@dataclass(kw_only=True, eq=False)
class Tagger(TextPredictor[str, list[Entity]]):
    """Finds entities, or the tags of all words where the model has plain tags, such as parts of
    speech: `Tagger(folder)(texts)`. The tags are those of bert-tagger for the same words, which
    here are runs of letters, marks and numbers, and other characters alone.

    Args:
      folder, precision, model_revision: as those of `QuestionAnswering`; bert-tagger trains the
        model.
      batch_size: rows of `max_seq_length` tokens in a batch; more if they are shorter.
      max_seq_length: the most tokens of a row; a longer text becomes several.
      doc_stride: tokens between the starts of such rows.
      characters: the model tags characters and not words.
        The default of these three is as in the run that wrote the folder, else that of bert-tagger.
    The attribute `labels` has the tags in the model's order. Raises ringbert.InputError, one line
    that names the argument.

    >>> text = "Ada wrote it in London."
    >>> entities = Tagger("names")(text)
    >>> all(entity.text == text[entity.start : entity.end] for entity in entities)
    True
    >>> list(Tagger("names").frame([text]))
    ['text', 'label', 'start', 'end', 'probability']
    """

    doc_stride: int | None = None
    characters: bool | None = None

    head, trained_by = TAGGER, "bert-tagger"
    takes_pairs, columns = False, Entity.__slots__
    settings_class = TaggingSettings
    longest = 128

    def make_task(self, bert_config: BertConfig) -> TagTask:
        return TagTask(self.settings, bert_config.labels)

    def _spans(self, text):
        """Where the words, or the characters, of a text are."""
        if self.settings.characters:
            return [(place, place + 1) for place in range(len(text))]
        return word_spans(text)

    def rows_of(self, items: list[tuple[str, ...]]) -> DataSet:
        sentences = []
        for (text,) in items:
            sentences.append(Sentence([text[start:end] for start, end in self._spans(text)]))
        return self.set_of(sentences)

    def results_of(self, items: list[tuple[str, ...]], data: DataSet) -> list[list[Entity]]:
        tagged, _ = self.results(data)
        found = []
        for (text,), sentence, tags in zip(items, data.examples(), tagged, strict=True):
            starts = [start for start, _ in self._spans(text)]
            found.append(entities(text, sentence.words, starts, tags))
        return found
