/** The page of `hrf advise`: errors and costs of all maps, by head and budget, and the Python that rebuilds one. */

import { around, Chart } from "./chart";
import { choices, className, codeBox, select, slider } from "./controls";
import { count, h, number } from "./dom";
import { heatmap } from "./heatmap";
import { Table } from "./table";

interface Candidate {
  name: string;
  family: string;
  /** The budget that the map was sized for. */
  budget: number;
  width: number;
  state: number;
  flops: number;
  micros: number;
  error: number;
  low: number;
  high: number;
  predicted: number | null;
  ranked: boolean;
  note: string;
  code: string;
}

export interface AdviceData {
  kind: "advice";
  error: string;
  reference: string;
  unit: string;
  heads: { name: string; uniform: number | null; maps: Candidate[] }[];
}

const COSTS = { width: "active features per vector", flops: "FLOPs per vector", micros: "µs per vector, measured" } as const;

export function advicePage(data: AdviceData): HTMLElement[] {
  const budgets = [...new Set(data.heads.flatMap((head) => head.maps.map((map) => map.budget)))].sort((a, b) => a - b);
  const families = [...new Set(data.heads.flatMap((head) => head.maps.map((map) => map.family)))];
  const several = data.heads.length > 1;
  let [head, shown, cost] = [0, families, "flops" as keyof typeof COSTS];
  let budget = budgets[budgets.length - 1];
  let chosen: Candidate | null = null;

  const visible = () => data.heads[head].maps.filter((map) => map.budget === budget && shown.includes(map.family));
  const best = () => visible().filter((map) => map.ranked)[0] ?? null;

  const readout = h("p", { class: "readout", "aria-live": "polite", id: "advice-readout" });
  const code = codeBox();
  const heat = h("div");
  const chart = new Chart({
    label: "Error against cost, one dot per map",
    point: (key) => describe(key === null ? chosen : visible()[Number(key)]),
    choose: (key) => choose(visible()[Number(key)]),
  });
  const family = (map: Candidate) => h("span", { class: `family ${className(map.family)}` }, h("span", { class: "swatch" }), map.name);
  const table = new Table<Candidate>(
    [
      { name: "map", text: family, value: (map) => map.name },
      { name: "width", text: (map) => count(map.width), value: (map) => map.width },
      { name: "state", text: (map) => count(map.state), value: (map) => map.state },
      { name: "FLOPs", text: (map) => count(map.flops), value: (map) => map.flops },
      { name: "µs", text: (map) => map.micros.toFixed(1), value: (map) => map.micros },
      { name: "error", text: (map) => number(map.error), value: (map) => map.error },
      { name: "95 % interval", text: interval },
      { name: "kernel ε", text: (map) => (map.predicted === null ? "–" : number(map.predicted)), value: (map) => map.predicted },
      { name: "note", text: (map) => map.note, note: true },
    ],
    { label: "All maps", style: (map) => (map === best() ? "best" : ""), key: (map) => map.name, choose: (map) => choose(map) },
  );

  function interval(map: Candidate): string {
    if (map.low === map.high) return map.low === 0 ? "exact" : "no draws";
    return `${number(map.low)}–${number(map.high)}`;
  }

  function describe(map: Candidate | null): void {
    readout.textContent = map
      ? `${map.name} (${map.family}): error ${number(map.error)}, ${interval(map)}; width ${count(map.width)}, ` +
        `${count(map.flops)} FLOPs per vector${map.ranked ? "" : "; not ranked"}`
      : "No map is left: show more families.";
    code.show(map ? map.code : "");
  }

  function choose(map: Candidate | null): void {
    chosen = map;
    draw();
  }

  function draw(): void {
    const maps = visible();
    if (!chosen || !maps.includes(chosen)) chosen = best() ?? maps[0] ?? null;
    const uniform = data.heads[head].uniform;
    const errors = maps.map((map) => map.error).filter((error) => error < 20 * (uniform ?? Infinity));
    chart.draw({
      x: { label: COSTS[cost], log: true, range: around(maps.map((map) => map[cost]), 1e-6), format: cost === "micros" ? number : count },
      y: { label: data.error, log: true, range: around([...errors, ...(uniform ? [uniform] : [])], 1e-6) },
      rules: uniform ? [{ y: uniform, label: data.reference }] : [],
      dots: maps.map((map, k) => ({
        key: String(k),
        class: `${className(map.family)}${map.ranked ? "" : " open"}${map === chosen ? " chosen" : ""}`,
        label: `${map.name}: error ${number(map.error)}, width ${count(map.width)}`,
        x: map[cost],
        y: map.error,
        low: map.low,
        high: map.high,
      })),
    });
    table.show(maps, chosen ?? undefined);
    describe(chosen);
    for (const part of [chart.element, code.element]) part.hidden = !maps.length;
    if (several) drawHeat();
  }

  function drawHeat(): void {
    const names = [...new Set(data.heads.flatMap((one) => one.maps.filter((map) => map.ranked && map.budget === budget && shown.includes(map.family)).map((map) => map.name)))];
    const of = (name: string, place: number) => data.heads[place].maps.find((map) => map.name === name && map.budget === budget) ?? null;
    heat.replaceChildren(
      heatmap({
        caption: `${data.error}, by map and head`,
        corner: "map",
        rows: names,
        columns: data.heads.map((one) => one.name),
        values: names.map((name) => data.heads.map((_, place) => of(name, place)?.error ?? null)),
        format: number,
        log: true,
        chosen: [chosen ? names.indexOf(chosen.name) : -1, head],
        choose: (row, column) => {
          head = column;
          chosen = of(names[row], column);
          const input = controls.querySelector("select[data-name=head]") as HTMLSelectElement | null;
          if (input) input.value = String(column);
          draw();
        },
      }),
    );
  }

  const heads = select("head", data.heads.map((_, k) => String(k)), "0", (value) => {
    head = Number(value);
    chosen = null;
    draw();
  }, (value) => data.heads[Number(value)].name);
  heads.querySelector("select")!.dataset.name = "head";
  const controls = h(
    "div",
    { class: "controls row" },
    choices("Families", families, families, (some) => ((shown = some), draw())),
    ...(several ? [heads] : []),
    ...(budgets.length > 1
      ? [slider(`budget (${data.unit})`, budgets.map(String), String(budget), (value) => ((budget = Number(value)), draw()), (value) => count(Number(value)))]
      : []),
    select("cost", Object.keys(COSTS), cost, (value) => ((cost = value as keyof typeof COSTS), draw()), (value) => COSTS[value as keyof typeof COSTS]),
  );
  draw();
  return [
    h("h2", {}, "Error against cost"),
    controls,
    ...(several ? [heat] : []),
    chart.element,
    readout,
    code.element,
    h("h2", {}, "All maps"),
    table.element,
  ];
}
