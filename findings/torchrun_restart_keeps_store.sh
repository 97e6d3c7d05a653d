#!/usr/bin/env bash
# torchrun: processes that it restarts find the keys of those that ended in the store, so a counter goes on at 3 of 2.
#
# Guess: each restart begins with an empty store, as torch/distributed/rendezvous.py says: "We create a new TCPStore for
#   every retry so no need to add prefix for each attempt".
# Seen: torch 2.13.0, Python 3.11, Linux x86_64, November 2026. Two processes ask for the store of `env://` and add 1 to
#   a key. All exit with status 1, and `--max-restarts 1` starts them again: their counts are 3 and 4, with and without
#   --standalone. The new processes connect to the same store of the launcher, without a prefix of the attempt.
# Matters for: whoever keeps something in that store. A barrier that counts lets the first process through alone after a
#   restart, and an address, a "ready" or a result of the attempt before is taken for one of this attempt. Wrap the
#   store: PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store).
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 || exit 2
cat > "$folder/count.py" <<'PYTHON'
import os
import sys

from torch.distributed import PrefixStore, rendezvous

store, rank, size = next(iter(rendezvous("env://")))
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
own = PrefixStore(str(attempt), store)
print(f"attempt {attempt}: {store.add('came', 1)}, with a prefix {own.add('came', 1)}", flush=True)
own.set(f"done/{rank}", "1")
own.wait([f"done/{other}" for other in range(size)])
sys.exit(1 if attempt == 0 else 0)
PYTHON
export OMP_NUM_THREADS=1
for options in "" --standalone; do
    "$folder/venv/bin/torchrun" $options --nproc-per-node 2 --max-restarts 1 "$folder/count.py" > "$folder/found" \
        2> "$folder/log" || { tail -3 "$folder/log"; exit 1; }
    echo "torchrun $options"
    sort "$folder/found"
    # The order of the two processes may differ between the columns.
    columns=$(cut -d' ' -f2,3 "$folder/found" | sort | tr -d '\n')/$(cut -d' ' -f2,7 "$folder/found" | sort | tr -d '\n')
    [ "$columns" = "0: 1,0: 2,1: 3,1: 4,/0: 10: 21: 11: 2" ] || exit 1
done
