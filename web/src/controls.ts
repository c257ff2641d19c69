/** Sliders, choices and buttons; each calls back with the value that was chosen. */

import { h } from "./dom";

let made = 0;

/** A slider that stops at the given values only. */
export function slider(
  label: string,
  values: readonly string[],
  value: string,
  changed: (value: string) => void,
  shown: (value: string) => string = (text) => text,
): HTMLElement {
  const id = `control-${made++}`;
  const output = h("output", { for: id }, shown(value));
  const input = h("input", {
    id,
    type: "range",
    min: 0,
    max: values.length - 1,
    step: 1,
    value: Math.max(0, values.indexOf(value)),
    "aria-valuetext": shown(value),
    input: () => {
      const chosen = values[Number(input.value)];
      output.textContent = shown(chosen);
      input.setAttribute("aria-valuetext", shown(chosen));
      changed(chosen);
    },
  });
  return h("div", { class: "control" }, h("label", { for: id }, label), output, input);
}

/** A choice of one value. */
export function select(
  label: string,
  values: readonly string[],
  value: string,
  changed: (value: string) => void,
  shown: (value: string) => string = (text) => text,
): HTMLElement {
  const id = `control-${made++}`;
  const options = values.map((one) => h("option", { value: one, selected: one === value }, shown(one)));
  const input = h("select", { id, change: () => changed(input.value) }, ...options);
  return h("div", { class: "control" }, h("label", { for: id }, label), input);
}

/** A set of values, each with its colour. */
export function choices(
  label: string,
  values: readonly string[],
  chosen: readonly string[],
  changed: (chosen: string[]) => void,
): HTMLElement {
  const boxes = values.map((value) => {
    const box = h("input", {
      type: "checkbox",
      value,
      checked: chosen.includes(value),
      change: () => changed(boxes.map((one) => one.box).filter((one) => one.checked).map((one) => one.value)),
    });
    return { box, label: h("label", { class: `family ${className(value)}` }, box, h("span", { class: "swatch" }), value) };
  });
  return h("fieldset", {}, h("legend", {}, label), ...boxes.map((one) => one.label));
}

/** A box to tick. */
export function toggle(label: string, on: boolean, changed: (on: boolean) => void): HTMLElement {
  const box = h("input", { type: "checkbox", checked: on, change: () => changed(box.checked) });
  return h("label", { class: "control toggle" }, box, label);
}

/** A line of code with a button that copies it. */
export function codeBox(): { element: HTMLElement; show: (code: string) => void } {
  const text = h("code");
  const button = h("button", {
    type: "button",
    click: async () => {
      await copy(text.textContent ?? "");
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    },
  }, "Copy");
  const element = h("div", { class: "code" }, h("pre", { tabindex: 0 }, text), button);
  return { element, show: (code) => (text.textContent = code) };
}

async function copy(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // A page from disk may have no clipboard: copy a selection.
    const area = h("textarea", { "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

/** The class that carries the colour of a family. */
export function className(family: string): string {
  return `colour-${family.toLowerCase().replace(/[^a-z]+/g, "-")}`;
}
