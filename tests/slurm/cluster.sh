#!/usr/bin/env bash
# A SLURM of its own on this machine, whose nodes are daemons that listen on 127.0.0.1 alone.
#
#   cluster.sh install          Debian's packages, as root
#   cluster.sh start DIR [N]    N nodes of 2 cores and 4 GB, named n1, n2, ...; files go to DIR
#   cluster.sh stop DIR         end what was started for DIR, and nothing else
#
# Clients and jobs find it by SLURM_CONF=DIR/slurm.conf. It has its own munge daemon and key.
set -euo pipefail

PORT=${SLURM_TEST_PORT:-18917}

install() {
    [ "$(id -u)" -eq 0 ] && command -v apt-get > /dev/null || {
        echo "SLURM is not installed: that needs root, and Debian's apt-get." >&2
        return 0
    }
    command -v slurmctld > /dev/null && command -v slurmd > /dev/null && command -v munged \
        > /dev/null && return 0
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        slurmctld slurmd slurm-client munge
}

write_configuration() {
    cat > "$dir/slurm.conf" << END
ClusterName=dtopk-tests
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=$PORT
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A job that is put back starts again when its old credential has run out.
AuthInfo=socket=$dir/munge.socket,cred_expire=5
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool.%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.%n.log
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
# No cgroups: processes are found by their parents, and memory is measured and not enforced by the
# kernel.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SwitchType=switch/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
SchedulerParameters=sched_interval=2,sched_min_interval=200000,bf_interval=2
ReturnToService=2
KillWait=5
MinJobAge=600
SlurmdParameters=config_overrides
DefMemPerCPU=512
END
    for i in $(seq "$nodes"); do
        echo "NodeName=n$i NodeHostname=localhost NodeAddr=127.0.0.1 Port=$((PORT + i)) CPUs=2" \
            "Boards=1 SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=4096"
    done >> "$dir/slurm.conf"
    echo "PartitionName=all Nodes=n[1-$nodes] Default=YES MaxTime=INFINITE State=UP" \
        >> "$dir/slurm.conf"
}

start() {
    mkdir -p "$dir/state"
    chmod 755 "$dir"
    (umask 077 && head -c 1024 /dev/urandom > "$dir/munge.key")
    # --force: the folder may be one that others can write to, as /tmp is.
    munged --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" \
        --pid-file="$dir/munged.pid" --log-file="$dir/munged.log" --seed-file="$dir/munged.seed" \
        2> /dev/null
    write_configuration
    export SLURM_CONF=$dir/slurm.conf
    slurmctld -c -f "$SLURM_CONF"
    for i in $(seq "$nodes"); do
        mkdir -p "$dir/spool.n$i"
        slurmd -N "n$i" -f "$SLURM_CONF"
    done
    for _ in $(seq 100); do
        [ "$(sinfo --noheader --states=idle --format=%D 2> /dev/null)" = "$nodes" ] && return 0
        sleep 0.1
    done
    echo "the nodes are not idle after 10 s:" >&2
    sinfo >&2 || true
    tail -5 "$dir"/*.log >&2
    return 1
}

stop() {
    export SLURM_CONF=$dir/slurm.conf
    timeout 10 scancel --user=root 2> /dev/null || true
    for _ in $(seq 50); do
        [ -z "$(timeout 5 squeue --noheader 2> /dev/null)" ] && break
        sleep 0.2
    done
    for file in "$dir"/slurmd.*.pid "$dir/slurmctld.pid" "$dir/munged.pid"; do
        [ ! -f "$file" ] || kill "$(cat "$file")" 2> /dev/null || true
    done
}

dir=${2:-}
nodes=${3:-4}
case ${1:-} in
    install) install ;;
    start | stop) "$1" ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
esac
