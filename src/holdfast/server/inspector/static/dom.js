// Elements from names, properties and children. Text is always text: nothing here, or anywhere, parses HTML.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function make(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

export function draw(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// A list of terms and what they are, in place of what the list held.
export function describe(list, entries) {
  list.replaceChildren(...entries.flatMap(([term, text]) => [
    make("dt", { textContent: term }),
    make("dd", { textContent: text }),
  ]));
}

export const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;
