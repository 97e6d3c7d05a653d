#!/bin/sh
# The protocol with curl alone: log in, two steps of an agent with four numbers per observation (CartPole), end.
#
#     GATEWAY_KEY=... sh curl.sh [URL [CA]]
#     GATEWAY_KEY=... sh curl.sh https://gateway.example:8000/ ca.pem
set -eu
key=${GATEWAY_KEY:?set it to an API key}
url=${1:-http://localhost:8000/}
ca=${2:-}

# The message comes from standard input: other users of the machine can see the arguments of a command.
post() {
    curl --silent --show-error ${ca:+--cacert "$ca"} --header 'Content-Type: application/json' --data @- "$url$1"
    echo
}

login=$(echo "{\"apikey\": \"$key\"}" | post shepherd/login_user/)
case $login in
*'"ok"'*) echo "logged in" ;;
*)
    echo "login refused: $login" >&2
    exit 1
    ;;
esac
session=$(echo "$login" | sed 's/.*"session_key": *"\([^"]*\)".*/\1/')

send() {
    echo "> $1"
    echo "{\"session_key\": \"$session\", $1}" | post shepherd/env/
}

send '"obs": [0.01, 0.02, -0.03, 0.04], "reward": 0.0, "done": false'
send '"obs": [0.01, 0.21, -0.03, -0.26], "reward": 1.0, "done": false'
send '"obs": [0.02, 0.41, -0.04, -0.56], "reward": 1.0, "done": true'
send '"obs": null'
