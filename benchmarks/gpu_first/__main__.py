"""What to measure first on a new GPU machine, which may have no network and no TensorFlow.

    python -m benchmarks.gpu_first prepare exported       where RingBERT runs on a CPU: some MB of StableHLO
    python -m benchmarks.gpu_first run exported out       on the GPU machine, with JAX and PyTorch
    python -m benchmarks.gpu_first run exported out --stage 2   the same with TensorFlow for GPUs

`run` writes out/findings.md and out/findings.jsonl as it goes, and can be killed and started again.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_first import cases, libraries, plan, runner, wheels
from ringbase.errors import InputError


def main(argv: Sequence[str] | None = None) -> None:
    flags = parser().parse_args(argv)
    try:
        sys.exit(0 if carry_out(flags) else 1)
    except (InputError, OSError) as error:
        sys.exit(f"benchmarks.gpu_first: error: {error}")


def carry_out(flags: argparse.Namespace) -> bool:
    """Returns whether all is well."""
    match flags.command:
        case "prepare":
            cases.prepare(flags.folder, flags.cases)
        case "export":
            cases.export(flags.case, flags.folder)
        case "run":
            out = flags.out.absolute()
            steps = plan.without_tensorflow(flags.exported.absolute(), out)
            if flags.stage == 2:
                steps = plan.with_tensorflow(out, flags.squad_flag)
            unknown = {*flags.only, *flags.again} - {step.name for step in steps}
            if unknown:
                raise InputError(f"no step {', '.join(sorted(unknown))}: {', '.join(step.name for step in steps)}")
            steps = [step for step in steps if not flags.only or step.name in flags.only]
            return runner.run_all(steps, out, flags.minutes, flags.again)
        case "split":
            for path in wheels.split(flags.wheel, flags.folder, flags.piece_mib):
                print(path)
        case "join":
            for path in wheels.join(flags.folder, flags.target):
                print(path)
        case "install":
            wheels.install(flags.folder, flags.target)
        case "libraries":
            for name, meaning in libraries.make_folder(flags.folder).items():
                print(f"{name}: {meaning}")
    return True


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="benchmarks.gpu_first", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = made.add_subparsers(dest="command", required=True)

    def command(name: str, text: str, *folders: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        for folder in folders:
            added.add_argument(folder, type=Path)
        return added

    prepare = command("prepare", "export all functions into a folder, on a CPU", "folder")
    prepare.add_argument("cases", nargs="*", help=f"of {', '.join(cases.CASES)}; default all")
    export = command("export", "export one function, in this process")
    export.add_argument("case", choices=[*cases.CASES])
    export.add_argument("folder", type=Path)
    run = command("run", "measure, and write the findings", "exported", "out")
    run.add_argument("--stage", type=int, choices=(1, 2), default=1, help="1: JAX and PyTorch; 2: TensorFlow")
    run.add_argument("--minutes", type=float, default=28.0, help="time for all steps together (default 28)")
    run.add_argument("--only", nargs="+", default=[], metavar="STEP", help="run these steps alone")
    run.add_argument("--again", nargs="+", default=[], metavar="STEP", help="run these steps although they ended")
    run.add_argument(
        "--squad_flag", action="append", default=[], metavar="--FLAG=VALUE", help="of bert-squad, in stage 2"
    )
    split = command("split", "cut a wheel into pieces with digests", "wheel", "folder")
    split.add_argument("--piece_mib", type=int, default=wheels.PIECE_MIB, help="largest piece (default 60)")
    command("join", "put pieces together, checked by their digests", "folder", "target")
    command("install", "install a folder's wheels into another folder, without a network", "folder", "target")
    command("libraries", "name CUDA's libraries as TensorFlow's wheel for CUDA 12 wants them", "folder")
    return made


if __name__ == "__main__":
    main()
