"""The command bert-export."""

from functools import partial

from ringbase.settings import Settings, setting
from tasks.runs.commands import Command
from tasks.runs.environment import run_command


class ExportConfig(Settings):
    """Write a trained model as a TensorFlow SavedModel."""

    folder: str = setting(
        help="a run's folder, its model/, a Hugging Face folder, a checkpoint or a hub name",
        is_positional=True,
    )
    out: str = setting(help="new folder to write", is_positional=True)
    model_revision: str | None = setting(
        None, "commit, tag or branch of a hub model", "data", shown_default="main"
    )


main = partial(run_command, Command("bert-export", ExportConfig))

if __name__ == "__main__":
    main()
