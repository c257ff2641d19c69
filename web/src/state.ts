/** The state of a page lives in its address, so that a link shows what its sender saw. */

export type State = Record<string, string>;

/** Read the address; what it does not say, or what is not allowed, has its first value. */
export function read(defaults: State, allowed: Record<string, readonly string[]> = {}): State {
  const given = new URLSearchParams(location.hash.slice(1));
  const state = { ...defaults };
  for (const name of Object.keys(defaults)) {
    const value = given.get(name);
    if (value !== null && (!allowed[name] || allowed[name].includes(value))) state[name] = value;
  }
  return state;
}

let pending = 0;

/** Write the address, after the last of many changes: browsers refuse hundreds of them per second. */
export function write(state: State, defaults: State): void {
  clearTimeout(pending);
  pending = window.setTimeout(() => {
    const changed = Object.entries(state).filter(([name, value]) => value !== defaults[name]);
    const hash = new URLSearchParams(changed).toString();
    history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
  }, 120);
}
