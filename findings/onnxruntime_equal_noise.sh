#!/usr/bin/env bash
# Two sessions of ONNX Runtime in one process draw the same random numbers, though no seed is set.
#
# Guess: a policy that draws its noise in the graph (torch.randn_like becomes RandomNormalLike) explores differently in
#   each session: ONNX says of the attribute `seed`, "if not specified we will auto generate one".
# Seen: onnxruntime 1.32.0, onnx 1.23.2, numpy 2.4.6, Python 3.11, Linux x86_64, November 2026. Four sessions of one file
#   in one process give the same sequence, number by number; another process gives another one. The seed that is
#   generated is one of the process, to which the number of the node in the graph is added.
# Matters for: several robots or simulated environments that one process acts for, each with a session of its own: they
#   explore in step with each other, and the samples are correlated. Workers in processes of their own do not show it, so
#   it is found late. Make the noise outside and pass it in, or use one session for all.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6 || exit 2
cat > "$folder/noise.py" <<'PYTHON'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper

make = helper.make_tensor_value_info
nodes = [
    helper.make_node("RandomNormalLike", ["mean"], ["noise"]),
    helper.make_node("Add", ["mean", "noise"], ["action"]),
]
graph = helper.make_graph(
    nodes, "policy", [make("mean", TensorProto.FLOAT, [1, 2])], [make("action", TensorProto.FLOAT, [1, 2])]
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
policy = model.SerializeToString()


def actions():
    session = onnxruntime.InferenceSession(policy, providers=["CPUExecutionProvider"])
    return [session.run(None, {"mean": np.zeros((1, 2), np.float32)})[0].tolist() for _ in range(20)]


found = [str(actions()) for _ in range(4)]
steps = actions()
assert len({str(action) for action in steps}) == len(steps), "one session repeats itself"
print(len(set(found)), steps[0])
PYTHON
first=$("$folder/venv/bin/python" "$folder/noise.py") || exit 1
second=$("$folder/venv/bin/python" "$folder/noise.py") || exit 1
echo "different sequences of four sessions, and the first action: $first; in another process: $second"
[ "${first%% *}" = 1 ] && [ "${second%% *}" = 1 ] && [ "$first" != "$second" ]
