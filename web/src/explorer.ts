/** The explorer: four views of random features. All numbers come from tables.js; nothing is computed here. */

import { around, Chart, wholeDecades } from "./chart";
import { choices, className, codeBox, select, slider, toggle } from "./controls";
import { count, find, h, number, percent } from "./dom";
import { read, write, type State } from "./state";
import { errorsOf, tables, unpack, unpackBits } from "./tables";

const T = tables();
const texts = (values: readonly (string | number)[]): string[] => values.map(String);
const FAMILIES = Object.keys(T.families);
const ESTIMATORS = [...new Set(Object.keys(T.row.estimates).map((key) => key.split(" ")[0]))];
const TAUS = texts(T.head.settings.map((one) => one.tau));
const DRAWS = Array.from({ length: T.row.redraws }, (_, k) => String(k));
const VIEWS = ["angle", "row", "cost", "head"];

const DEFAULTS: State = {
  view: "angle",
  show: "Trigonometric,Positive,AngularHybrid",
  r: "1",
  m: "64",
  n: "8",
  sigma: "1",
  projection: "orthogonal",
  theta: "60",
  estimator: "Positive",
  width: String(T.row.m[1]),
  draw: "0",
  divided: "",
  radius: "1",
  map: "",
  tau: "1",
};
const ALLOWED = {
  view: VIEWS,
  r: texts(T.axes.r),
  m: texts(T.axes.m),
  n: texts(T.axes.n),
  sigma: texts(T.axes.sigma),
  projection: T.axes.projection,
  theta: texts(T.axes.theta),
  estimator: ESTIMATORS,
  width: texts(T.row.m),
  draw: DRAWS,
  divided: ["", "yes"],
  radius: texts(T.axes.r),
  tau: TAUS,
};
let state = read(DEFAULTS, ALLOWED);
/** Milliseconds that each change took to draw, for tests. */
const frames: number[] = ((window as any).frames_ms = []);

function set(changes: State): void {
  state = { ...state, ...changes };
  write(state, DEFAULTS);
  const start = performance.now();
  DRAW[state.view]();
  frames.push(performance.now() - start);
}

const control = (label: string, name: string, values: readonly string[], shown?: (value: string) => string) =>
  slider(label, values, state[name], (value) => set({ [name]: value }), shown);

function table(caption: string, heads: string[], rows: (string | Node)[][]): HTMLElement {
  return h(
    "table",
    {},
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, ...heads.map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, ...rows.map(([first, ...others]) => h("tr", {}, h("th", { scope: "row" }, first), ...others.map((cell) => h("td", {}, cell))))),
  );
}

const named = (family: string) => h("span", { class: `family ${className(family)}` }, h("span", { class: "swatch" }), family);

// Error over the angle.

const degrees = (value: number | string) => `${value}°`;
const shownFamilies = () => FAMILIES.filter((family) => state.show.split(",").includes(family));
const place = (name: "projection" | "sigma" | "m" | "n" | "r") => texts(T.axes[name]).indexOf(state[name]);
const places = () => ({ projection: place("projection"), sigma: place("sigma"), m: place("m"), n: place("n"), r: place("r") });

const angleChart = new Chart({
  label: "Relative error over the angle between x and y",
  hover: (theta) => {
    const nearest = T.axes.theta.reduce((best, one) => (Math.abs(one - theta) < Math.abs(best - theta) ? one : best));
    if (String(nearest) !== state.theta) set({ theta: String(nearest) });
  },
  step: (by) => {
    const next = T.axes.theta.indexOf(Number(state.theta)) + by;
    if (next >= 0 && next < T.axes.theta.length) set({ theta: String(T.axes.theta[next]) });
  },
});
const angleReadout = h("div", { class: "readout", "aria-live": "polite", id: "angle-readout" });

function drawAngle(): void {
  const chosen = places();
  const curves = shownFamilies().map((family) => ({ family, errors: errorsOf(family, chosen) }));
  const theta = T.axes.theta.indexOf(Number(state.theta));
  angleChart.draw({
    x: { label: "angle between x and y", range: [0, 180], ticks: [0, 45, 90, 135, 180], format: degrees },
    y: { label: "relative error √MSE / K", log: true, range: wholeDecades(curves.flatMap((one) => [...one.errors]), 1e-3) },
    curves: curves.map((one) => ({ class: className(one.family), points: [...one.errors].map((y, k) => [T.axes.theta[k], y]) })),
    at: Number(state.theta),
  });
  angleChart.element.setAttribute("aria-valuenow", state.theta);
  angleChart.element.setAttribute("aria-valuemin", "0");
  angleChart.element.setAttribute("aria-valuemax", "180");
  angleChart.element.setAttribute("aria-valuetext", degrees(state.theta));
  angleReadout.replaceChildren(
    table(
      `At ${degrees(state.theta)}`,
      ["estimator", "relative error", "FLOPs per vector"],
      curves.map(({ family, errors }) => [named(family), number(errors[theta]), count(T.flops[family][chosen.m][chosen.n])]),
    ),
  );
}

