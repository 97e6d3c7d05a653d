// A policy that `python -m tmrl_core --export` wrote, in JavaScript: in a browser, or with Node.
//
//     import { Policy } from "./policy.mjs";
//     const policy = await Policy.load("policy.onnx");
//     const { action } = await policy.act({ observation: [0.6, -0.8, 2.0] });
//
// It acts for one environment. Observations are numbers or flat arrays, in C order, by the names of the file's inputs; the
// result has flat arrays by the names of its outputs. A recurrent policy's state is carried from step to step; call
// `beginEpisode` after each reset.

import * as ort from "onnxruntime-web";

// One thread: a policy is small, and threads that wait for each other cost more than they compute.
ort.env.wasm.numThreads = 1;

const ARRAYS = {
  float32: Float32Array, float64: Float64Array, uint8: Uint8Array, int8: Int8Array, uint16: Uint16Array,
  int16: Int16Array, int32: Int32Array, uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array,
  bool: Uint8Array,
};

export class Policy {
  static async load(urlOrBytes) {
    return new Policy(await ort.InferenceSession.create(urlOrBytes));
  }

  constructor(session) {
    this.session = session;
    this.beginEpisode();
  }

  // The state before the first step: zeros.
  beginEpisode() {
    this.states = {};
    for (const input of this.session.inputMetadata)
      if (input.name.startsWith("state.")) this.states[input.name] = tensor(input);
  }

  async act(observation) {
    const feeds = { ...this.states };
    for (const input of this.session.inputMetadata) {
      if (input.name in feeds) continue;
      if (!(input.name in observation)) throw new Error(`the observation lacks ${input.name}`);
      feeds[input.name] = tensor(input, observation[input.name]);
    }
    const outputs = await this.session.run(feeds);
    const found = {};
    for (const [name, value] of Object.entries(outputs)) {
      if (name.startsWith("next_state.")) this.states[name.slice("next_".length)] = value;
      else found[name] = Array.from(value.data, Number);
    }
    return found;
  }
}

// One row of an input: the first dimension counts environments.
function tensor({ name, type, shape }, numbers) {
  const dims = [1, ...shape.slice(1)];
  const size = dims.reduce((product, length) => product * length, 1);
  const array = new ARRAYS[type](size);
  const given = numbers === undefined ? [] : typeof numbers === "number" ? [numbers] : numbers;
  if (numbers !== undefined && given.length !== size)
    throw new Error(`${name} has ${given.length} numbers, not ${size} (shape ${dims})`);
  for (let index = 0; index < given.length; index++)
    array[index] = type.endsWith("int64") ? BigInt(given[index]) : given[index];
  return new ort.Tensor(type, array, dims);
}
