#!/usr/bin/env bash
# Ray: after one program with `ray.init()`, no program on that machine can join a cluster made by `ray start --head`.
#
# Guess: a program with a local Ray of its own leaves nothing behind that changes later clusters.
# Seen: ray 2.60.0, Python 3.11, Linux x86_64, November 2026. In a new home folder, `ray start --head` makes a cluster
#   without authentication, and `ray.init(address=...)` joins it. A local `ray.init()` switches authentication on for
#   itself and saves a token in ~/.ray/auth_token. From then on `ray start --head` switches it on too, because there is
#   a token, while a program that joins keeps the mode `disabled` and shows none: "InvalidAuthToken ... RAY_AUTH_MODE is
#   currently 'disabled'", after 60 s of attempts. Both commands and the user are the same as before.
# Matters for: whoever tries workers on a laptop with `ray.init()` before starting a cluster there. Set
#   RAY_AUTH_MODE=token for `ray start` and for the programs that join, or `disabled` for both.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
export HOME=$folder RAY_USAGE_STATS_ENABLED=0
unset RAY_AUTH_MODE RAY_AUTH_TOKEN RAY_AUTH_TOKEN_PATH RAY_ADDRESS
port=26397
trap '"$folder/venv/bin/ray" stop --force > /dev/null 2>&1; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet ray==2.60.0 || exit 2

join() {
    "$folder/venv/bin/ray" start --head --num-cpus 1 --include-dashboard=false --port $port > /dev/null 2>&1 || exit 2
    "$folder/venv/bin/python" -c "import ray; ray.init(address='127.0.0.1:$port', log_to_driver=False)" > "$1" 2>&1
    status=$?
    "$folder/venv/bin/ray" stop --force > /dev/null 2>&1
    return $status
}

join "$folder/before" || { echo "a new home folder: not joined"; tail -3 "$folder/before"; exit 1; }
echo "a new home folder: joined"
"$folder/venv/bin/python" -c 'import ray; ray.init(num_cpus=1, include_dashboard=False)' > "$folder/local" 2>&1 || exit 2
if join "$folder/after"; then echo "after a local ray.init(): joined"; exit 1; fi
grep -q "InvalidAuthToken.*RAY_AUTH_MODE is currently 'disabled'" "$folder/after" || { tail -3 "$folder/after"; exit 1; }
echo "after a local ray.init(): InvalidAuthToken, RAY_AUTH_MODE is currently 'disabled'"