function angleView(): HTMLElement {
  return view(
    "angle",
    "Where is each estimator accurate?",
    `x and y have length r in ${T.dim} dimensions. Trigonometric features are exact for x = y and fail at wide angles, ` +
      "positive features the other way round; hybrids are small at both ends. Point at the chart, or use the arrow keys.",
    angleChart.element,
    [
      choices("Estimators", FAMILIES, shownFamilies(), (chosen) => set({ show: chosen.join(",") })),
      control("length r", "r", ALLOWED.r),
      control("projections m", "m", ALLOWED.m),
      control("projections n of the coefficient", "n", ALLOWED.n),
      control("steepness σ (Gaussian)", "sigma", ALLOWED.sigma),
      select("projection", T.axes.projection, state.projection, (value) => set({ projection: value })),
    ],
    angleReadout,
  );
}

// One softmax row.

const rowReadout = h("div", { class: "readout", id: "row-readout" });
const rowChart = new Chart({ label: "One softmax row: exact weights and their estimates" });
let playing = 0;

function drawRow(): void {
  const found = T.row.estimates[`${state.estimator} ${state.width}`];
  const [draws, mean] = state.divided ? [found.divided, found.dividedMean] : [found.shares, found.mean];
  const now = draws[Number(state.draw)];
  const colour = className(state.estimator);
  const most = Math.max(...T.row.exact);
  const range: [number, number] = [-0.5 * most, 2 * most];
  const keep = (y: number) => Math.min(range[1], Math.max(range[0], y));
  const step = most > 0.2 ? 0.1 : 0.05;
  const ticks = Array.from({ length: 60 }, (_, k) => (k - 20) * step).filter((y) => y >= range[0] && y <= range[1]);
  const keys = T.row.exact.length;
  rowChart.draw({
    x: { label: "key, heaviest first", range: [0, keys + 1], ticks: [1, keys / 2, keys], format: String },
    y: { label: "weight", range, ticks, format: (y) => percent(Math.round(1e3 * y) / 1e3) },
    curves: [
      ...T.row.exact.map((y, k) => ({ class: "exact-bar", points: [[k + 1, 0], [k + 1, y]] as [number, number][] })),
      ...T.row.exact.map((_, k) => {
        const all = draws.map((one) => keep(one[k]));
        return { class: `cloud ${colour}`, points: [[k + 1, Math.min(...all)], [k + 1, Math.max(...all)]] as [number, number][] };
      }),
      { class: "zero", points: [[0, 0], [keys + 1, 0]] },
    ],
    dots: [
      ...mean.map((y, k) => ({ key: `mean ${k}`, class: "mean", label: "", x: k + 1, y: keep(y) })),
      ...now.map((y, k) => ({ key: `draw ${k}`, class: `${colour} small${y < 0 ? " negative" : ""}`, label: "", x: k + 1, y: keep(y) })),
    ],
  });
  const negative = now.filter((y) => y < 0).length;
  rowReadout.replaceChildren(
    table(
      `Draw ${Number(state.draw) + 1} of ${T.row.redraws}`,
      ["weight", "exact", "this draw", "mean of all draws"],
      [["heaviest key", percent(T.row.exact[0]), percent(now[0]), percent(mean[0])]],
    ),
    h("p", {}, negative ? `${negative} of ${keys} weights are negative.` : "No weight is negative."),
    rowCode.element,
  );
  rowCode.show(found.code);
}

const rowCode = codeBox();

function play(button: HTMLButtonElement): void {
  if (playing) {
    clearInterval(playing);
    playing = 0;
  } else {
    playing = window.setInterval(() => {
      if (state.view !== "row") return play(button);
      const next = (Number(state.draw) + 1) % T.row.redraws;
      const input = button.closest("section")?.querySelector<HTMLInputElement>("[data-name=draw] input");
      if (input) {
        input.value = String(next);
        input.dispatchEvent(new Event("input"));
      }
    }, 250);
  }
  button.textContent = playing ? "Pause" : "Play";
  button.setAttribute("aria-pressed", String(Boolean(playing)));
}

