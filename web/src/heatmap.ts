/** A heat map as a table: every cell has its number, and a colour from light to dark. */

import { h } from "./dom";

export interface Heat {
  caption: string;
  corner: string;
  rows: string[];
  columns: string[];
  /** By row and column; null where there is no number. */
  values: (number | null)[][];
  format: (value: number) => string;
  /** Colours by the logarithm, for numbers of many sizes. */
  log?: boolean;
  chosen?: [number, number];
  choose?: (row: number, column: number) => void;
}

export function heatmap(heat: Heat): HTMLElement {
  const known = heat.values.flat().filter((value): value is number => value !== null && (!heat.log || value > 0));
  const scale = (value: number) => (heat.log ? Math.log(value) : value);
  const [low, high] = known.length ? [scale(Math.min(...known)), scale(Math.max(...known))] : [0, 1];
  const depth = (value: number) => (heat.log && value <= 0 ? 0 : high > low ? (scale(value) - low) / (high - low) : 0.5);
  const cell = (value: number | null, row: number, column: number): HTMLElement => {
    if (value === null) return h("td", {}, "–");
    const shade = Math.min(1, Math.max(0, depth(value)));
    const text = heat.format(value);
    const label = `${heat.rows[row]}, ${heat.columns[column]}: ${text}`;
    const content = heat.choose
      ? h("button", { type: "button", "aria-label": label, click: () => heat.choose?.(row, column) }, text)
      : text;
    const chosen = heat.chosen?.[0] === row && heat.chosen?.[1] === column;
    return h("td", { style: colours(shade), title: label, ...(chosen ? { class: "chosen" } : {}) }, content);
  };
  return h(
    "div",
    { class: "wide", tabindex: 0, role: "region", "aria-label": heat.caption },
    h(
      "table",
      { class: "heat" },
      h("caption", {}, heat.caption),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, heat.corner), ...heat.columns.map((text) => h("th", { scope: "col" }, text)))),
      h(
        "tbody",
        {},
        ...heat.rows.map((name, row) =>
          h("tr", {}, h("th", { scope: "row", title: name }, name), ...heat.values[row].map((value, column) => cell(value, row, column))),
        ),
      ),
    ),
  );
}

/** From pale yellow to dark violet, with black or white ink, whichever is easier to read. */
function colours(shade: number): string {
  const stops = [[253, 246, 210], [250, 190, 110], [196, 66, 66], [100, 26, 84]];
  const place = shade * (stops.length - 1);
  const first = Math.min(stops.length - 2, Math.floor(place));
  const mixed = stops[first].map((from, k) => Math.round(from + (stops[first + 1][k] - from) * (place - first)));
  const [red, green, blue] = mixed.map((value) => (value <= 10 ? value / 3294 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  const luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue; // as WCAG defines it
  return `--heat: rgb(${mixed.join(",")}); --heat-ink: ${luminance < 0.179 ? "#fff" : "#000"}`;
}
