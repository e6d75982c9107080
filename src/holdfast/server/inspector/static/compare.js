// Which of many outputs are the same, and where the others begin to differ. Pure.

// Groups of equal texts, the largest first. An output is {text, logprobs, mode}.
export function group(outputs) {
  const groups = new Map();
  for (const output of outputs) {
    if (!groups.has(output.text)) groups.set(output.text, []);
    groups.get(output.text).push(output);
  }
  return [...groups].map(([text, members]) => ({ text, members })).sort((one, other) => other.members.length - one.members.length);
}

// The first place at which two texts differ, or -1. Never in the middle of a character.
export function firstDifference(one, other) {
  const [these, those] = [[...one], [...other]];
  let place = 0;
  for (let index = 0; index < Math.max(these.length, those.length); index += 1) {
    if (these[index] !== those[index]) return place;
    place += these[index].length;
  }
  return -1;
}

// What is to be said of the outputs of one side, in a sentence or two, and whether they are the same.
export function judge(outputs, deterministic) {
  const total = outputs.length;
  const distinct = group(outputs).length;
  const bits = new Set(outputs.map((output) => output.logprobs)).size;
  if (total === 0) return { outcome: "none", sentence: "No output yet." };
  if (distinct === 1) {
    const words = `${total} of ${total} the same: 1 distinct output.`;
    if (deterministic) {
      return bits === 1
        ? { outcome: "same", sentence: `${words} Every logprob is the same, too, to the last bit.` }
        : { outcome: "differ", sentence: `${words} But there are ${bits} different sets of logprobs: this is a bug in Holdfast, please report it.` };
    }
    return bits === 1
      ? { outcome: "same", sentence: `${words} This machine’s kernels agreed this time; nothing promised it.` }
      : { outcome: "differ", sentence: `${words} The words agreed this time, but with ${bits} different sets of logprobs.` };
  }
  const sentence = `${total} answers, ${distinct} distinct outputs.`;
  return { outcome: "differ", sentence: deterministic ? `${sentence} This is a bug in Holdfast, please report it.` : sentence };
}