function rowView(): HTMLElement {
  const button = h("button", { type: "button", "aria-pressed": "false", click: () => play(button) }, "Play");
  const draw = control("draw", "draw", DRAWS, (value) => String(Number(value) + 1));
  draw.dataset.name = "draw";
  return view(
    "row",
    "One row of softmax, drawn again and again",
    `One query and ${T.row.exact.length} keys of length ${T.row.radius} in ${T.row.dim} dimensions. Grey bars are exact; ` +
      "coloured dots are one draw, coloured lines reach over all draws (cut at the edges), rings are their mean: rings off " +
      "the bars are bias.",
    rowChart.element,
    [
      select("estimator", ESTIMATORS, state.estimator, (value) => set({ estimator: value })),
      control("projections m", "width", ALLOWED.width),
      draw,
      button,
      toggle("divide by the estimated total, as attention does", Boolean(state.divided), (on) => set({ divided: on ? "yes" : "" })),
    ],
    rowReadout,
  );
}

// FLOPs against the worst error.

const costCode = codeBox();
const costReadout = h("div", { class: "readout", "aria-live": "polite", id: "cost-readout" });
const costChart = new Chart({
  label: "Worst relative error against FLOPs per vector, one dot per map",
  point: (key) => key !== null && showMap(Number(key)),
  choose: (key) => set({ map: key }),
});

/** Places of the maps that no other map beats in both, cheapest first. */
function pareto(worst: (k: number) => number): number[] {
  const order = T.maps.map((_, k) => k).sort((a, b) => T.maps[a].flops - T.maps[b].flops || worst(a) - worst(b));
  let best = Infinity;
  return order.filter((k) => worst(k) < best && ((best = worst(k)), true));
}

function showMap(k: number): void {
  const map = T.maps[k];
  costReadout.replaceChildren(
    table("Chosen map", ["family", "worst error", "FLOPs per vector"], [[named(map.family), number(map.worst[radius()]), count(map.flops)]]),
    costCode.element,
  );
  costCode.show(map.code.replace("RADIUS", state.radius));
}

const radius = () => texts(T.axes.r).indexOf(state.radius);

function drawCost(): void {
  const worst = (k: number) => T.maps[k].worst[radius()];
  const best = pareto(worst);
  const chosen = state.map && T.maps[Number(state.map)] ? Number(state.map) : best[Math.floor(best.length / 2)];
  costChart.draw({
    x: { label: "FLOPs per vector", log: true, range: around(T.maps.map((one) => one.flops), 1), format: count },
    y: { label: "worst relative error over the angle", log: true, range: around(T.maps.map((_, k) => worst(k)), 1e-4) },
    curves: [{ class: "pareto", points: best.map((k) => [T.maps[k].flops, worst(k)]) }],
    dots: T.maps.map((map, k) => ({
      key: String(k),
      class: `${className(map.family)}${best.includes(k) ? "" : " faded"}${k === chosen ? " chosen" : ""}`,
      label: `${map.family}, ${count(map.flops)} FLOPs, worst error ${number(worst(k))}`,
      x: map.flops,
      y: worst(k),
    })),
  });
  showMap(chosen);
}

function costView(): HTMLElement {
  return view(
    "cost",
    "What does accuracy cost?",
    `Every dot is a map for ${T.dim} dimensions: its worst relative error over all angles at length r, against the FLOPs to ` +
      "map one vector. The line joins maps that no other beats in both. Choose a dot to get the Python that builds it.",
    costChart.element,
    [
      control("length r", "radius", ALLOWED.radius),
      h("p", { class: "legend" }, ...FAMILIES.map(named)),
    ],
    costReadout,
  );
}

// Summarised attention of a real head.

const canvas = h("canvas", {
  width: T.head.tokens,
  height: T.head.tokens,
  role: "img",
  "aria-label": "Pairs of queries and keys: summarised in grey, computed exactly in colour",
});
const headReadout = h("div", { class: "readout", "aria-live": "polite", id: "head-readout" });
const pairReadout = h("p", { id: "pair-readout" }, "Point at a pair.");
let weights: Float64Array | null = null;
let exact = new Uint8Array();

