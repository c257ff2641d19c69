/** A table that is sorted by its columns and whose rows can be chosen. */

import { h } from "./dom";

export interface Column<Row> {
  name: string;
  /** What a cell shows. */
  text: (row: Row) => string | Node;
  /** What rows are sorted by; without it the column cannot be sorted. */
  value?: (row: Row) => number | string | null;
  note?: boolean;
}

export class Table<Row> {
  readonly element: HTMLElement;
  private readonly head: HTMLElement;
  private readonly body = h("tbody");
  private by: { column: number; down: boolean } | null = null;
  private rows: Row[] = [];
  private chosen: Row | undefined;

  constructor(
    private readonly columns: Column<Row>[],
    private readonly options: { label: string; style?: (row: Row) => string; key?: (row: Row) => string; choose?: (row: Row) => void },
  ) {
    this.head = h("tr");
    this.element = h(
      "div",
      { class: "wide", tabindex: 0, role: "region", "aria-label": options.label },
      h("table", {}, h("thead", {}, this.head), this.body),
    );
  }

  /** Show these rows: in their order, until a column is sorted by. */
  show(rows: Row[], chosen?: Row): void {
    [this.rows, this.chosen] = [rows, chosen];
    this.head.replaceChildren(...this.columns.map((column, place) => this.heading(column, place)));
    this.body.replaceChildren(...this.sorted().map((row) => this.row(row, row === chosen)));
  }

  private heading(column: Column<Row>, place: number): HTMLElement {
    const attributes = { scope: "col", ...(column.note ? { class: "note" } : {}) };
    if (!column.value) return h("th", attributes, column.name);
    const own = this.by?.column === place ? this.by : null;
    const sort: Record<string, string> = own ? { "aria-sort": own.down ? "descending" : "ascending" } : {};
    const click = () => {
      this.by = { column: place, down: own ? !own.down : false };
      this.show(this.rows, this.chosen);
      this.head.children[place].querySelector("button")?.focus();
    };
    return h("th", { ...attributes, ...sort }, h("button", { type: "button", click }, column.name));
  }

  private sorted(): Row[] {
    if (!this.by) return this.rows;
    const { column, down } = this.by;
    const value = this.columns[column].value!;
    const known = (row: Row) => value(row) !== null;
    const order = (a: Row, b: Row): number => {
      const [first, second] = [value(a)!, value(b)!];
      const sign = typeof first === "number" ? first - (second as number) : String(first).localeCompare(String(second));
      return down ? -sign : sign;
    };
    return [...this.rows.filter(known).sort(order), ...this.rows.filter((row) => !known(row))];
  }

  private row(row: Row, chosen: boolean): HTMLElement {
    const { style, key, choose } = this.options;
    const name = [style?.(row) ?? "", chosen ? "chosen" : ""].join(" ").trim();
    const cells = this.columns.map((column, place) => {
      const content = column.text(row);
      if (place > 0) return h("td", column.note ? { class: "note" } : {}, content);
      if (!choose) return h("th", { scope: "row" }, content);
      return h("th", { scope: "row" }, h("button", { type: "button", "aria-pressed": String(chosen) }, content));
    });
    const attributes = { ...(name ? { class: name } : {}), ...(key ? { "data-key": key(row) } : {}) };
    return h("tr", { ...attributes, ...(choose ? { click: () => choose(row) } : {}) }, ...cells);
  }
}
