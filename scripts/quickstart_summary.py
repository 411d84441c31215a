"""Shows the results of scripts/quickstart.sh: scores compared with the untrained model's, five
answers, the files.

python scripts/quickstart_summary.py QUICKSTART_DIR
"""

import sys
from pathlib import Path

from ringbase.files import read_json, write_json
from tasks.squad import metrics as squad_metrics
from tasks.squad.reading import Source, read
from tasks.squad.settings import QuestionSettings

SAMPLES = 5


def main() -> None:
    folder = Path(sys.argv[1])
    settings = QuestionSettings(predict_file=str(folder / "data/dev.json"))
    dev = read(Source(settings, "predict"))
    predictions = read_json(folder / "trained/predictions.json")
    # the first entry of each context: the answer of a model that ignores the question
    first_of = {}
    for question in dev.questions:
        first_of.setdefault(question.paragraph, dev.paragraphs[question.paragraph].split(".")[0])
    always_first = {question.id: first_of[question.paragraph] for question in dev.questions}
    scores = {
        "untrained": read_json(folder / "untrained/result.json")["scores"],
        "always the first entry": squad_metrics.squad_v1(dev.references, always_first)[0],
        "trained on 2 ranks": read_json(folder / "trained/result.json")["scores"],
    }
    write_json(folder / "scores.json", scores, indent=1)

    print(f"\n{len(dev.questions)} held-out questions        EM      F1")
    for name, values in scores.items():
        print(f"  {name:28} {values['exact_match']:6.1f}  {values['f1']:6.1f}")
    print("\nFive of them:")
    step = max(1, len(dev.questions) // SAMPLES)
    for question in dev.questions[::step][:SAMPLES]:
        print(f"  {question.text}")
        print(f"    predicted: {' '.join(predictions[question.id].split())}")
        print(f"    true:      {question.answers[0][0]}")
    trained = folder / "trained"
    print(f"\nA page of plots:  {trained}/report.html")
    print(f"The model:        {trained}/model  (Hugging Face layout)")
    print(f"All answers:      {trained}/predictions.json, nbest_predictions.json, eval_results.txt")


if __name__ == "__main__":
    main()