function drawHead(): void {
  const found = T.head.settings[TAUS.indexOf(state.tau)];
  const n = T.head.tokens;
  weights ??= unpack(T.head.weights);
  exact = unpackBits(found.pairs, n * n);
  const context = canvas.getContext("2d")!;
  const image = context.createImageData(n, n);
  const [edgeRows, edgeColumns] = T.head.sizes.map((sizes) => {
    let end = 0;
    return new Set(sizes.map((size) => (end += size) - 1));
  });
  for (let k = 0; k < n * n; k++) {
    // From one millionth of a row's weight, white, to all of it, black.
    const depth = Math.min(1, Math.max(0, 1 + Math.log10(weights[k]) / 6));
    const grey = 250 - 200 * depth;
    const [red, green, blue] = exact[k] ? [213 * (0.45 + 0.55 * depth), 94 * depth + 40, 20] : [grey, grey, grey];
    const edge = edgeRows.has(Math.floor(k / n)) || edgeColumns.has(k % n) ? 0.86 : 1;
    image.data.set([red * edge, green * edge, blue * edge, 255], 4 * k);
  }
  context.putImageData(image, 0, 0);
  headReadout.replaceChildren(
    table(`τ = ${state.tau}`, ["pairs computed exactly", "error of the output"], [[percent(found.share), number(found.error)]]),
  );
}

function pairAt(event: PointerEvent): void {
  const box = canvas.getBoundingClientRect();
  const n = T.head.tokens;
  const at = (share: number) => Math.min(n - 1, Math.max(0, Math.floor(share * n)));
  const [row, column] = [at((event.clientY - box.top) / box.height), at((event.clientX - box.left) / box.width)];
  const within = (sizes: number[], token: number) => {
    let end = 0;
    return sizes.findIndex((size) => token < (end += size)) + 1;
  };
  const weight = weights?.[row * n + column] ?? 0;
  const how = exact[row * n + column] ? "computed exactly" : "summarised";
  pairReadout.textContent =
    `Group ${within(T.head.sizes[0], row)}, cluster ${within(T.head.sizes[1], column)}: weight ` +
    `${weight <= 1.01e-6 ? "below 10⁻⁶" : number(weight)}, ${how}.`;
}

function headView(): HTMLElement {
  canvas.addEventListener("pointermove", (event) => pairAt(event as PointerEvent));
  const swatch = (name: string, text: string) => h("span", { class: "family" }, h("span", { class: `swatch ${name}` }), text);
  return view(
    "head",
    "Summarised attention of a real head",
    `Layer ${T.head.layer + 1}, head ${T.head.head + 1} of MiniLM-L6 on ${T.head.tokens} tokens of WikiText-2. Rows are queries in ` +
      "the order of their groups, columns are keys in the order of their clusters. A group reads a summary of each cluster, " +
      "except for the pairs in colour, which are computed exactly. Smaller τ, more exact pairs.",
    h("div", { class: "matrix" }, canvas),
    [
      control("tolerance τ", "tau", TAUS),
      h("p", { class: "legend" }, swatch("exact", "exact"), swatch("summary", "summarised, darker is heavier")),
    ],
    h("div", {}, headReadout, pairReadout),
  );
}

// The page.

const DRAW: Record<string, () => void> = { angle: drawAngle, row: drawRow, cost: drawCost, head: drawHead };
const TITLES: Record<string, string> = { angle: "Angle", row: "One row", cost: "Cost", head: "Attention" };

function view(name: string, title: string, text: string, chart: HTMLElement, controls: HTMLElement[], readout: HTMLElement): HTMLElement {
  return h(
    "section",
    { id: `view-${name}`, role: "tabpanel", "aria-labelledby": `tab-${name}`, hidden: state.view !== name },
    h("h2", {}, title),
    h("p", { class: "about" }, text),
    h("div", { class: "split" }, chart, h("div", { class: "side" }, h("div", { class: "controls" }, ...controls), readout)),
  );
}

function open(name: string): void {
  for (const one of VIEWS) {
    const tab = find(`tab-${one}`);
    tab.setAttribute("aria-selected", String(one === name));
    tab.tabIndex = one === name ? 0 : -1;
    find(`view-${one}`).hidden = one !== name;
  }
  set({ view: name });
}

function build(): void {
  const tabs = VIEWS.map((name) =>
    h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `view-${name}`, click: () => open(name) }, TITLES[name]),
  );
  const list = h("div", { role: "tablist", "aria-label": "Views", keydown: (event: KeyboardEvent) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    const next = VIEWS[(VIEWS.indexOf(state.view) + by + VIEWS.length) % VIEWS.length];
    open(next);
    find(`tab-${next}`).focus();
  } }, ...tabs);
  find("app").replaceChildren(list, angleView(), rowView(), costView(), headView());
  open(state.view);
}

build();
window.addEventListener("hashchange", () => {
  state = read(DEFAULTS, ALLOWED);
  build();
});
