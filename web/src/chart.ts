/** A chart in SVG: axes, curves and dots, drawn anew for every state and size. */

import { h, s } from "./dom";

export interface Axis {
  label: string;
  range: [number, number];
  log?: boolean;
  ticks?: number[];
  format?: (value: number) => string;
}

export interface Curve {
  class: string;
  points: [number, number][];
}

export interface Dot {
  key: string;
  class: string;
  label: string;
  x: number;
  y: number;
  /** Ends of an interval of y. */
  low?: number;
  high?: number;
}

export interface Drawing {
  x: Axis;
  y: Axis;
  curves?: Curve[];
  dots?: Dot[];
  /** Lines across the chart, at values of y, with their names. */
  rules?: { y: number; label: string }[];
  /** A line at this x. */
  at?: number;
}

interface Options {
  label: string;
  /** Called with a value of x where the pointer is. */
  hover?: (x: number) => void;
  /** Called with −1 or 1 where arrow keys are pressed. */
  step?: (by: number) => void;
  point?: (key: string | null) => void;
  choose?: (key: string) => void;
}

const MARGIN = { left: 62, right: 14, top: 12, bottom: 46 };

const unit = (axis: Axis, value: number): number => {
  const [low, high] = axis.range;
  return axis.log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
};

const back = (axis: Axis, share: number): number => {
  const [low, high] = axis.range;
  return axis.log ? low * (high / low) ** share : low + share * (high - low);
};

/** Round numbers inside a range: 1, 2 and 5 times powers of ten where these are few, else powers of ten. */
function roundNumbers([low, high]: [number, number]): number[] {
  if (high / low < 300) {
    const first = Math.floor(Math.log10(low));
    const all = Array.from({ length: 5 }, (_, k) => [1, 2, 5].map((digit) => digit * 10 ** (first + k))).flat();
    return all.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  }
  const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  const step = Math.max(1, Math.ceil((last - first) / 7));
  return Array.from({ length: Math.floor((last - first) / step) + 1 }, (_, k) => 10 ** (first + k * step));
}

/** A range with some room around positive numbers. */
export function around(values: number[], least: number): [number, number] {
  const some = values.filter((value) => value > 0 && Number.isFinite(value));
  if (!some.length) return [least, 1];
  return [Math.max(least, Math.min(...some)) / 1.5, Math.max(least, ...some) * 1.5];
}

/** Widen a range of positive numbers to whole powers of ten. */
export function wholeDecades(values: number[], least: number): [number, number] {
  const some = values.filter((value) => value > 0 && Number.isFinite(value));
  if (!some.length) return [least, 1];
  const low = 10 ** Math.floor(Math.log10(Math.max(least, Math.min(...some))));
  return [low, Math.max(10 * low, 10 ** Math.ceil(Math.log10(Math.max(...some)) - 1e-9))];
}

export class Chart {
  readonly element: HTMLElement;
  private readonly svg: SVGElement;
  private drawing: Drawing | null = null;
  private clip = `clip-${Math.random().toString(36).slice(2)}`;

  constructor(private readonly options: Options) {
    const { hover, step } = options;
    this.svg = s("svg", { role: options.choose ? "group" : "img", "aria-label": options.label });
    if (hover) {
      this.svg.addEventListener("pointermove", (event) => this.moved(event as PointerEvent));
      this.svg.addEventListener("pointerdown", (event) => this.moved(event as PointerEvent));
    }
    this.element = h("div", { class: "chart" });
    this.element.append(this.svg);
    if (step) {
      this.element.tabIndex = 0;
      this.element.setAttribute("role", "slider");
      this.element.setAttribute("aria-label", `${options.label}. Arrow keys move along it.`);
      this.element.addEventListener("keydown", (event) => {
        const by = { ArrowLeft: -1, ArrowRight: 1 }[(event as KeyboardEvent).key];
        if (by) {
          event.preventDefault();
          step(by);
        }
      });
    }
    new ResizeObserver(() => this.drawing && this.draw(this.drawing)).observe(this.element);
  }

  private get size(): [number, number] {
    const width = Math.max(280, this.element.clientWidth);
    return [width, Math.round(Math.min(440, Math.max(280, width * 0.55)))];
  }

  private moved(event: PointerEvent): void {
    if (!this.drawing) return;
    const [width] = this.size;
    const place = event.clientX - this.svg.getBoundingClientRect().left - MARGIN.left;
    const share = place / (width - MARGIN.left - MARGIN.right);
    this.options.hover?.(back(this.drawing.x, Math.min(1, Math.max(0, share))));
  }

