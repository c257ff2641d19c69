/** The numbers of the explorer, as web/tables.py wrote them. */

export interface Packed {
  low: number;
  high: number;
  data: string;
}

export interface Tables {
  dim: number;
  axes: {
    projection: string[];
    sigma: number[];
    m: number[];
    n: number[];
    r: number[];
    theta: number[];
  };
  /** The axes that matter to each family, outermost first. */
  families: Record<string, (keyof Tables["axes"])[]>;
  errors: Record<string, Packed>;
  /** FLOPs per vector by m and n. */
  flops: Record<string, number[][]>;
  maps: { family: string; code: string; flops: number; worst: number[] }[];
  row: {
    dim: number;
    radius: number;
    m: number[];
    redraws: number;
    exact: number[];
    estimates: Record<string, Estimates>;
  };
  head: {
    tokens: number;
    layer: number;
    head: number;
    sizes: [number[], number[]];
    settings: { tau: number; error: number; share: number; pairs: string }[];
    weights: Packed;
  };
}

export interface Estimates {
  code: string;
  /** Shares of the exact total: one row per redraw, and the mean over all of them. */
  shares: number[][];
  mean: number[];
  /** The same divided by the estimated total, as attention does. */
  divided: number[][];
  dividedMean: number[];
}

declare global {
  interface Window {
    HRF: Tables;
  }
}

export const tables = (): Tables => window.HRF;

const bytes = (data: string): Uint8Array => Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));

/** Unpack positive numbers: 16 bits each on a logarithmic scale, 0 for zero. */
export function unpack({ low, high, data }: Packed): Float64Array {
  const raw = new DataView(bytes(data).buffer);
  const found = new Float64Array(raw.byteLength / 2);
  for (let k = 0; k < found.length; k++) {
    const step = raw.getUint16(2 * k, true);
    found[k] = step === 0 ? 0 : Math.exp(low + ((step - 1) / 65534) * (high - low));
  }
  return found;
}

/** Unpack bits, the first of a byte in its highest place. */
export function unpackBits(data: string, n: number): Uint8Array {
  const raw = bytes(data);
  return Uint8Array.from({ length: n }, (_, k) => (raw[k >> 3] >> (7 - (k & 7))) & 1);
}

const unpacked: Record<string, Float64Array> = {};

/** The errors of a family over the angle, for the chosen places on its other axes. */
export function errorsOf(family: string, places: Record<string, number>): Float64Array {
  const { axes, families, errors } = tables();
  const all = (unpacked[family] ??= unpack(errors[family]));
  const own = families[family];
  let start = 0;
  for (const name of own.slice(0, -1)) start = start * axes[name].length + places[name];
  const length = axes.theta.length;
  return all.subarray(start * length, (start + 1) * length);
}
