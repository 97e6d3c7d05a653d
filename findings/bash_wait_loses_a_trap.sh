#!/usr/bin/env bash
# bash: of two signals that arrive together while a script waits for its children, one never runs its trap.
#
# Guess: a script with two traps that waits with `wait` runs both, in some order, as POSIX says of signals with traps.
# Seen: bash 5.2.15 and dash 0.5.12 of Debian 12, Linux x86_64, November 2026. In bash, the trap of the signal with the
#   lower number is dropped, not delayed: USR1 before TERM, USR1 before USR2, HUP before USR1, in either order of
#   arrival. Dash runs both. The signals come together here because the shell is stopped while they are sent, as on a
#   busy machine.
# Matters for: job scripts. `sbatch --signal=B:USR1@60` with `trap ... USR1` and `trap ... TERM` waits in just this way,
#   and a preemption without grace time sends both signals at once. A script that requeues its job in the trap of USR1
#   may not: let both traps do what must be done. scripts/slurm/ does not depend on it, since Slurm requeues then.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if there is no bash of this version, or no dash.
set -u
[ "$(bash -c 'echo "${BASH_VERSINFO[0]}.${BASH_VERSINFO[1]}.${BASH_VERSINFO[2]}"')" = 5.2.15 ] || exit 2
command -v dash > /dev/null || exit 2
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT

said() {
    "$1" -c "trap 'echo $2' $2; trap 'echo $3' $3; sleep 2 & wait; wait; echo end" > "$folder/said" &
    shell=$!
    sleep 0.5
    kill -STOP $shell
    kill "-$2" $shell
    kill "-$3" $shell
    kill -CONT $shell
    wait $shell
    tr '\n' ' ' < "$folder/said"
}

still=0
for pair in "USR1 TERM" "TERM USR1" "USR1 USR2" "HUP USR1"; do
    set -- $pair
    in_bash=$(said bash "$1" "$2")
    in_dash=$(said dash "$1" "$2")
    echo "$pair: bash says $in_bash, dash says $in_dash"
    [ "$(echo "$in_bash" | wc -w)" = 2 ] && [ "$(echo "$in_dash" | wc -w)" = 3 ] || still=1
done
exit $still
