// Makes elements from names, properties and children. Text is never parsed as HTML, here or in any other module.

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

// Replaces the content of a <dl> with these [term, description, tooltip] entries.
export function describe(list, entries) {
  list.replaceChildren(...entries.flatMap(([term, text, title]) => [
    make("dt", { textContent: term, title, tabIndex: 0 }),
    make("dd", { textContent: text, title }),
  ]));
}

// How many answers a group has, and whether the one given alone is among them.
export const showCount = (count, alone, title) =>
  make("b", { textContent: `${count} ×`, title }, ...(alone ? [make("small", { textContent: " incl. alone" })] : []));

export const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;
