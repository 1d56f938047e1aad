#!/usr/bin/env bash
# A study on SLURM: starts Ray on the machines of the job and runs one study there. Copy this file, adapt what is between
# the lines, then `sbatch slurm.sh`. A job that ends early, or at its time limit, leaves checkpoints: submit it again.
# --- adapt ------------------------------------------------------------------------------------------------------------
#SBATCH --job-name=tacit
#SBATCH --output=tacit-%j.log
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --time=4:00:00
#SBATCH --signal=B:TERM@120
# The last line above sends SIGTERM two minutes before the end of the time: last checkpoints are stored then.
# For GPUs: #SBATCH --gpus-per-node=4, and gpus=4 below. Also common: --partition, --account.
study=(mnist1d/standard/rates --into runs/rates)
cpus=32 # of each machine, as above
gpus=0  # of each machine
# module load cuda
# source .venv/bin/activate
# ----------------------------------------------------------------------------------------------------------------------
set -euo pipefail
export RAY_USAGE_STATS_ENABLED=0

# Ray's head on the first machine, where this script runs too. Each step names its cores: since SLURM 22.05 a step does
# not inherit them, and Ray would have one.
mapfile -t machines < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head="${machines[0]}"
head_ip="$(srun --overlap --nodes=1 --ntasks=1 -w "$head" hostname --ip-address | awk '{print $1}')"
port=$((20000 + SLURM_JOB_ID % 20000))
ray_start=(ray start --num-cpus="$cpus" --num-gpus="$gpus" --disable-usage-stats --block)
srun --overlap --cpus-per-task="$cpus" --nodes=1 --ntasks=1 -w "$head" \
  "${ray_start[@]}" --head --node-ip-address="$head_ip" --port="$port" --include-dashboard=false &
for _ in $(seq 120); do
  ray status --address "$head_ip:$port" > /dev/null 2>&1 && break
  sleep 1
done

# One Ray node on each other machine. Those that come late are used when they come.
others=$((${#machines[@]} - 1))
if ((others > 0)); then
  srun --overlap --cpus-per-task="$cpus" --nodes="$others" --ntasks="$others" --exclude="$head" \
    "${ray_start[@]}" --address="$head_ip:$port" &
fi

# The study: the one process that writes. One fleet at a time on each core, or on each GPU. SIGTERM is passed on to it.
if ((gpus > 0)); then device=cuda each=$gpus; else device=cpu each=$cpus; fi
tacit run "${study[@]}" --executor ray --address "$head_ip:$port" --device "$device" \
  --workers $((${#machines[@]} * each)) &
process=$!
trap 'kill -TERM "$process"' TERM
code=0
wait "$process" || code=$?
while kill -0 "$process" 2> /dev/null; do
  code=0
  wait "$process" || code=$?
done
exit "$code"
