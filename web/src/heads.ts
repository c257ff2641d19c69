/** The page of a model: errors and exact shares of all heads of all layers, worst heads first. */

import { select } from "./controls";
import { h, number, percent } from "./dom";
import { heatmap } from "./heatmap";
import { Table } from "./table";

export interface HeadsData {
  kind: "heads";
  /** What a row is: "layer" or "call". */
  row: string;
  layers: string[];
  /** By layer and head; layers may have different numbers of heads. */
  errors: (number | null)[][];
  shares: number[][];
}

interface Head {
  layer: number;
  head: number;
  error: number;
  share: number;
}

export function headsPage(data: HeadsData): HTMLElement[] {
  const heads: Head[] = data.errors.flatMap((errors, layer) =>
    errors.map((error, head) => ({ layer, head, error: error ?? Infinity, share: data.shares[layer][head] })),
  );
  heads.sort((a, b) => b.error - a.error);
  const most = Math.max(...data.errors.map((errors) => errors.length));
  const map = h("div");
  const padded = (numbers: (number | null)[]) => Array.from({ length: most }, (_, k) => numbers[k] ?? null);

  function draw(kind: string): void {
    const errors = kind === "error";
    map.replaceChildren(
      heatmap({
        caption: errors ? "Relative error of the output, by head" : "Share of pairs computed exactly, by head",
        corner: data.row,
        rows: data.layers,
        columns: Array.from({ length: most }, (_, k) => `${k}`),
        values: (errors ? data.errors : data.shares).map(padded),
        format: errors ? number : percent,
        log: errors,
      }),
    );
  }

  const table = new Table<Head>(
    [
      { name: data.row, text: (one) => data.layers[one.layer], value: (one) => one.layer },
      { name: "head", text: (one) => String(one.head), value: (one) => one.head },
      { name: "error", text: (one) => number(one.error), value: (one) => one.error },
      { name: "exact pairs", text: (one) => percent(one.share), value: (one) => one.share },
    ],
    { label: "Heads, worst first" },
  );
  table.show(heads);
  draw("error");
  return [
    h("h2", {}, "All heads"),
    h("div", { class: "controls row" }, select("colour by", ["error", "share"], "error", draw, (kind) => (kind === "error" ? "error" : "exact pairs"))),
    map,
    h("h2", {}, "Heads, worst first"),
    table.element,
  ];
}
