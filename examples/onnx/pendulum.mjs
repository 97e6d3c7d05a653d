// Swing up a pendulum in JavaScript with a policy that was trained in Python:
//
//     python -m tmrl_core --local -c config/pendulum_sac.yaml
//     python -m tmrl_core --export runs/pendulum_sac examples/onnx/policy.onnx
//     cd examples/onnx && npm install && node pendulum.mjs policy.onnx
//
// The physics are those of Gymnasium's Pendulum-v1: mean returns of about -150 are a pendulum that stands.

import { readFile } from "node:fs/promises";
import { Policy } from "./policy.mjs";

const [file = "policy.onnx", episodes = "10"] = process.argv.slice(2);
const policy = await Policy.load(await readFile(file));
const returns = [];
for (let episode = 0; episode < Number(episodes); episode++) {
  policy.beginEpisode();
  let angle = Math.PI * (2 * Math.random() - 1), speed = 2 * Math.random() - 1, total = 0;
  for (let step = 0; step < 200; step++) {
    const { action } = await policy.act({ observation: [Math.cos(angle), Math.sin(angle), speed] });
    const error = ((angle + Math.PI) % (2 * Math.PI) + 2 * Math.PI) % (2 * Math.PI) - Math.PI;
    total -= error ** 2 + 0.1 * speed ** 2 + 0.001 * action[0] ** 2;
    speed = Math.min(8, Math.max(-8, speed + (15 * Math.sin(angle) + 3 * action[0]) * 0.05));
    angle += speed * 0.05;
  }
  returns.push(total);
  console.log(`episode ${episode + 1}: return ${total.toFixed(1)}`);
}
console.log(`mean return ${(returns.reduce((sum, one) => sum + one, 0) / returns.length).toFixed(1)}`);
