#!/usr/bin/env bash
# torchrun's restarted ranks find the addresses of ranks that have died: "connectFullMesh ... refused", or they hang.
#
# Guess: with `torchrun --max-restarts N`, ranks that are started again after a crash meet each other as those before did.
# Seen: torch 2.13.0 (CPU, gloo), Python 3.11, Linux x86_64, November 2026. The launcher keeps one TCPStore for all
#   attempts of a static rendezvous, and `env://` uses it without a prefix ("We create a new TCPStore for every retry so
#   no need to add prefix for each attempt", torch/distributed/rendezvous.py; another rendezvous does so). A new rank
#   therefore reads the address that a rank of the attempt before has left. Of 7 runs with 2 ranks, of which one was
#   killed once, 2 met at the first restart and 3 at the second; 2 hung until they were ended. With 4 ranks, none of 2
#   met within two restarts. With a store of one's own under a prefix of the attempt, 36 of 36 restarts met (12 runs,
#   three kills each, 2 and 4 ranks).
# Matters for: every training that relies on `--max-restarts`. Pass `store=PrefixStore(attempt, TCPStore(...))` to
#   `init_process_group`, with the attempt from TORCHELASTIC_RESTART_COUNT.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the package could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy || exit 2
cat > "$folder/ranks.py" <<'PYTHON'
import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
limit = datetime.timedelta(seconds=15)
try:
    if sys.argv[1] == "prefix":
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.PrefixStore(f"attempt {attempt}", dist.TCPStore(*address, ranks, is_master=False, timeout=limit))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
    else:
        dist.init_process_group("gloo", timeout=limit)
except Exception as exc:
    print(f"attempt {attempt}, rank {rank}: {str(exc).splitlines()[0][:150]}", flush=True)
    raise SystemExit(7) from None
numbers = torch.ones(100)
for step in range(20):
    dist.all_reduce(numbers)
    numbers /= ranks
    time.sleep(0.02)
    if attempt == 0 and rank == 0 and step == 10:
        os.kill(os.getpid(), signal.SIGKILL)
print(f"attempt {attempt}, rank {rank}: met the others and ended", flush=True)
dist.destroy_process_group()
PYTHON
met() {  # how many of 6 runs end at their first restart
    count=0
    for try in 1 2 3 4 5 6; do
        timeout 60 "$folder/venv/bin/torchrun" --nproc-per-node 2 --max-restarts 1 --monitor-interval 0.5 \
            --master-port $((29700 + try)) "$folder/ranks.py" "$1" > "$folder/log" 2>&1 && count=$((count + 1))
        grep -h "^attempt" "$folder/log"
    done
    echo "$1: $count of 6 restarts met" >&2
    return $count
}
met plain; plain=$?
met prefix; prefix=$?
[ "$plain" -lt 6 ] && [ "$prefix" -eq 6 ]