  /** Draw; what lies outside the axes is cut off. */
  draw(drawing: Drawing): void {
    this.drawing = drawing;
    const [width, height] = this.size;
    const inner = [width - MARGIN.left - MARGIN.right, height - MARGIN.top - MARGIN.bottom];
    const X = (x: number) => MARGIN.left + unit(drawing.x, x) * inner[0];
    const Y = (y: number) => MARGIN.top + (1 - unit(drawing.y, y)) * inner[1];
    const focused = (document.activeElement as Element | null)?.getAttribute("data-key");
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(
      s("clipPath", { id: this.clip }, s("rect", { x: MARGIN.left, y: MARGIN.top, width: inner[0], height: inner[1] })),
      ...this.axes(drawing, X, Y, width, height),
      ...(drawing.rules ?? []).flatMap((rule) => this.rule(rule, X(drawing.x.range[0]), width - MARGIN.right, Y)),
      ...(drawing.at === undefined ? [] : [line(X(drawing.at), MARGIN.top, X(drawing.at), height - MARGIN.bottom, "at")]),
      s("g", { "clip-path": `url(#${this.clip})` }, ...(drawing.curves ?? []).map((curve) => this.curve(curve, drawing, X, Y))),
      ...(drawing.dots ?? []).map((dot) => this.dot(dot, drawing, X, Y)),
    );
    if (focused) {
      const again = [...this.svg.querySelectorAll<SVGElement>("[data-key]")].find((one) => one.dataset.key === focused);
      again?.focus();
    }
  }

  /** Leave out ticks whose texts would touch: no two closer than 52 px along x. */
  private apart(values: number[], X: (x: number) => number): number[] {
    return values.filter((x, k) => values.slice(k + 1).every((later) => X(later) - X(x) >= 52));
  }

  private axes(drawing: Drawing, X: (x: number) => number, Y: (y: number) => number, width: number, height: number): SVGElement[] {
    const ticks = (axis: Axis) => axis.ticks ?? (axis.log ? roundNumbers(axis.range) : []);
    const text = (axis: Axis, value: number) => (axis.format ? axis.format(value) : power(value));
    return [
      ...ticks(drawing.y).flatMap((y) => [
        line(MARGIN.left, Y(y), width - MARGIN.right, Y(y), "grid"),
        s("text", { x: MARGIN.left - 8, y: Y(y) + 4, "text-anchor": "end" }, text(drawing.y, y)),
      ]),
      ...this.apart(ticks(drawing.x), X).flatMap((x) => [
        line(X(x), MARGIN.top, X(x), height - MARGIN.bottom, "grid"),
        s("text", { x: X(x), y: height - MARGIN.bottom + 18, "text-anchor": X(x) > width - 40 ? "end" : "middle" }, text(drawing.x, x)),
      ]),
      s("text", { x: width / 2, y: height - 8, "text-anchor": "middle", class: "label" }, drawing.x.label),
      s("text", { transform: `translate(14 ${height / 2 - 10}) rotate(-90)`, "text-anchor": "middle", class: "label" }, drawing.y.label),
    ];
  }

  private rule(rule: { y: number; label: string }, left: number, right: number, Y: (y: number) => number): SVGElement[] {
    if (!this.drawing || rule.y < this.drawing.y.range[0] || rule.y > this.drawing.y.range[1]) return [];
    return [
      line(left, Y(rule.y), right, Y(rule.y), "rule"),
      s("text", { x: right - 4, y: Y(rule.y) - 5, "text-anchor": "end", class: "label" }, rule.label),
    ];
  }

  private curve(curve: Curve, drawing: Drawing, X: (x: number) => number, Y: (y: number) => number): SVGElement {
    const least = drawing.y.range[0];
    const places = curve.points.map(([x, y]) => `${X(x).toFixed(1)},${Y(drawing.y.log ? Math.max(y, least / 10) : y).toFixed(1)}`);
    return s("polyline", { class: `curve ${curve.class}`, points: places.join(" ") });
  }

  private dot(dot: Dot, drawing: Drawing, X: (x: number) => number, Y: (y: number) => number): SVGElement {
    const { point, choose } = this.options;
    const [least, most] = drawing.y.range;
    const inside = (y: number) => Math.min(most, Math.max(least, y));
    const pick = () => choose?.(dot.key);
    const interval =
      dot.low === undefined || dot.high === undefined ? [] : [line(X(dot.x), Y(inside(dot.low)), X(dot.x), Y(inside(dot.high)), "interval")];
    return s(
      "g",
      {
        class: `dot ${dot.class}`,
        "data-key": dot.key,
        tabindex: choose ? 0 : -1,
        ...(choose ? { role: "button", "aria-label": dot.label } : { role: "presentation" }),
        pointerenter: () => point?.(dot.key),
        pointerleave: () => point?.(null),
        focus: () => point?.(dot.key),
        click: pick,
        keydown: (event: KeyboardEvent) => {
          if (event.key === "Enter" || event.key === " ") {
            event.preventDefault();
            pick();
          }
        },
      },
      ...interval,
      s("circle", { cx: X(dot.x), cy: Y(inside(dot.y)), r: 6 }),
    );
  }
}

function line(x1: number, y1: number, x2: number, y2: number, name: string): SVGElement {
  return s("line", { x1, y1, x2, y2, class: name });
}

const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

function power(value: number): string {
  if (value >= 0.01 && value <= 1000) return String(Number(value.toPrecision(2)));
  const exponent = Math.floor(Math.log10(value) + 1e-9);
  const digit = Math.round(value / 10 ** exponent);
  const digits = [...String(Math.abs(exponent))].map((digit) => SUPERSCRIPTS[Number(digit)]).join("");
  return `${digit === 1 ? "" : `${digit}·`}10${exponent < 0 ? "⁻" : ""}${digits}`;
}
