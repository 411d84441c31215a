"""What google-research/bert and albert make of texts, scores and gradients, written out by their
rules: `run_squad.py`, `run_classifier.py`, `tokenization.py`, `optimization.py` (in NumPy)."""

import unicodedata

import numpy as np
from scipy.special import softmax

# -- read_squad_examples and convert_examples_to_features ------------------------------------------


def google_s_words(text):
    """doc_tokens and char_to_word_offset."""
    words, word_of_char, after_space = [], [], True
    for c in text:
        if c in " \t\r\n\u202f":
            after_space = True
        else:
            if after_space:
                words.append(c)
            else:
                words[-1] += c
            after_space = False
        word_of_char.append(len(words) - 1)
    return words, word_of_char


def google_s_improvement(doc_tokens, start, end, answer_tokens):
    for new_start in range(start, end + 1):
        for new_end in range(end, new_start - 1, -1):
            if " ".join(doc_tokens[new_start : new_end + 1]) == " ".join(answer_tokens):
                return new_start, new_end
    return start, end


def google_s_features(tokenize, context, question, answer, settings):
    """[(tokens, token types, start_position, end_position)] of one question; `answer` is (text,
    start)."""
    words, word_of_char = google_s_words(context)
    text, offset = answer
    start_word, end_word = word_of_char[offset], word_of_char[offset + len(text) - 1]
    query_tokens = tokenize(question)[: settings.max_query_length]
    first_token_of_word, all_doc_tokens = list[int](), list[str]()
    for word in words:
        first_token_of_word.append(len(all_doc_tokens))
        all_doc_tokens += tokenize(word)
    tok_start = first_token_of_word[start_word]
    first_token_of_word.append(len(all_doc_tokens))
    tok_end = first_token_of_word[end_word + 1] - 1
    tok_start, tok_end = google_s_improvement(all_doc_tokens, tok_start, tok_end, tokenize(text))
    room = settings.max_seq_length - len(query_tokens) - 3
    features, start_offset = [], 0
    while start_offset < len(all_doc_tokens):
        length = min(len(all_doc_tokens) - start_offset, room)
        doc_tokens = all_doc_tokens[start_offset : start_offset + length]
        tokens = ["[CLS]", *query_tokens, "[SEP]", *doc_tokens, "[SEP]"]
        types = [0] * (len(query_tokens) + 2) + [1] * (length + 1)
        doc_offset = len(query_tokens) + 2 - start_offset
        is_inside = tok_start >= start_offset and tok_end <= start_offset + length - 1
        positions = (tok_start + doc_offset, tok_end + doc_offset) if is_inside else (0, 0)
        features.append((tokens, types, *positions))
        if start_offset + length == len(all_doc_tokens):
            break
        start_offset += min(length, settings.doc_stride)
    return features


# -- write_predictions -----------------------------------------------------------------------------


def google_s_is_max_context(doc_spans, cur_span_index, position):
    best_score, best_span_index = None, None
    for span_index, (start, length) in enumerate(doc_spans):
        end = start + length - 1
        if position < start or position > end:
            continue
        score = min(position - start, end - position) + 0.01 * length
        if best_score is None or score > best_score:
            best_score, best_span_index = score, span_index
    return cur_span_index == best_span_index


def google_s_best_indexes(logits, n_best_size):
    index_and_score = sorted(enumerate(logits), key=lambda x: x[1], reverse=True)
    return [index for index, _ in index_and_score[:n_best_size]]


def google_s_answer(windows, n_best_size, max_answer_length, version_2, threshold):
    """Prediction, n-best list and null odds of one question.

    A window is (start logits, end logits, document tokens, number of tokens before them, first
    one's number).
    """
    doc_spans = [(first, len(texts)) for *_, texts, _, first in windows]
    # (window, start, end, start logit, end logit)
    prelims, null = list[tuple](), (500_000, 500_000)
    for number, (starts, ends, texts, offset, first) in enumerate(windows):
        if version_2 and starts[0] + ends[0] < sum(null):
            null = starts[0], ends[0]
        for start_index in google_s_best_indexes(starts, n_best_size):
            for end_index in google_s_best_indexes(ends, n_best_size):
                in_document = range(offset, offset + len(texts))
                if start_index not in in_document or end_index not in in_document:
                    continue
                if not google_s_is_max_context(doc_spans, number, start_index - offset + first):
                    continue
                if end_index < start_index or end_index - start_index + 1 > max_answer_length:
                    continue
                prelims.append(
                    (number, start_index, end_index, starts[start_index], ends[end_index])
                )
    if version_2:
        prelims.append((0, 0, 0, *null))
    prelims.sort(key=lambda prelim: prelim[3] + prelim[4], reverse=True)
    seen, nbest = set[str](), list[tuple]()
    for number, start, end, *logits in prelims:
        if len(nbest) >= n_best_size:
            break
        text = ""
        if start > 0:
            _, _, texts, offset, _ = windows[number]
            text = (
                " ".join(texts[start - offset : end - offset + 1])
                .replace(" ##", "")
                .removeprefix("##")
            )
            if text in seen:
                continue
        seen.add(text)
        nbest.append((text, *logits))
    if version_2 and "" not in seen:
        nbest.append(("", *null))
    if not nbest:
        nbest.append(("empty", 0.0, 0.0))
    best_non_null = next((entry for entry in nbest if entry[0]), None)
    probabilities = softmax([start + end for _, start, end in nbest]).tolist()
    if not version_2:
        return nbest[0][0], nbest, probabilities, None
    if best_non_null is None:  # Google's script crashes here
        return "", nbest, probabilities, None
    difference = sum(null) - best_non_null[1] - best_non_null[2]
    return "" if difference > threshold else best_non_null[0], nbest, probabilities, difference


# -- other programs --------------------------------------------------------------------------------


def google_s_example(a, b, max_seq_length):
    """Tokens and types of run_classifier.py `convert_single_example`, without padding."""
    a, b = list(a), None if b is None else list(b)
    if b is not None:
        while len(a) + len(b) > max_seq_length - 3:  # _truncate_seq_pair
            (a if len(a) > len(b) else b).pop()
    tokens = ["[CLS]", *a[: max_seq_length - 2], "[SEP]"]
    types = [0] * len(tokens)
    return (tokens, types) if b is None else ([*tokens, *b, "[SEP]"], types + [1] * (len(b) + 1))


def preprocessed(text):
    """google-research/albert tokenization.py, preprocess_text(lower=True), written out."""
    text = unicodedata.normalize("NFKD", " ".join(text.strip().split()))
    return "".join(c for c in text if not unicodedata.combining(c)).lower()


# -- optimization.py -------------------------------------------------------------------------------


def google_rate(step, rate, train_steps, warmup_steps):
    """`create_optimizer`: polynomial decay of power 1 to 0 without cycles, warmup in front of
    it."""
    global_step = np.float32(min(step, train_steps))
    decayed = np.float32(rate) * (np.float32(1) - global_step / np.float32(train_steps))
    if warmup_steps and step < warmup_steps:
        return np.float32(rate) * (np.float32(step) / np.float32(warmup_steps))
    return decayed


def google_step(param, gradient, m, v, rate, decays):
    """`AdamWeightDecayOptimizer.apply_gradients`, in float32."""
    f = np.float32
    next_m = f(0.9) * m + f(1.0 - 0.9) * gradient
    next_v = f(0.999) * v + f(1.0 - 0.999) * np.square(gradient)
    update = next_m / (np.sqrt(next_v) + f(1e-6))
    if decays:
        update += f(0.01) * param
    return param - rate * update, next_m, next_v
