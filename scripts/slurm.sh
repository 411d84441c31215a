#!/usr/bin/env bash
# A Slurm job for one or several nodes: one rank per task and GPU. Options of sbatch go before the script:
#
#   sbatch --nodes=2 --ntasks-per-node=4 --time=08:00:00 scripts/slurm.sh bert-squad --do_train …
#
# --output_dir, the data files and the environment must be on a file system that every node sees. Give
# --gpus-per-task=0 on nodes without GPUs, --partition and --account as your site needs them.
#
# An array, such as one job per seed; %a is the number of the job in the array:
#
#   sbatch --array=1-5 scripts/slurm.sh bert-classifier --seed %a --output_dir reviews/seed-%a …
#   bert-report reviews    # afterwards
#
# Set these before sbatch, if needed:
#   RINGBERT_VENV      virtual environment to run in; otherwise the program must be on PATH
#   RINGBERT_LAUNCHER  srun (the default) or mpirun, for an MPI that srun cannot start
#   RINGBERT_MPI       the --mpi of srun (default: pmix; pmi2 for MPICH and Intel MPI)
#   RINGBERT_CACHE     prepared data: one folder that all nodes share (the default, below the home folder: made
#                      once) or one that each node has for itself, such as /tmp/ringbert (made once per node)
#   HF_HUB_OFFLINE=1   nodes have no network: first run `hf download NAME` on a login node, with the
#                      HF_HOME that the job will see, or give a folder to --model
#
#SBATCH --job-name=ringbert
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
# Two minutes before the time limit (and when the job is preempted) this shell gets SIGUSR1. This time must be
# longer than a step, an evaluation and a checkpoint take together.
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -uo pipefail

SAVED=75 # exit status after saving for SIGUSR1; the same command continues from the checkpoint

fail() {
  echo "slurm.sh: error: $*" >&2
  exit 1
}

# This Slurm's name for PMIx, which Open MPI 5 needs: pmix, else a version such as pmix_v4; without PMIx, pmi2.
choose_mpi() {
  local offered name
  offered=$(srun --mpi=list 2>&1 | sed 's/.*available: *//' | tr -s '[:space:],' '\n' | sort -rV)
  for name in pmix 'pmix_v[0-9]+' pmi2; do
    grep -xE -m 1 "$name" <<< "$offered" && return
  done
}

(($# > 0)) || fail "no program: sbatch [OPTIONS] scripts/slurm.sh bert-squad --flags …"
[[ -n ${SLURM_JOB_ID:-} ]] || fail "not in a Slurm job: start it by sbatch; without Slurm use bert-launch"
[[ -z ${RINGBERT_VENV:-} ]] || PATH=$RINGBERT_VENV/bin:$PATH
set -- "${@//%a/${SLURM_ARRAY_TASK_ID:-%a}}"
command -v "$1" > /dev/null || fail "$1 is not on PATH: set RINGBERT_VENV to the virtual environment that has it"
export PATH HF_HUB_OFFLINE="${HF_HUB_OFFLINE:-0}" RINGBERT_CACHE="${RINGBERT_CACHE:-$HOME/.cache/ringbert}"

# Without these variables a step sees all GPUs of the job on its node, and each rank chooses one by its local rank.
# If each rank saw one GPU only, NVLink could not be used, and mpirun's daemon (one task per node) would have
# one GPU.
unset SLURM_GPUS_PER_TASK SLURM_TRES_PER_TASK SLURM_GPU_BIND
case ${RINGBERT_LAUNCHER:-srun} in
  srun)
    mpi=${RINGBERT_MPI:-$(choose_mpi)}
    [[ -n $mpi ]] || fail "srun --mpi=list offers neither pmix nor pmi2: set RINGBERT_LAUNCHER=mpirun"
    # Not every Slurm passes --cpus-per-task to srun, and sbatch --export=NONE would apply to the ranks too.
    launch=(srun --mpi="$mpi" --export=ALL --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}")
    ;;
  mpirun)
    launch=(bert-launch -np "${SLURM_NTASKS:-1}" --)
    ;;
  *) fail "RINGBERT_LAUNCHER=$RINGBERT_LAUNCHER: srun or mpirun is needed" ;;
esac

pid='' interrupted=false
trap 'interrupted=true; [[ -z $pid ]] || kill -USR1 "$pid"' USR1
echo "slurm.sh: job $SLURM_JOB_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)): ${launch[*]} $*" >&2
"${launch[@]}" "$@" &
pid=$!
while wait "$pid"; status=$?; $interrupted; do
  interrupted=false # the signal ended `wait`, not the ranks
done

if ((status == SAVED)); then
  scontrol requeue "$SLURM_JOB_ID" && exit 0
  echo "slurm.sh: the run is saved, but the job was not requeued: give the same sbatch command again" >&2
fi
exit "$status"
