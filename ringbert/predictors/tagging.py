"""Entities in texts by a model that bert-tagger has trained, by the same code as bert-tagger."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import overload

from bert.configuration import BertConfig
from bert.heads import TAGGER
from bert.text.characters import word_spans
from ringbert.predictors.base import LoadSettings, TrainedPredictor, checked_texts
from tasks.tagger.reading import Sentence
from tasks.tagger.scoring import Entity, entities
from tasks.tagger.settings import SentenceSettings
from tasks.tagger.task import TagTask


@dataclass(frozen=True, kw_only=True)
class TaggingSettings(LoadSettings, SentenceSettings):
    """How texts become rows and batches."""


@dataclass(kw_only=True, eq=False)
class Tagger(TrainedPredictor):
    """Finds entities, or the tags of all words where the model has plain tags, such as parts of
    speech: `Tagger(folder)(texts)`. The tags are those of bert-tagger for the same words.

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
    """

    doc_stride: int | None = None
    characters: bool | None = None

    head, trained_by = TAGGER, "bert-tagger"
    settings_class = TaggingSettings
    longest = 128

    def make_task(self, bert_config: BertConfig) -> TagTask:
        return TagTask(self.settings, bert_config.labels)

    @overload
    def __call__(self, texts: str) -> list[Entity]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, texts: Iterable[str]) -> list[list[Entity]]: ...
    def __call__(self, texts: str | Iterable[str]) -> list[Entity] | list[list[Entity]]:
        """The entities of a text, or of each text of a list.

        Words are runs of letters, marks and numbers, and other characters alone.
        """
        if isinstance(texts, list) and not texts:
            return []
        items, is_single = checked_texts(texts, "texts", takes_empty=True)
        found = self._entities([text for (text,) in items])
        return found[0] if is_single else found

    def _entities(self, texts: list[str]) -> list[list[Entity]]:
        if self.settings.characters:
            spans = [[(place, place + 1) for place in range(len(text))] for text in texts]
        else:
            spans = [word_spans(text) for text in texts]
        sentences = []
        for text, own in zip(texts, spans, strict=True):
            sentences.append(Sentence([text[start:end] for start, end in own]))
        tagged, _ = self.results(self.set_of(sentences))
        found = []
        for text, sentence, own, tags in zip(texts, sentences, spans, tagged, strict=True):
            starts = [start for start, _ in own]
            found.append(entities(text, sentence.words, starts, tags))
        return found
