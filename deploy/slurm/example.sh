#!/usr/bin/env bash
#SBATCH --job-name=dtopk-first
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=57221M
#SBATCH --time=04:00:00
#SBATCH --output=/shared/runs/first/submission/job-%j.log
#SBATCH --open-mode=append
#SBATCH --export=ALL
#SBATCH --requeue
#SBATCH --signal=B:USR1@120

set -u
# What the run writes is nobody else's to change.
umask o-w

run=/shared/runs/first
place=/shared/runs/first/submission
logs=/shared/runs/first/submission
python=/shared/venv/bin/python
commits=/shared/runs/first/state

# What happens to the run is noted here, for `dtopk status`.
note() { printf '%s\n' "$*" >> "$place/attempts.log"; }

driver=
status=0
why=
woken=0

# The run saves what it has reached, and ends.
ask_to_stop() {
    woken=1
    why=asked
    [ -z "$driver" ] || kill -TERM "$driver" 2> /dev/null
}
trap ask_to_stop USR1 TERM

wait_for_driver() {
    [ -z "$why" ] || kill -TERM "$driver" 2> /dev/null
    while :; do
        woken=0
        wait "$driver"
        status=$?
        # A signal ends the wait, and not the run.
        [ "$woken" -eq 1 ] || break
    done
}

[ -w "$place" ] || { echo "the folder is gone, or not to be written to: $place" >&2; exit 2; }
note begin "$(date +%s)" "$(hostname)"
touch "$place/started"

scheduler_file=$place/scheduler-$SLURM_JOB_ID.json
rm -f "$scheduler_file"
"$python" -m dtopk.launch.rank scheduler --scheduler-file "$scheduler_file" --dashboard-port 8787 --interface ib0 \
    >> "$logs/scheduler.log" 2>&1 < /dev/null &
scheduler=$!

# Each worker is a step of its own. One that ends, or whose step is killed, is started again for as
# long as the job lasts. When a node is lost, SLURM puts the whole job back into the queue.
alive=$place/alive-$SLURM_JOB_ID
touch "$alive"
keep_worker() {
    trap - USR1 TERM
    local pause=2 began
    while [ -e "$alive" ]; do
        began=$SECONDS
        srun --nodes=1 --ntasks=1 --nodelist="$1" --cpus-per-task=16 --mem=0 --overlap \
            --kill-on-bad-exit=0 --no-kill --export=ALL \
            "$python" -m dtopk.launch.rank worker --scheduler-file "$scheduler_file" \
            --name "$1-$2-${SLURM_RESTART_COUNT:-0}" --nthreads 16 --memory-limit 56000000000 --interface ib0 \
            >> "$logs/worker-$1-$2.log" 2>&1 < /dev/null
        # The longer, the more often it does not even start.
        [ $((SECONDS - began)) -lt 30 ] || pause=2
        sleep "$pause"
        [ "$pause" -ge 60 ] || pause=$((2 * pause))
    done
}
for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
    for number in $(seq 1); do
        keep_worker "$node" "$number" &
    done
done

"$python" -m dtopk.cli train "$place/job.toml" --run-dir "$run" \
    --set cluster.kind=scheduler \
    --set cluster.scheduler="$scheduler_file" \
    >> "$logs/run.log" 2>&1 < /dev/null &
driver=$!
wait_for_driver
[ ! -e "$place/cancelled" ] || why=cancelled
note end "$(date +%s)" "$status" $why

# Workers end when their scheduler does.
rm -f "$alive"
kill -HUP "$scheduler" 2> /dev/null

# A run that was asked to stop by the batch system goes on later, and so does one that failed,
# 3 times in a row at most. One that was refused (status 2) would be refused again.
if [ "$status" -eq 0 ] || [ "$status" -eq 2 ] || [ "$why" = cancelled ]; then
    exit "$status"
fi
failures=$(cat "$place/failures" 2> /dev/null || echo 0)
progress=0
[ -z "$(find "$commits" \( -name state.json -o -name result.json \) -newer "$place/started" \
    2> /dev/null)" ] || progress=1
[ "$progress" -eq 0 ] || failures=0
[ "$why$progress" = asked1 ] || failures=$((failures + 1))
echo "$failures" > "$place/failures"
if [ "$failures" -gt 3 ]; then
    echo "the run has failed $failures times in a row without a commit: it is not started again."
    exit "$status"
fi
# A job that SLURM has cancelled, or put back itself, is not ours to start again.
if [ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)" = RUNNING ]; then
    scontrol requeue "$SLURM_JOB_ID" && sleep 60
fi
exit "$status"
