#!/usr/bin/env bash
# A Slurm job for one or several nodes: one rank per task and GPU. Options of sbatch go before the script:
#
#   bert-launch --print-slurm gpu > slurm.sh     # or cpu, without the line that asks for GPUs
#   sbatch --nodes=2 --ntasks-per-node=4 --time=08:00:00 slurm.sh bert-squad --do_train …
#
# --output_dir, the data files and the environment must be on a file system that every node sees. Give
# --partition and --account as your site needs them.
#
# An array, such as one job per seed; %a is the number of the job in the array:
#
#   sbatch --array=1-5 slurm.sh bert-classifier --seed %a --output_dir reviews/seed-%a …
#   bert-report reviews    # afterwards
#
# Set these before sbatch, if needed:
#   RINGBERT_VENV      virtual environment to run in; otherwise the program must be on PATH
#   RINGBERT_RESTARTS  how many times ranks that broke off (a killed rank, a lost node) start again within the
#                      job (default: 0); a training continues from its newest checkpoint
#   RINGBERT_STOP_S    seconds from the signal to the end, if you give sbatch another --signal (default: 120)
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
# longer than a step and a checkpoint take together; an evaluation is broken off, and done by the next start.
# RINGBERT_STOP_S, below, is that time: a stop that takes longer is a warning.
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

(($# > 0)) || fail "no program: sbatch [OPTIONS] slurm.sh bert-squad --flags …"
[[ -n ${SLURM_JOB_ID:-} ]] || fail "not in a Slurm job: start it by sbatch; without Slurm use bert-launch"
[[ -z ${RINGBERT_VENV:-} ]] || PATH=$RINGBERT_VENV/bin:$PATH
set -- "${@//%a/${SLURM_ARRAY_TASK_ID:-%a}}"
command -v "$1" > /dev/null || fail "$1 is not on PATH: set RINGBERT_VENV to the virtual environment that has it"
export RINGBERT_STOP_S="${RINGBERT_STOP_S:-120}"
# A job that is requeued or restarted goes on with what it has begun, also with --resume never.
export RINGBERT_JOB_ID="slurm-$SLURM_JOB_ID"
# else the PMIx in pip's Open MPI warns six times a rank that it cannot use Slurm's munge
export PMIX_MCA_psec="${PMIX_MCA_psec:-native}"
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

pid='' interrupted=false asked=false restarts=0
trap 'interrupted=true asked=true; [[ -z $pid ]] || kill -USR1 "$pid"' USR1

# Starts the ranks and waits for their end; the status is theirs.
run() {
  local status
  export RINGBERT_RESTART=$((${SLURM_RESTART_COUNT:-0} + restarts))
  echo "slurm.sh: job $SLURM_JOB_ID, start $((RINGBERT_RESTART + 1)): ${launch[*]} $*" >&2
  "${launch[@]}" "$@" &
  pid=$!
  while wait "$pid"; status=$?; $interrupted; do
    interrupted=false # the signal ended `wait`, not the ranks
  done
  return "$status"
}

run "$@"
status=$?
# What ends in 0, 1 (an error that one line says), 2 (wrong flags) or 75 (saved) would end so again.
while ((status > 2 && status != SAVED && restarts < ${RINGBERT_RESTARTS:-0})) && ! $asked; do
  restarts=$((restarts + 1))
  echo "slurm.sh: the ranks broke off with status $status: restart $restarts of $RINGBERT_RESTARTS" >&2
  run "$@"
  status=$?
done

if ((status > 2 && status != SAVED)); then
  echo "slurm.sh: the ranks ended with status $status: one was killed (out of memory?), or its node is lost; a" \
    "line of srun above names it. RINGBERT_RESTARTS=N, set before sbatch, starts them again" >&2
fi
if ((status == SAVED)); then
  scontrol requeue "$SLURM_JOB_ID" && exit 0
  echo "slurm.sh: the run is saved, but the job was not requeued: give the same sbatch command again" >&2
fi
exit "$status"
