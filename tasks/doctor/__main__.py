"""The command bert-doctor."""

from functools import partial

from tasks.doctor.settings import DoctorConfig
from tasks.environment import run_command

main = partial(run_command, "bert-doctor", DoctorConfig)

if __name__ == "__main__":
    main()
