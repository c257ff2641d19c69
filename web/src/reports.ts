/** Reports: numbers are in the page as JSON; the page without scripts has its tables. */

import { advicePage, type AdviceData } from "./advice";
import { headsPage, type HeadsData } from "./heads";

const data = document.getElementById("data");
const live = document.getElementById("live");
if (data && live) {
  const found = JSON.parse(data.textContent ?? "") as AdviceData | HeadsData;
  live.append(...(found.kind === "advice" ? advicePage(found) : headsPage(found)));
  // Tables for readers without scripts.
  for (const plain of document.querySelectorAll<HTMLElement>(".plain")) plain.hidden = true;
}
