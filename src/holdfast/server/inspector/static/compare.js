// Compares the outputs of many runs: which are equal, and where the others first differ. Pure functions.

// Groups of equal texts, the largest first. An output is {text, logprobs, mode, alone}.
export function group(outputs) {
  const groups = new Map();
  for (const output of outputs) {
    if (!groups.has(output.text)) groups.set(output.text, []);
    groups.get(output.text).push(output);
  }
  return [...groups].map(([text, members]) => ({ text, members })).sort((one, other) => other.members.length - one.members.length);
}

// The group that the others are compared with: the one of the output given alone, else the largest.
export const reference = (groups) => groups.find(({ members }) => members.some((output) => output.alone)) ?? groups[0];

// The first index at which two texts differ, or -1. Never in the middle of a character.
export function firstDifference(one, other) {
  const [these, those] = [[...one], [...other]];
  let position = 0;
  for (let index = 0; index < Math.max(these.length, those.length); index += 1) {
    if (these[index] !== those[index]) return position;
    position += these[index].length;
  }
  return -1;
}

// A sentence about the outputs of one side, and whether they are equal.
export function judge(outputs, deterministic) {
  const total = outputs.length;
  const distinct = group(outputs).length;
  const bits = new Set(outputs.map((output) => output.logprobs)).size;
  if (total === 0) return { outcome: "none", sentence: "No output yet." };
  if (distinct === 1) {
    const summary = `${total} of ${total} identical: 1 distinct output.`;
    if (deterministic) {
      return bits === 1
        ? { outcome: "same", sentence: `${summary} All logprobs are bitwise identical.` }
        : { outcome: "differ", sentence: `${summary} But there are ${bits} different sets of logprobs. This is a bug in Holdfast, please report it.` };
    }
    return bits === 1
      ? { outcome: "same", sentence: `${summary} The kernels happened to agree; ordinary requests have no guarantee.` }
      : { outcome: "differ", sentence: `${summary} The text happened to agree, but there are ${bits} different sets of logprobs.` };
  }
  const sentence = `${total} runs, ${distinct} distinct outputs.`;
  return { outcome: "differ", sentence: deterministic ? `${sentence} This is a bug in Holdfast, please report it.` : sentence };
}
