/** Elements made without markup: a text stays text, whatever it holds. */

export type Child = Node | string;
type Value = string | number | boolean | ((event: any) => void);
export type Attributes = Record<string, Value>;

function filled<E extends Element>(element: E, attributes: Attributes, children: Child[]): E {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false) element.setAttribute(name, String(value));
  }
  element.append(...children);
  return element;
}

/** Make an HTML element; functions among the attributes listen to the event of that name. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  return filled(document.createElement(tag), attributes, children);
}

/** Make an SVG element. */
export function s(tag: string, attributes: Attributes = {}, ...children: Child[]): SVGElement {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag) as SVGElement, attributes, children);
}

/** Find an element of the page that has to be there. */
export function find(id: string): HTMLElement {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page has no element #${id}`);
  return element;
}

/** Write a number with three digits, as the library does. */
export function number(value: number | null): string {
  if (value === null || !Number.isFinite(value)) return "∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
  return String(Number(value.toPrecision(3)));
}

/** Write a count: 12,345 as it is, millions with a letter. */
export function count(value: number): string {
  if (value >= 1e6) return `${Number((value / 1e6).toPrecision(3))} M`;
  return Math.round(value).toLocaleString("en");
}

/** Write a share in percent. */
export function percent(share: number): string {
  return `${Number((100 * share).toPrecision(3))} %`;
}
