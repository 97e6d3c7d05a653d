#!/bin/bash
# A Slurm cluster of one node in a folder, without systemd, to try job scripts with: queues, preemption, requeueing.
#
#     apt-get install slurmctld slurmd slurm-client munge        # Debian; as root
#     scripts/slurm/one_node.sh start /tmp/slurm
#     export SLURM_CONF=/tmp/slurm/slurm.conf
#     sbatch scripts/slurm/workers.sbatch
#     scripts/slurm/one_node.sh stop /tmp/slurm
#
# A job in the partition `high` preempts and requeues those in `low`, the default. The node says that it has 16 cores,
# however many there are. GRACE_S is the time between the signal and the end of a preempted job. Not for work: there is no accounting, no limit of memory, and one user.
set -eu
action=${1:?start or stop}
folder=$(mkdir -p "${2:?a folder}" && cd "$2" && pwd)

if [ "$action" = stop ]; then
    for daemon in slurmd slurmctld munged; do
        if [ -s "$folder/$daemon.pid" ]; then kill "$(cat "$folder/$daemon.pid")" 2>/dev/null || true; fi
    done
    exit
fi

mkdir -p "$folder/state" "$folder/spool"
chmod 755 "$folder"
if [ ! -s "$folder/munge.key" ]; then
    (umask 077 && head -c 128 /dev/urandom > "$folder/munge.key")
fi
cat > "$folder/slurm.conf" <<EOF
ClusterName=one
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=26817
SlurmdPort=26818
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
JobRequeue=1
KillWait=30
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=16 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=${GRACE_S:-30}
PartitionName=high Nodes=ALL MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF
EOF
munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
    --log-file="$folder/munged.log" --seed-file="$folder/munge.seed"
export SLURM_CONF="$folder/slurm.conf"
slurmctld
slurmd
for _ in $(seq 50); do
    if sinfo --noheader --format %t 2>/dev/null | grep -q idle; then
        sinfo
        exit
    fi
    sleep 0.2
done
echo "the node is not ready: see $folder/slurmctld.log and $folder/slurmd.log" >&2
exit 1
